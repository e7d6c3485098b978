"""EXAQ's softmax unit: exponents and sums from tables of a few bits."""
