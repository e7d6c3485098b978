"""What tests know of instruction sets."""

from __future__ import annotations

import platform

from suffice import native

# Sets that multiply pairs of bfloat16, and round to bfloat16 what they multiply with it.
ROUNDING = ("v4_bf16", "neon_i8mm")


def rounds_bf16() -> bool:
    return native.isa() in ROUNDING


def fused() -> bool:
    """Return whether a product and an addition are rounded once. All ARM processors do so."""
    return native.isa() != "base" or platform.machine() != "x86_64"
