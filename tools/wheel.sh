#!/bin/sh
# Make a wheel and a source distribution in dist/. The wheel's tag names the oldest manylinux that
# has every symbol it needs, and it has kernels for all instruction sets. `aarch64` makes the wheel
# for ARM, by the Python that Debian has (arm_python.sh). Usage: wheel.sh [aarch64]
set -eu
cd "$(dirname "$0")/.."
wanted=${1:-}
set -- -C cmake.define.SUFFICE_SETS=all
case $wanted in
"" | "$(uname -m)") ;;
aarch64)
    . tools/arm_python.sh
    runs=$(python -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
    [ "$runs" = "$version" ] || {
        echo "the wheel for ARM is made by $version, not $runs: remove .venv, then PYTHON=$version" >&2
        exit 1
    }
    set -- "$@" -C "cmake.define.CMAKE_TOOLCHAIN_FILE=$toolchain"
    export _PYTHON_HOST_PLATFORM=linux-aarch64
    export SETUPTOOLS_EXT_SUFFIX=".cpython-$(echo "${version#python}" | tr -d .)-aarch64-linux-gnu.so"
    ;;
*)
    echo "ARCH=$wanted: a wheel is made for this machine, or for aarch64" >&2
    exit 1
    ;;
esac
rm -rf dist && mkdir -p dist/built

python -m build --sdist --no-isolation --outdir dist . >/dev/null
python -m build --wheel --no-isolation "$@" --outdir dist/built . >/dev/null
said=$(auditwheel repair --wheel-dir dist dist/built/*.whl 2>&1) || {
    echo "$said" >&2
    auditwheel show dist/built/*.whl >&2
    exit 1
}
rm -r dist/built
ls dist
