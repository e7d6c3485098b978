"""Let llama.cpp quantise the weights that suffice quantises, for quant_quality.py to compare.

    python benchmarks/peer_quantise.py --cache FOLDER [--model M] [--types Q4_0 IQ4_NL Q4_K_S]

From the same .gguf file, whose weights llama.cpp makes floats of first, without an importance
matrix. Where a type needs rows of 256, llama.cpp takes another; the table says how many bits that
makes. llama.cpp is that of peers.py, in its own environment, in which this file runs once more.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import sys
from pathlib import Path

TYPES = ("Q4_0", "IQ4_NL", "Q4_K_S")
INSIDE = "--inside"  # llama.cpp's environment


def quantise(source: str, target: str, kind: str) -> int:
    """Write `target` in a type of llama.cpp's; return its status."""
    import llama_cpp as lib

    params = lib.llama_model_quantize_default_params()
    params.ftype = getattr(lib, f"LLAMA_FTYPE_MOSTLY_{kind}")
    params.allow_requantize = True
    params.nthread = 1
    status: int = lib.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params))
    return status


def main() -> int:
    """Write the files that are missing."""
    from peer_install import PACKAGES, InstallError, install
    from quant_cells import llama_path
    from suffice.errors import InputError
    from suffice.models.locate import locate

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cache", type=Path, default=Path("build/quantised"))
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--types", nargs="+", default=list(TYPES), choices=TYPES)
    parser.add_argument("--jobs", type=int, default=2, help="compilers at a time")
    flags = parser.parse_args()
    package = PACKAGES["llama-cpp-python"]
    try:
        source = locate(flags.model)
        if source.suffix != ".gguf":
            raise InputError(f"{source} is no .gguf file, which llama.cpp starts from")
        install(package, flags.jobs)
    except (InputError, InstallError) as error:
        print(f"peer_quantise.py: error: {error}", file=sys.stderr)
        return 2
    flags.cache.mkdir(parents=True, exist_ok=True)
    for kind in flags.types:
        target = llama_path(flags.cache, Path(flags.model).name, kind)
        if target.is_file():
            continue
        part = target.with_name(target.name + ".part")
        asked = [str(package.python), __file__, INSIDE, str(source), str(part), kind]
        status = subprocess.run(asked, stderr=subprocess.DEVNULL, check=False).returncode
        if status:
            print(f"peer_quantise.py: error: llama.cpp cannot make {kind}", file=sys.stderr)
            return 1
        part.replace(target)
        print(target)
    return 0


if __name__ == "__main__":
    sys.exit(quantise(*sys.argv[2:]) if INSIDE in sys.argv[1:2] else main())
