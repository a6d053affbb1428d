#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the library for other machines and runs tests there: docs/platforms.md has the table.
#
#   tools/cross_check.sh [--setup] [FOLDER] [TARGET...]
#
#   FOLDER   for what is fetched and built, build-cross when it is not given (it has a slash in it
#            or begins with "build")
#   TARGET   i386 aarch64 armhf s390x mingw zig android; without one, all whose compiler is there,
#            and one at least
#   --setup  stops where a target is configured: meson compile -C FOLDER/TARGET goes on
#
# Compilers and emulators are Debian's: gcc-i686-linux-gnu libc6-i386, gcc-aarch64-linux-gnu,
# gcc-arm-linux-gnueabihf, gcc-s390x-linux-gnu, qemu-user-static, gcc-mingw-w64-x86-64, wine64 and
# wine (tools/setup.sh full installs them); `zig` is a command, the Python package ziglang, or that
# in an environment that is made in FOLDER where it is named; NDK is the folder of Android's.
# CMocka, jansson and libsmartcols of the target are downloaded as packages and unpacked into
# FOLDER, so that nothing foreign is installed.
set -euo pipefail

source=$(cd "$(dirname "$0")/.." && pwd)
folder=build-cross setup_only=no
[ "${1:-}" != --setup ] || { setup_only=yes; shift; }
case "${1:-}" in */* | build*) folder=$1; shift ;; esac
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
named=("$@")
failed=() left_out=() done=()
jobs=${JOBS:-$(nproc)}

# Unit tests that say something of a machine, and programs of the CPU path.
unit=(problem call_features plan tile half host host_dot quantize softmax_merge ref log cache
      source ocl_util serves tune)
# Half an hour under an emulator.
more=(host_features)
posix=(os store struct_size)
device=(features cases softmax append merge rotary stress range)

step() { echo "== $*"; }

# fetch ARCH TRIPLET: unpacks the libraries of a foreign architecture into root-ARCH and writes
# root-ARCH.ini, which tells Meson of it. Lists and packages are kept apart from the system's own.
fetch() {
  local arch=$1 triplet=$2 root=$folder/root-$1 state=$folder/apt-$1 deb
  if [ ! -d "$root" ]; then
    mkdir -p "$state/lists/partial" "$state/cache/archives/partial" "$root.new"
    : >"$state/status"
    local apt=(apt-get -qq -o "APT::Architecture=$arch" -o "APT::Architectures=$arch"
               -o "Dir::State=$state" -o "Dir::State::status=$state/status"
               -o "Dir::Cache=$state/cache" -o "APT::Sandbox::User=$(id -un)")
    "${apt[@]}" update || echo "some package lists could not be had" >&2
    (cd "$state" && "${apt[@]}" download libcmocka-dev libcmocka0 libjansson-dev libjansson4 \
      libsmartcols-dev libsmartcols1 opencl-c-headers)
    for deb in "$state"/*.deb; do
      dpkg -x "$deb" "$root.new"
    done
    rm -rf "$state"
    mv "$root.new" "$root"
  fi
  cat >"$root.ini" <<END
[properties]
sys_root = '$root'
pkg_config_libdir = ['$root/usr/lib/$triplet/pkgconfig', '$root/usr/share/pkgconfig']
[built-in options]
c_args = ['-isystem', '$root/usr/include']
c_link_args = ['-Wl,-rpath-link,$root/usr/lib/$triplet']
END
}

# configure TARGET CROSS_FILE ROOT OPTION...
configure() {
  local target=$1 cross=$2 root=$3
  shift 3
  [ -f "$folder/$target/build.ninja" ] ||
    meson setup "$folder/$target" "$source" --cross-file "$source/cross/$cross.ini" \
      --cross-file "$root.ini" -Dwerror=true -Dtest_widths=false "$@" >"$folder/$target.log"
  [ $setup_only = no ]
}

# check TARGET NAME...: builds the library and these tests, and runs them.
check() {
  local target=$1 name targets=()
  shift
  for name in "$@"; do
    [ "$name" = exports ] || targets+=("tests/test_${name%% *}") # that one is no program
  done
  ninja -C "$folder/$target" -j "$jobs" "${library[@]}" "${targets[@]/%/$suffix}" \
    >>"$folder/$target.log"
  CLATTN_TEST_SMALL=1 OMP_NUM_THREADS=2 meson test -C "$folder/$target" --no-rebuild \
    --suite unit --suite device --suite header --print-errorlogs --num-processes "$jobs" \
    --timeout-multiplier 20 "$@"
}

linux() { # linux TARGET ARCH TRIPLET TRIPLET_OF_DEBIAN TESTS...
  local target=$1 arch=$2 triplet=$3 debian=$4
  shift 4
  fetch "$arch" "$debian"
  library=(libclattn.a tools/clattn-run) suffix=
  [ "$target" != s390x ] || library=(libclattn.a)
  configure "$target" "$triplet" "$folder/root-$arch" -Dtests=enabled || return 0
  # The libraries of the target, for programs that run on this machine's own processor and for those
  # in an emulator.
  local path=$folder/root-$arch/usr/lib/$debian
  case $target in
    i386) # with the system's own 32-bit C library, of which the cross compiler's is another build
      cp -L /usr/i686-linux-gnu/lib/libgomp.so.1 "$path"
      export LD_LIBRARY_PATH=$path CLATTN_TEST_EMULATED=1 ;;
    *) export QEMU_SET_ENV=LD_LIBRARY_PATH=$path CLATTN_TEST_EMULATED=1 ;;
  esac
  check "$target" "$@"
}

# CMocka for Windows: one file, from Debian's source package.
cmocka_for_mingw() {
  local root=$folder/root-mingw state=$folder/apt-source source_list format
  [ ! -f "$root/lib/libcmocka.a" ] || return 0
  mkdir -p "$state/lists/partial" "$state/cache/archives/partial" "$root/include" \
    "$root/lib/pkgconfig"
  : >"$state/status"
  source_list=$state/sources.list
  # shellcheck disable=SC2016
  format='deb-src [signed-by=$(SIGNED_BY)] $(REPO_URI) $(CODENAME) $(COMPONENT)'
  apt-get indextargets --format "$format" 'Created-By: Packages' | sort -u >"$source_list"
  sed -i 's|\[signed-by=[^]/]*\]|[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]|' \
    "$source_list"
  local apt=(apt-get -qq -o "Dir::State=$state" -o "Dir::State::status=$state/status"
             -o "Dir::Cache=$state/cache" -o "Dir::Etc::SourceList=$source_list"
             -o Dir::Etc::SourceParts=/dev/null -o "APT::Sandbox::User=$(id -un)")
  "${apt[@]}" update || echo "some package lists could not be had" >&2
  (cd "$state" && "${apt[@]}" source --download-only cmocka && tar xf cmocka_*.orig.tar.xz)
  cd "$state"/cmocka-*/
  local header
  for header in ASSERT INTTYPES IO MALLOC SETJMP SIGNAL STDARG STDDEF STDINT STDIO STDLIB STRING \
    TIME; do
    echo "#define HAVE_${header}_H 1"
  done >config.h
  printf '#define HAVE_%s 1\n' SNPRINTF VSNPRINTF >>config.h
  x86_64-w64-mingw32-gcc -O1 -D__USE_MINGW_ANSI_STDIO=1 -DHAVE_CONFIG_H -I. -Iinclude -c \
    src/cmocka.c -o cmocka.o
  cp include/cmocka*.h "$root/include"
  cp -r /usr/include/CL "$root/include"
  x86_64-w64-mingw32-ar rcs "$root/lib/libcmocka.a" cmocka.o
  cd "$source"
  rm -rf "$state"
}

mingw() {
  local root=$folder/root-mingw
  (cmocka_for_mingw)
  cat >"$root/lib/pkgconfig/cmocka.pc" <<END
Name: cmocka
Description: unit tests
Version: 1.1
Libs: -L$root/lib -lcmocka
Cflags: -I$root/include
END
  # The programs carry what they need, so that wine finds it.
  cat >"$root.ini" <<END
[binaries]
pkg-config = 'pkg-config'
pkgconfig = 'pkg-config'
[properties]
pkg_config_libdir = ['$root/lib/pkgconfig']
[built-in options]
c_args = ['-isystem', '$root/include']
c_link_args = ['-static']
END
  library=(libclattn.a libclattn-0.dll) suffix=.exe
  configure mingw x86_64-w64-mingw32 "$root" -Dtests=enabled -Dtools=disabled || return 0
  export WINEPREFIX=$folder/wine WINEDEBUG=-all
  wine wineboot -i >/dev/null 2>&1
  check mingw "${unit[@]}" "${more[@]}" windows "${device[@]/%/ cpu}" numbers exports
  wineserver -k || true
}

# Compiles every file of the library for another C library and for macOS, whose programs run
# nowhere else.
with_zig() {
  local zig=(zig) target file include=$folder/root-zig/include objects=$folder/zig
  if ! command -v zig >/dev/null; then
    zig=(python3 -m ziglang)
    if ! "${zig[@]}" version >/dev/null 2>&1; then
      python3 -m venv "$folder/ziglang"
      "$folder/ziglang/bin/pip" install -q --disable-pip-version-check ziglang==0.14.1
      zig=("$folder/ziglang/bin/python" -m ziglang)
    fi
  fi
  mkdir -p "$include" "$objects"
  cp -r /usr/include/CL "$include"
  ln -sfn CL "$include/OpenCL" # Apple's name of the folder
  [ $setup_only = no ] || return 0
  for target in aarch64-linux-musl aarch64-macos; do
    for file in "$source"/src/*.c "$source"/src/*/*.c; do
      case $file in
        */no_ocl.c) continue ;;
      esac
      "${zig[@]}" cc -target "$target" -std=c11 -O1 -Wall -Wextra -Werror -Wno-psabi -Wshadow \
        -DCLATTN_BUILD -DCLA_HAVE_OPENCL=1 -DCLA_HOST_ISA=neon '-DCLA_HOST_ISA_TEXT="neon"' \
        -DCLA_HOST_W=4 -DCLA_HOST_QV=4 -DCLA_HOST_RK=4 -DCLA_HOST_RD=4 -DCLA_HOST_TILE_K=120 \
        -isystem "$include" -I"$source/include" -I"$source/src" -I"$source/cl" \
        -c "$file" -o "$objects/$target.o"
    done
  done
}

android() {
  if [ -z "${NDK:-}" ]; then
    echo "android: \$NDK is not set" >&2
    return 1
  fi
  mkdir -p "$folder/root-android/include"
  cp -r /usr/include/CL "$folder/root-android/include"
  cat >"$folder/root-android.ini" <<END
[constants]
ndk = '$NDK'
[built-in options]
c_args = ['-isystem', '$folder/root-android/include']
END
  library=(libclattn.a)
  configure android android-aarch64 "$folder/root-android" -Dtests=disabled -Dtools=disabled ||
    return 0
  ninja -C "$folder/android" -j "$jobs" "${library[@]}" >>"$folder/android.log"
}

# What compiles for a target: it is left out where that is not there and nobody named it.
compiler_of() {
  case $1 in
    i386) command -v i686-linux-gnu-gcc ;;
    aarch64) command -v aarch64-linux-gnu-gcc && command -v qemu-aarch64-static ;;
    armhf) command -v arm-linux-gnueabihf-gcc && command -v qemu-arm-static ;;
    s390x) command -v s390x-linux-gnu-gcc && command -v qemu-s390x-static ;;
    mingw) command -v x86_64-w64-mingw32-gcc && command -v wine ;;
    zig) command -v zig || python3 -m ziglang version ;;
    android) [ -n "${NDK:-}" ] ;;
    *) echo "there is no target $1" >&2 && exit 2 ;;
  esac >/dev/null 2>&1
}

run_target() {
  case $1 in
    i386) linux i386 i386 i686-linux-gnu i386-linux-gnu "${unit[@]}" "${more[@]}" "${posix[@]}" \
      "${device[@]/%/ cpu}" exports ;;
    aarch64) linux aarch64 arm64 aarch64-linux-gnu aarch64-linux-gnu "${unit[@]}" "${more[@]}" \
      "${posix[@]}" "${device[@]/%/ cpu}" exports ;;
    armhf) linux armhf armhf arm-linux-gnueabihf arm-linux-gnueabihf "${unit[@]}" \
      "features cpu" ;;
    s390x) linux s390x s390x s390x-linux-gnu s390x-linux-gnu "${unit[@]}" "${posix[@]}" \
      "features cpu" "stress cpu" ;;
    mingw) mingw ;;
    zig) with_zig ;;
    android) android ;;
  esac
}

all=(i386 aarch64 armhf s390x mingw zig android)
for target in "${named[@]:-${all[@]}}"; do
  if [ ${#named[@]} -eq 0 ] && ! compiler_of "$target"; then
    left_out+=("$target")
    continue
  fi
  start=$SECONDS
  step "$target"
  # A subshell of its own, so that -e counts in it.
  set +e
  (set -e; run_target "$target")
  status=$?
  set -e
  if [ $status -ne 0 ]; then
    failed+=("$target")
    tail -n 20 "$folder/$target.log" >&2 || true
  fi
  done+=("$target")
  step "$target: status $status, $((SECONDS - start)) s"
done
[ ${#left_out[@]} -eq 0 ] || echo "left out, compiler or runner missing: ${left_out[*]}"
[ ${#done[@]} -gt 0 ] || { echo "FAILED: no compiler of another machine is here"; exit 1; }
[ ${#failed[@]} -eq 0 ] || { echo "FAILED: ${failed[*]}"; exit 1; }
