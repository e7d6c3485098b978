"""Quantize the weights with peers' programs, for quality.py to compare.

    python -m benchmarks.quant.quantize_peers --cache FOLDER [--model M]
    ... --types Q4_0 IQ4_NL Q4_K_S ...     some of llama.cpp's types
    ... --types hqq:group=32 hqq:group=64

llama.cpp starts from the same .gguf file, converts its weights to floats first, and uses no
importance matrix. Where a type needs rows of 256 values, it uses another type; the table gives the
resulting bits. HQQ has 4-bit codes with a float16 scale and zero point for each group of a row, its
default number of iterations, and no calibration. Each peer has its own environment, in which this
file runs again.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import sys
from pathlib import Path

TYPES = ("Q4_0", "IQ4_NL", "Q4_K_S", "Q5_K_S", "Q6_K")  # of llama.cpp
MORE_TYPES = ("Q4_K_M", "Q5_K_M", "Q8_0")  # made when asked for
HQQ = {f"hqq:group={group}": group for group in (32, 64)}
INSIDE = "--inside"  # a peer's environment


def quantize(source: str, target: str, kind: str) -> int:
    """Write `target` as a peer quantizes it; return its status."""
    return by_hqq(source, target, HQQ[kind]) if kind in HQQ else by_llama(source, target, kind)


def by_hqq(source: str, target: str, group: int) -> int:
    """Write the decoded HQQ codes of the matrices in a file, float16; return 0."""
    import torch
    from hqq.core.quantize import Quantizer
    from safetensors.torch import load_file, save_file

    found = {}
    for name, matrix in load_file(source).items():
        codes, about = Quantizer.quantize(
            matrix, nbits=4, group_size=group, axis=1, compute_dtype=torch.float16, device="cpu"
        )
        found[name] = Quantizer.dequantize(codes, about).to(torch.float16)
    save_file(found, target)
    return 0


def by_llama(source: str, target: str, kind: str) -> int:
    """Write `target` in one of llama.cpp's types; return its status."""
    import llama_cpp as lib

    params = lib.llama_model_quantize_default_params()
    params.ftype = getattr(lib, f"LLAMA_FTYPE_MOSTLY_{kind}")
    params.allow_requantize = True
    params.nthread = 1
    status: int = lib.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params))
    return status


def write_matrices(model: Path, path: Path) -> None:
    """Write the layers' matrices of a model, float32."""
    from safetensors.numpy import save_file

    from suffice.checkpoints.open import open_checkpoint
    from suffice.decoder.names import is_linear

    tensors = open_checkpoint(model).tensors()
    layers = {n: t for n, t in tensors if n.startswith("layers.") and is_linear(n)}
    save_file({name: each.astype("float32") for name, each in layers.items()}, path)


def main() -> int:
    """Write the files that are missing."""
    from benchmarks.peers.install import PACKAGES, ROOT, InstallError, install
    from benchmarks.quant.peer_weights import LLAMA, peer_path
    from suffice.checkpoints.files import locate
    from suffice.errors import InputError

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cache", type=Path, default=Path("build/quantized"))
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument(
        "--types", nargs="+", default=list(TYPES), choices=[*TYPES, *MORE_TYPES, *HQQ]
    )
    parser.add_argument("--jobs", type=int, default=2, help="compilers at a time")
    flags = parser.parse_args()
    flags.cache.mkdir(parents=True, exist_ok=True)
    floats = flags.cache / "floats.safetensors.part"
    for kind in flags.types:
        weights = kind if kind in HQQ else LLAMA + kind
        target = peer_path(flags.cache, Path(flags.model).name, weights)
        if target.is_file():
            continue
        package = PACKAGES["hqq" if kind in HQQ else "llama-cpp-python"]
        try:
            source = locate(flags.model)
            if kind in HQQ:
                write_matrices(source, floats)
                source = floats
            elif source.suffix != ".gguf":
                raise InputError(f"{source} is not a .gguf file, which llama.cpp starts from")
            install(package, flags.jobs)
        except (InputError, InstallError) as error:
            print(f"quantize_peers: error: {error}", file=sys.stderr)
            return 2
        part = target.with_name(target.name + ".part")
        asked = [
            str(package.python),
            "-m",
            __spec__.name,
            INSIDE,
            *map(str, (source.resolve(), part.resolve())),
            kind,
        ]
        status = subprocess.run(asked, cwd=ROOT, stderr=subprocess.DEVNULL, check=False).returncode
        floats.unlink(missing_ok=True)
        if status:
            print(f"quantize_peers: error: {package.name} cannot make {kind}", file=sys.stderr)
            return 1
        part.replace(target)
        print(target)
    return 0


if __name__ == "__main__":
    sys.exit(quantize(*sys.argv[2:]) if INSIDE in sys.argv[1:2] else main())
