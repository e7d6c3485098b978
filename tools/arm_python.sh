# Sourced by arm.sh and wheel.sh, in the repository's folder: Python and its headers for ARM, and how
# CMake compiles for it. Sets folder, root, version and toolchain. `emulator` is asked for, too, if it is set.
#
# Needs (Debian) crossbuild-essential-arm64, apt, and qemu-user to run tests. Python is Debian's, of its
# own version: unpacked into build/arm, nothing is installed.
folder=$PWD/build/arm
root=$folder/root
mkdir -p "$folder/apt/lists/partial" "$folder/apt/archives/partial"

for tool in aarch64-linux-gnu-g++ apt-get dpkg-deb ${emulator:-}; do
    command -v $tool >/dev/null || {
        echo "$tool is missing: apt install crossbuild-essential-arm64 qemu-user" >&2
        exit 1
    }
done

# A system of its own for apt: as if nothing was installed, for ARM.
debian() {
    apt-get -q -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User= \
        -o Dir::State::status=/dev/null -o Dir::State::Lists="$folder/apt/lists" \
        -o Dir::Cache::archives="$folder/apt/archives" -o Dir::Cache::pkgcache= \
        -o Dir::Cache::srcpkgcache= -o Debug::NoLocking=1 "$@" >>"$folder/apt.log"
}
if [ ! -e "$folder/unpacked" ]; then
    echo "fetching Python for ARM from Debian"
    debian update
    debian -y --no-install-recommends --download-only install \
        python3-minimal libpython3-stdlib libpython3-dev libstdc++6
    for package in "$folder"/apt/archives/*.deb; do dpkg-deb -x "$package" "$root"; done
    touch "$folder/unpacked"
fi
version=$(basename "$(ls -d "$root"/usr/include/python3.*)")  # python3.11
mkdir -p "$folder/include/aarch64-linux-gnu"
ln -sfn "$root/usr/include/aarch64-linux-gnu/$version" "$folder/include/aarch64-linux-gnu/$version"

toolchain=$folder/toolchain.cmake
cat >"$toolchain" <<END
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER "${ARM_CXX:-aarch64-linux-gnu-g++}")
set(CMAKE_CXX_FLAGS_INIT "-I\"$folder/include\"")
set(Python_INCLUDE_DIR "$root/usr/include/$version" CACHE PATH "" FORCE)
END
