#!/bin/sh
# Build the extension for ARM and run the tests of native code for each of its instruction sets under
# emulation. Usage: arm.sh [PYTEST ARGUMENTS]
#
# What it needs is in arm_python.sh. NumPy, PyTorch and pytest for ARM come by pip. The first time this
# takes minutes and 2 GB, later only what changed is compiled. SETS="neon_dot neon" names the sets
# that are tested.
set -eu
cd "$(dirname "$0")/.."
emulator=qemu-aarch64
. tools/arm_python.sh

# The last release of PyTorch whose wheel for ARM has no CUDA.
packages=$folder/packages
arm_pip() {
    python -m pip --disable-pip-version-check install --quiet --upgrade --target "$packages" \
        --implementation cp --python-version "${version#python}" --only-binary=:all: \
        --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 \
        --platform manylinux2014_aarch64 "$@"
}
if [ ! -e "$folder/installed" ]; then
    echo "installing what the tests need"
    arm_pip "numpy>=1.26,<3" "ml_dtypes>=0.5,<1" "safetensors>=0.5,<1" "tokenizers>=0.22,<1" \
        "gguf>=0.17,<1" "huggingface_hub>=1.0,<3" "jinja2>=3.1.6,<4" "click>=8.2,<9" "rich>=13,<16" \
        "pytest>=8.2,<10" "hypothesis>=6.100,<7" "allpairspy>=2.5,<3" sympy networkx
    arm_pip --no-deps "torch==2.9.1"
    touch "$folder/installed"
fi

# With little optimization, unless QUICK=OFF: compiling would take longer than it saves.
quick=${QUICK:-ON}
echo "compiling"
launcher=$(command -v ccache || true)
cmake -S . -B "$folder/quick-$quick" -G Ninja -DSUFFICE_QUICK=$quick -DCMAKE_BUILD_TYPE=Release -DSUFFICE_SETS=all \
    ${launcher:+-DCMAKE_CXX_COMPILER_LAUNCHER="$launcher"} -DCMAKE_TOOLCHAIN_FILE="$toolchain" \
    -DPython_EXECUTABLE="$(command -v python)" \
    -Dnanobind_DIR="$(python -m nanobind --cmake_dir)" >"$folder/configured"
cmake --build "$folder/quick-$quick"

site=$folder/site
rm -rf "$site" && mkdir "$site"
cp -r src/suffice src/suffice_hw "$site/"
rm -f "$site"/*/_*.so
cp "$folder/quick-$quick"/_native*.so "$site/suffice/_native.so"
cp "$folder/quick-$quick"/_simulator*.so "$site/suffice_hw/_simulator.so"

# Tests start Python by its name: a script that emulates it. Without the site module no other
# installation comes before this one.
cat >"$folder/python" <<END
#!/bin/sh
exec qemu-aarch64 -cpu "\${ARM_CPU:-max}" -L "$root" -0 "$folder/python" -E PYTHONHOME="$root/usr" \\
    "$root/usr/bin/$version" -S "\$@"
END
chmod +x "$folder/python"
export PYTHONPATH="$site:$packages"

run() {
    SUFFICE_ISA=$1 SUFFICE_TEST_ISAS=$1 ARM_CPU=$2
    export SUFFICE_ISA SUFFICE_TEST_ISAS ARM_CPU
    shift 2
    # Under emulation the products of NumPy's library leave flags of exceptions that did not occur.
    "$folder/python" -m pytest -q -p no:cacheprovider \
        -W "ignore:divide by zero encountered in matmul:RuntimeWarning" \
        -W "ignore:invalid value encountered in matmul:RuntimeWarning" \
        -W "ignore:overflow encountered in matmul:RuntimeWarning" "$@"
    echo "$SUFFICE_ISA, emulated as $ARM_CPU: passed"
}
# Left out: what compiles C++ or reads it for this machine, and emulation itself.
[ $# -gt 0 ] || set -- tests/native tests/quant/test_code_layouts.py tests/quant/test_packed_codes.py \
    --ignore tests/native/test_emulated.py --ignore tests/native/test_part_clock.py \
    --ignore tests/native/test_thread_team.py
for isa in ${SETS:-neon neon_dot neon_i8mm}; do
    case $isa in
    neon) run $isa cortex-a72 "$@" ;;
    neon_dot) run $isa neoverse-n1 "$@" ;;
    *) run $isa max "$@" ;;
    esac
done
