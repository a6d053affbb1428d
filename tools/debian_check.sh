#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the Debian packages of packaging/debian from a clean copy of the tree, has lintian look at
# them, installs them into a root of their own, builds and runs programs against them, and removes
# them again.
#
#   tools/debian_check.sh [DIR]    DIR keeps the packages and logs; default is a temporary folder
#
# Needs dpkg-dev, debhelper, lintian, fakeroot and what packaging/debian/control names
# (tools/setup.sh full), and root's rights for dpkg; CMake where it is there. Nothing of the machine
# itself is changed.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
keep=${1:-$work/keep}
mkdir -p "$keep"
keep=$(cd "$keep" && pwd)
say() { printf '%4d s  %s\n' "$SECONDS" "$*"; }
fail() {
  say "FAILED: $1"
  [ $# -lt 2 ] || tail -n 40 "$2" | sed 's/^/    | /'
  exit 1
}

# ---- the source --------------------------------------------------------------------------------

version=$(tools/version.py)
packaged=$(dpkg-parsechangelog -l packaging/debian/changelog -S Version)
[ "${packaged%-*}" = "$version" ] ||
  fail "packaging/debian/changelog says $packaged, include/clattn/base.h $version"
source=$work/clattn-$version
mkdir "$source"
if [ -e .git ]; then
  git ls-files -z --cached --others --exclude-standard --deduplicate |
    tar --null -c --ignore-failed-read -T - 2>/dev/null | tar -x -C "$source"
else
  tar -c --exclude='./build*' . | tar -x -C "$source"
fi
cp -r "$source/packaging/debian" "$source/debian"

# ---- building ----------------------------------------------------------------------------------

# debhelper gives the build a home folder of its own.
if command -v ccache >/dev/null; then
  CCACHE_DIR=${CCACHE_DIR:-$(ccache -k cache_dir)}
  export CCACHE_DIR
fi
(cd "$source" && unset CFLAGS LDFLAGS && dpkg-checkbuilddeps) >"$keep/depends.log" 2>&1 ||
  fail "packages that the build needs are missing" "$keep/depends.log"
(cd "$source" && dpkg-buildpackage -us -uc -b) >"$keep/build.log" 2>&1 ||
  fail "dpkg-buildpackage" "$keep/build.log"
cp "$work"/*.deb "$work"/*.changes "$keep"
say "built: $(cd "$work" && echo *.deb)"

# There is no request for this package in Debian's bug tracker that it could close.
lintian --fail-on error,warning --suppress-tags initial-upload-closes-no-bugs \
  "$work"/*.changes >"$keep/lintian.log" 2>&1 ||
  fail "lintian" "$keep/lintian.log"
say "lintian: $(grep -c . "$keep/lintian.log" || true) lines"

# ---- installing --------------------------------------------------------------------------------

root=$work/root
mkdir -p "$root/var/lib/dpkg/info" "$root/var/lib/dpkg/updates"
touch "$root/var/lib/dpkg/status"
packages=()
for file in "$work"/*.deb; do
  [[ $file == *-dbgsym_* ]] || packages+=("$file")
done
# What they depend on is not in there: programs use the machine's.
dpkg --root="$root" --log=/dev/null --force-depends \
  -i "${packages[@]}" >"$keep/install.log" 2>&1 || fail "dpkg -i" "$keep/install.log"
libdir=/usr/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)
[ -f "$root$libdir/libclattn.so.0" ] || fail "there is no libclattn.so.0"
[ -f "$root/usr/share/clattn/cl/fused_group.cl" ] || fail "there are no kernels"
for page in README.md CONTRIBUTING.md docs/guide.md docs/probe.schema.json examples/clattn.wrap \
  examples/minilm/README.md; do
  [ -f "$root/usr/share/doc/libclattn-dev/$page" ] || fail "there is no $page, which pages link to"
done
say "installed into a root of its own"

env ROOT="$root" PKG_CONFIG_LIBDIR="$root$libdir/pkgconfig" PKG_CONFIG_SYSROOT_DIR="$root" \
  LD_LIBRARY_PATH="$root$libdir" "$source/debian/tests/library" >"$keep/library.log" 2>&1 ||
  fail "programs with the library" "$keep/library.log"
env PATH="$root/usr/bin:$PATH" LD_LIBRARY_PATH="$root$libdir" \
  "$source/debian/tests/tools" >"$keep/tools.log" 2>&1 || fail "the tools" "$keep/tools.log"
with_cmake() {
  cmake -S "$source/tests/consumers" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$root/usr" \
    -DWANT_VERSION="$version" &&
    cmake --build "$work/cmake" && LD_LIBRARY_PATH=$root$libdir "$work/cmake/consumer_clattn"
}
! command -v cmake >/dev/null || with_cmake >"$keep/cmake.log" 2>&1 ||
  fail "a program with CMake" "$keep/cmake.log"
say "programs run with them"

# ---- removing ----------------------------------------------------------------------------------

dpkg --root="$root" --log=/dev/null --force-depends \
  -P clattn-tools libclattn-dev libclattn0 libclattn-common >>"$keep/install.log" 2>&1 ||
  fail "dpkg -P" "$keep/install.log"
left=$(find "$root" ! -type d ! -path "$root/var/lib/dpkg/*")
[ -z "$left" ] || fail "left behind by dpkg -P: $left"
say "removed: nothing is left"
