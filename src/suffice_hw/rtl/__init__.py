"""The accelerators' units as hardware, each equal bit for bit to a model in integers.

A unit is a `unit.Unit`: ports, gates (Amaranth), a model, and test vectors for both. Only this
package needs the extra `rtl`.
"""
