"""One runner for each engine; a runner is a process in the environment of its engine.

`timed` starts the processes that start.py measures.
"""
