"""The only importer of the compiled core: instruction sets, threads and bandwidth.

`SUFFICE_ISA` forces an instruction set (base, v3 = AVX2, v3_vnni = AVX2 with VNNI, v4 = AVX-512,
v4_bf16 = AVX-512 with BF16; on ARM neon, neon_dot = with dot products, neon_i8mm = with matrices of
bytes and of bfloat16) and fails if the CPU lacks it or the build does. The number of threads
defaults to the cores that CPU affinity and the cgroup's quota allow.

While decoding, the core receives NumPy arrays, never torch tensors. Accessing a tensor runs Python
code of torch, and an interrupt (Ctrl-C) that arrives there would be lost.
"""

from __future__ import annotations

import os

from suffice import _native as core
from suffice.errors import InputError, OptionError

__all__ = [
    "ISAS",
    "LOGIT_BLOCK",
    "PANEL",
    "core",
    "cores",
    "extension",
    "isa",
    "isas",
    "isas_built",
    "isas_not_built",
    "set_threads",
    "threads",
    "use_isa",
]

PANEL: int = core.PANEL
LOGIT_BLOCK: int = core.LOGIT_BLOCK
ISAS = ("v4_bf16", "v4", "v3_vnni", "v3", "neon_i8mm", "neon_dot", "neon", "base")


def extension() -> str:
    """Return the path of the extension's file."""
    return str(core.__file__)


def isas() -> list[str]:
    """Return the instruction sets that were built and that this CPU can run, best first."""
    return [name for name, built, runs in core.isas() if built and runs]


def isas_not_built() -> list[str]:
    """Return the instruction sets that this CPU could run but that were not built, best first."""
    return [name for name, built, runs in core.isas() if runs and not built]


def isas_built() -> list[str]:
    """Return all instruction sets that were built, best first."""
    return [name for name, built, _ in core.isas() if built]


def isa() -> str:
    """Return the instruction set in use."""
    return str(core.isa())


def use_isa(name: str) -> None:
    """Choose the instruction set of all kernels.

    Raises:
        InputError: The instruction set is unknown or was not built, or this CPU lacks it.
    """
    if not core.use_isa(name):
        why = (
            "was not built (see SUFFICE_SETS in CONTRIBUTING.md)"
            if name in ISAS and name not in isas_built()
            else "cannot run here"
        )
        raise InputError(f"instruction set '{name}' {why}. Available: {', '.join(isas())}")


def cores() -> int:
    """Return the number of cores that CPU affinity and the cgroup's quota allow."""
    return int(core.cores())


def threads() -> int:
    """Return the size of the thread team."""
    return int(core.threads())


def set_threads(count: int) -> None:
    """Set the size of the thread team.

    Raises:
        InputError: `count` is not between 1 and `cores()`.
    """
    if not 1 <= count <= cores():
        raise OptionError("threads", count, f"must be between 1 and the {cores()} cores available")
    core.set_threads(count)


def read_bandwidth(size_bytes: int, threads: int, repeats: int = 5) -> float:
    """Return the bytes per second that `threads` threads read sequentially, best of `repeats`."""
    return float(core.read_bandwidth(size_bytes, threads, repeats))


def copy_bandwidth(size_bytes: int, threads: int, repeats: int = 5) -> float:
    """Return the bytes per second copied (each read and written once), best of `repeats`."""
    return float(core.copy_bandwidth(size_bytes, threads, repeats))


def product_rate(of: str, threads: int, repeats: int = 5) -> float:
    """Return the multiply-adds per second on values in the L1 cache, best of `repeats`.

    `of` is "float32", "bfloat16", "int16" or "int8": what is multiplied. Where the instruction set
    has no products of it, this is the rate of what takes their place.
    """
    return float(core.product_rate(core.Products[of], threads, repeats))


if _forced := os.environ.get("SUFFICE_ISA"):
    use_isa(_forced)
