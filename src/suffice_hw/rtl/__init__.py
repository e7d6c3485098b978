"""The accelerators' units as hardware, each equal bit for bit to a model in integers.

A unit is a `unit.Unit`: ports, gates (Amaranth), a model, and vectors that both are given. Needs
the extra `rtl`; nothing else in suffice does.
"""
