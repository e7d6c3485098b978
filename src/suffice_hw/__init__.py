"""Accelerators as models: their memory, their cycles, their area; nothing of the engine.

Cycle models run in the extension `suffice_hw._simulator`. Every assumption is a commented key of a
TOML file; every published figure that a model is held against is a `Check`.
"""
