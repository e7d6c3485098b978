"""How many instances hold a load: the engine's and the router's own code, run against a clock.

`costs` predicts the seconds of a step, `calibrate` measures them on this machine, `runner` is a
runner that computes nothing but these seconds, `cluster` lets many engines, their router and the
front meet in the order of simulated time, and `search` looks for the smallest number of engines.
"""
