#!/bin/sh
# Build the extension so that AVX2 emulates what AVX-512 and VNNI add, and run the tests of native code
# for the instruction sets that this machine lacks. Usage: emulate.sh [PYTEST ARGUMENTS]
#
# The build stays in build/emulate: CMake refuses to make a package of it. EMULATED="v4_bf16 v4" names
# the sets, ISA by ISA, for the tests that take one from the environment.
set -eu
cd "$(dirname "$0")/.."
folder=build/emulate
mkdir -p $folder/site

launcher=$(command -v ccache || true)
cmake -S . -B $folder/cmake -G Ninja -DCMAKE_BUILD_TYPE=Release -DSUFFICE_EMULATE=ON -DSUFFICE_SETS=all \
    ${launcher:+-DCMAKE_CXX_COMPILER_LAUNCHER="$launcher"} \
    -DPython_EXECUTABLE="$(command -v python)" \
    -Dnanobind_DIR="$(python -m nanobind --cmake_dir)" >$folder/configured
cmake --build $folder/cmake --target _native

rm -rf $folder/site/suffice $folder/site/suffice_hw
cp -r src/suffice src/suffice_hw $folder/site/
rm -f $folder/site/suffice/_native*.so
cp $folder/cmake/_native*.so $folder/site/suffice/

# Without the site module no editable install comes before the emulating one.
packages=$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
run() {
    isa=$1
    shift
    SUFFICE_ISA=$isa PYTHONPATH="$folder/site:$packages" \
        python -S -m pytest -q -p no:cacheprovider "$@"
}
sets=${EMULATED:-v4_bf16 v4 v3_vnni}
if [ $# -eq 0 ]; then
    run "${sets%% *}" tests/native tests/attention tests/quant  # most run every set themselves
    set -- tests/decoder/test_native_model.py tests/engine/test_step_laws.py \
        tests/engine/test_invariance.py tests/cache/test_laws.py
fi
for isa in $sets; do
    run "$isa" "$@"
    echo "$isa, emulated: passed"
done
