#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs a build, moves it, hides the sources, and builds and runs programs of somebody else
# against it: by pkg-config, CMake and Meson, shared and static. Then uninstalls.
#
#   tests/consumers/check.sh BUILD [--subproject] [--dist]
#
# BUILD is a build folder of Meson, up to date. --subproject also builds clattn inside a consumer,
# fetched by the wrap of examples/ from a repository that is cloned from this one. --dist makes a
# release's archive, and builds and tests what is in it where there is no git. Both take what is
# committed. CMake is left out where it is not installed. Hiding takes root. With
# CLATTN_TEST_EXPECT, an OpenCL device of the tests, nothing is left out but hiding, and kernels
# must have been read.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
source=$(cd "$here/../.." && pwd)
build=$(cd "$1" && pwd)
subproject='' dist=''
for option in "${@:2}"; do
  case $option in
    --subproject) subproject=$option ;;
    --dist) dist=$option ;;
    *) echo "usage: tests/consumers/check.sh BUILD [--subproject] [--dist]" >&2; exit 2 ;;
  esac
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/consumer"
cp "$here/main.c" "$here/CMakeLists.txt" "$work/consumer"
cp "$here/meson.build.in" "$work/consumer/meson.build"

say() { printf '%s\n' "$*"; }

# ---- install, uninstall, install, move -----------------------------------------------------------

DESTDIR=$work/stage meson install -C "$build" --no-rebuild --quiet
prefix=$work/stage$(meson introspect "$build" --buildoptions |
  python3 -c 'import json, sys; print(next(o["value"] for o in json.load(sys.stdin)
                                           if o["name"] == "prefix"))')
cp -a "$prefix" "$work/elsewhere"
DESTDIR=$work/stage ninja -C "$build" uninstall >/dev/null
left=$(find "$work/stage" ! -type d 2>/dev/null || true) # of folders, Meson leaves the empty ones
[ -z "$left" ] || { say "left behind by uninstall: $left"; exit 1; }
say "installed, moved, uninstalled: nothing is left"

# ---- the sources are out of sight ----------------------------------------------------------------

# The rest runs in a shell that no longer sees them, if this user can do that.
if [ "$subproject" = --subproject ]; then
  mkdir -p "$work/sub/subprojects"
  cp "$work/consumer/main.c" "$work/consumer/meson.build" "$work/sub"
  git clone --quiet --bare "$source" "$work/clattn.git"
  sed -e "s|^url = .*|url = file://$work/clattn.git|" -e 's|^revision = .*|revision = HEAD|' \
    "$source/examples/clattn.wrap" >"$work/sub/subprojects/clattn.wrap"
fi
if [ "$dist" = --dist ]; then
  rm -rf "$build/meson-dist"
  meson dist -C "$build" --no-tests --formats gztar --allow-dirty >"$work/log" 2>&1 ||
    { tail -n 40 "$work/log"; exit 1; }
  mkdir "$work/dist" "$work/no-git"
  tar -x -z -C "$work/dist" --strip-components=1 -f "$(find "$build/meson-dist" -name '*.tar.gz')"
  printf '#!/bin/sh\nexit 127\n' >"$work/no-git/git"
  chmod +x "$work/no-git/git"
fi
kernels=$(meson introspect "$build" --buildoptions |
  python3 -c 'import json, sys; print(next(o["value"] for o in json.load(sys.stdin)
                                           if o["name"] == "kernels"))')
cat >"$work/build.sh" <<'END'
set -euo pipefail
work=$1 subproject=$2 dist=$3 installed=$4
cd /
unset CLATTN_KERNEL_DIR
consumer=$work/consumer
libdir=$(dirname "$(find "$work/elsewhere" -name libclattn.so | head -n 1)")
export PKG_CONFIG_PATH=$libdir/pkgconfig CLATTN_CACHE=0

run() { # run WHAT FROM PROGRAM [ENV...]: right numbers, by kernels of the moved folder, or by those
  # inside the library, or by either (FROM: files, embedded, any)
  local what=$1 from=$2 program=$3 kernels line
  shift 3
  if ! env "$@" timeout --foreground 120 "$program" >"$work/out" 2>"$work/log"; then
    printf '%s: failed\n' "$what"
    tail -n 20 "$work/out" "$work/log"
    exit 1
  fi
  kernels=$(grep -o 'read from .*' "$work/log" | sort -u || true)
  while read -r line; do
    case $from,$line in
      files,*" $work/elsewhere/"* | embedded,*"embedded copy"* | any,?*) ;;
      *,)
        [ -z "${CLATTN_TEST_EXPECT:-}" ] || {
          printf '%s: no kernel was read\n' "$what"
          exit 1
        }
        ;;
      *) printf '%s: not %s: %s\n' "$what" "$from" "$line"; exit 1 ;;
    esac
  done <<<"$kernels"
  printf '%s: %s; %s\n' "$what" "$(cat "$work/out")" "${kernels:-no kernel was needed}"
}

linked() { # linked static|shared PROGRAM: that it is
  local status=0
  ldd "$2" | grep 'libclattn\.so' >/dev/null || status=1
  [ "$1,$status" = static,1 ] || [ "$1,$status" = shared,0 ] ||
    { printf '%s: not linked %s\n' "$2" "$1"; exit 1; }
}

shared=LD_LIBRARY_PATH=$libdir${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
flags=(-std=c11 -Wall -Wextra -Werror)
# shellcheck disable=SC2046 # the flags are separate words
gcc "${flags[@]}" "$consumer/main.c" $(pkg-config --cflags --libs clattn) -lm -o "$work/shared"
linked shared "$work/shared"
run "pkg-config, shared" "$installed" "$work/shared" "$shared"
# shellcheck disable=SC2046
gcc "${flags[@]}" "$consumer/main.c" $(pkg-config --cflags clattn) -o "$work/static" \
  "$libdir/libclattn.a" -lm \
  $(pkg-config --static --libs clattn | tr ' ' '\n' | grep -vx -e -lclattn)
linked static "$work/static"
run "pkg-config, static" embedded "$work/static" NOTHING=

if [ -n "${CLATTN_TEST_EXPECT:-}" ] || command -v cmake >/dev/null; then
  cmake -S "$consumer" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$work/elsewhere" \
    -DWANT_VERSION="$(pkg-config --modversion clattn)" >"$work/log" 2>&1 &&
    cmake --build "$work/cmake" >>"$work/log" 2>&1 || { tail -n 40 "$work/log"; exit 1; }
  linked shared "$work/cmake/consumer_clattn"
  linked static "$work/cmake/consumer_clattn_static"
  run "CMake, shared" "$installed" "$work/cmake/consumer_clattn" NOTHING=
  run "CMake, static" embedded "$work/cmake/consumer_clattn_static" NOTHING=
  # Another version is not taken for this one.
  IFS=. read -r major minor _ < <(pkg-config --modversion clattn)
  mkdir -p "$work/version"
  printf '%s\n' 'cmake_minimum_required(VERSION 3.20)' 'project(version NONE)' \
    'find_package(clattn ${WANT_VERSION} REQUIRED CONFIG)' >"$work/version/CMakeLists.txt"
  for want in "$major.$((minor + 1))" "$((major + 1))"; do
    ! cmake -S "$work/version" -B "$work/version/build" -Dclattn_DIR="$libdir/cmake/clattn" \
      -DWANT_VERSION="$want" >"$work/log" 2>&1 || { printf 'CMake took %s\n' "$want"; exit 1; }
    grep -q 'version: ' "$work/log" || { tail -n 40 "$work/log"; exit 1; }
  done
  printf 'CMake refuses other versions\n'
fi

for kind in shared static; do
  prefer=$([ $kind = static ] && echo true || echo false)
  meson setup "$work/meson-$kind" "$consumer" -Dprefer_static="$prefer" >"$work/log" 2>&1 &&
    ninja -C "$work/meson-$kind" >>"$work/log" 2>&1 || { tail -n 40 "$work/log"; exit 1; }
  linked $kind "$work/meson-$kind/consumer"
  from=$([ $kind = static ] && echo embedded || echo "$installed")
  run "Meson, $kind" "$from" "$work/meson-$kind/consumer" "$shared"
done
if [ "$subproject" = --subproject ]; then
  unset PKG_CONFIG_PATH
  meson setup "$work/meson-sub" "$work/sub" -Dclattn:tests=disabled -Dclattn:tools=disabled \
    >"$work/log" 2>&1 && ninja -C "$work/meson-sub" >>"$work/log" 2>&1 ||
    { tail -n 40 "$work/log"; exit 1; }
  run "Meson, subproject" any "$work/meson-sub/consumer" NOTHING=
  # Everything can be had in a subproject.
  meson setup "$work/meson-all" "$work/sub" -Dclattn:tests=enabled -Dclattn:tools=enabled \
    -Dclattn:examples=enabled >"$work/log" 2>&1 || { tail -n 40 "$work/log"; exit 1; }
  printf 'Meson, subproject with tests and tools: set up\n'
fi

if [ "$dist" = --dist ]; then
  export PATH=$work/no-git:$PATH
  meson setup "$work/dist-build" "$work/dist" -Dwerror=true -Dtests=enabled -Dtools=enabled \
    -Dtest_widths=false >"$work/log" 2>&1 &&
    ninja -C "$work/dist-build" tools/clattn-{run,probe,bench,tune} >>"$work/log" 2>&1 &&
    meson test -C "$work/dist-build" --suite unit --suite header --suite style --suite tools \
      --no-suite timing \
      >>"$work/log" 2>&1 || { tail -n 40 "$work/log"; exit 1; }
  printf 'archive: %s\n' "$(grep '^Ok:' "$work/log")"
fi
END
if unshare -m true 2>/dev/null; then
  mkdir "$work/empty"
  # shellcheck disable=SC2016 # the inner shell expands them
  unshare -m bash -c 'mount --bind "$2/empty" "$1" && exec bash "$2/build.sh" "${@:2}"' \
    - "$source" "$work" "$subproject" "$dist" "$kernels"
else
  say "the sources stay in sight: hiding them takes root"
  bash "$work/build.sh" "$work" "$subproject" "$dist" "$kernels"
fi
