#!/bin/sh
# Build the extension with the address and undefined-behaviour sanitizers and run the tests of native
# code on it; run the team of threads under the thread sanitizer. Usage: sanitize.sh [PYTEST ARGUMENTS]
set -eu
cd "$(dirname "$0")/.."
folder=build/sanitize
mkdir -p $folder

"${CXX:-c++}" -std=c++20 -O1 -g -fsanitize=thread -Icsrc \
    csrc/runtime/parallel.cpp tests/native/team_stress.cpp -pthread -o $folder/team
TSAN_OPTIONS=halt_on_error=1 $folder/team
echo "thread sanitizer: clean"

python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --upgrade \
    --target $folder/site --config-settings=build-dir=$folder/cmake \
    --config-settings=cmake.define.SUFFICE_SANITIZE=ON .
# Without the site module no editable install comes before the sanitized one.
packages=$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
if [ $# -eq 0 ]; then
    set -- tests/native tests/cache/test_laws.py tests/decoder/test_native_model.py tests/test_sampling.py
fi
# libstdc++ too: without it the sanitizer, loaded first, finds no function that throws.
preload="$("${CXX:-c++}" -print-file-name=libasan.so) $("${CXX:-c++}" -print-file-name=libstdc++.so)"
LD_PRELOAD="$preload" \
    ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
    OMP_NUM_THREADS=1 PYTHONPATH="$folder/site:$packages" \
    python -S -m pytest -q -p no:cacheprovider "$@"
echo "address and undefined-behaviour sanitizers: clean"
