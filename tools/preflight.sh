#!/bin/sh
# Say in one line what this machine lacks before anything is installed. Usage: preflight.sh PYTHON
python=${1:-python3}

fail() {
    echo "suffice: error: $1" >&2
    exit 2
}

command -v "$python" >/dev/null 2>&1 ||
    fail "'$python' is not installed; Python 3.10 or newer is needed (or: make PYTHON=/path/to/python3)"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    fail "$("$python" --version 2>&1) is too old; 3.10 or newer is needed (or: make PYTHON=/path/to/python3)"
"$python" -c 'import venv, ensurepip' 2>/dev/null ||
    fail "'$python' cannot make virtual environments; install its venv module (Debian: python3-venv)"
command -v "${CXX:-c++}" >/dev/null 2>&1 ||
    fail "no C++ compiler '${CXX:-c++}'; install one (Debian: g++) or name yours: make CXX=clang++"
echo 'int main() { return 0; }' | "${CXX:-c++}" -std=c++20 -x c++ -fsyntax-only - 2>/dev/null ||
    fail "the C++ compiler '${CXX:-c++}' does not know C++20; GCC 12 or Clang 14 and newer do"
