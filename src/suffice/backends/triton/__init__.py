"""Decode attention on GPUs, in Triton: needs `pip install 'suffice[gpu]'`.

`attend` carries out the same plain rules as `backends.cpu`. The kernels run on any GPU that Triton
knows; with TRITON_INTERPRET=1 they run on the CPU, for tests.
"""
