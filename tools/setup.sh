#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what clattn needs on Debian 12, as root or through sudo.
#
#   tools/setup.sh run    to build the library and its tools and to run them on PoCL
#   tools/setup.sh test   all of that, and what the tests need
#   tools/setup.sh full   all of that, and what tools/ci_full.sh needs
#
# Asks for nothing and does nothing where everything is installed. Elsewhere than on Debian and its
# kin it only says what is needed.
set -euo pipefail

# Without dpkg-dev Meson does not know Debian's folder of libraries and installs where nothing is
# looked for.
run_packages=(
  gcc libc6-dev dpkg-dev meson ninja-build pkg-config python3
  opencl-c-headers ocl-icd-libopencl1 pocl-opencl-icd libclblast1
  libjansson-dev libsmartcols-dev
)
# mesa-opencl-icd brings rusticl with llvmpipe; gnuplot draws the plots of clattn-bench; libclc-15
# is for tools/gpu_compile_check, which fetches the rest of its compilers itself; libclang-rt-dev
# has the sanitizers and libFuzzer for tools/fuzz.sh; scdoc and mandoc make and check the manual
# pages, doxygen and doxygen-awesome-css the reference and its looks; Open MPI runs an example.
test_packages=(
  abigail-tools valgrind cmake opencl-clhpp-headers
  g++ clang libclang-rt-dev libomp-dev binutils python3-venv
  libcmocka-dev ocl-icd-opencl-dev mesa-opencl-icd oclgrind gnuplot-nox
  libclc-15
  scdoc mandoc doxygen doxygen-awesome-css libopenmpi-dev openmpi-bin
)
# Packages of Debian are built, looked at and installed; bash, zsh and fish complete options.
# Compilers and emulators are for tools/cross_check.sh.
full_packages=(
  debhelper lintian fakeroot debootstrap git zsh fish
  gcc-i686-linux-gnu libc6-dev-i386-cross libc6-i386 gcc-aarch64-linux-gnu libc6-dev-arm64-cross
  gcc-arm-linux-gnueabihf libc6-dev-armhf-cross gcc-s390x-linux-gnu libc6-dev-s390x-cross
  qemu-user-static gcc-mingw-w64-x86-64 wine wine64
)

case "${1:-}" in
  run) packages=("${run_packages[@]}") ;;
  test) packages=("${run_packages[@]}" "${test_packages[@]}") ;;
  full) packages=("${run_packages[@]}" "${test_packages[@]}" "${full_packages[@]}") ;;
  *)
    echo "usage: tools/setup.sh run|test|full" >&2
    exit 2
    ;;
esac

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
  echo "setup: no apt-get here; clattn needs what Debian calls: ${packages[*]}" >&2
  exit 0
fi

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}\n' "$package" 2>/dev/null | head -n 1 || true)
  [ "$status" = installed ] || missing+=("$package")
done
if [ "${#missing[@]}" -eq 0 ]; then
  echo "setup: all ${#packages[@]} packages are installed"
  exit 0
fi

if [ "$(id -u)" -eq 0 ]; then
  as_root=(env)
elif command -v sudo >/dev/null; then
  as_root=(sudo env)
else
  echo "setup: run this as root, or install sudo; missing: ${missing[*]}" >&2
  exit 1
fi
apt=("${as_root[@]}" DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=600)

echo "setup: apt-get update"
"${apt[@]}" update || echo "setup: the package lists could not be renewed, trying the old" >&2
echo "setup: installing ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! "${apt[@]}" install -y --no-install-recommends "${missing[@]}" </dev/null >"$log" 2>&1; then
  tail -n 40 "$log" >&2
  echo "setup: apt-get install failed" >&2
  exit 1
fi
echo "setup: done"
