"""Models of accelerators: memory, cycles, energy and area; independent of the engine.

Cycle models run in the extension `suffice_hw._simulator`. Every assumption is a commented key of a
TOML file. Every published figure that a model is compared with is a `Check`.
"""
