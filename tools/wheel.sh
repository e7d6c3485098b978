#!/bin/sh
# Make a wheel and a source distribution in dist/. The wheel's tag names the oldest manylinux that
# has every symbol it needs, and it has kernels for all instruction sets. Usage: wheel.sh
set -eu
cd "$(dirname "$0")/.."
rm -rf dist && mkdir -p dist/built

python -m build --sdist --no-isolation --outdir dist . >/dev/null
python -m build --wheel --no-isolation -C cmake.define.SUFFICE_SETS=all --outdir dist/built . >/dev/null
auditwheel repair --wheel-dir dist dist/built/*.whl >/dev/null 2>&1 ||
    { auditwheel show dist/built/*.whl >&2; exit 1; }
rm -r dist/built
ls dist
