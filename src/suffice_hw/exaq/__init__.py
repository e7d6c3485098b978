"""EXAQ's softmax unit: exponentials and their sums from tables indexed by codes of a few bits."""
