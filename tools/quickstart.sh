#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a fresh Debian 12 to a result: installs what is needed, builds clattn, runs the attention of
# a real sentence encoder (tests/data/minilm) on the best device here, and shows the numbers beside
# the expected ones. Without a GPU driver the device is PoCL from Debian, or the CPU path.
#
# BUILD_DIR is the folder of builds, one of which is `quickstart` (default: build).
set -euo pipefail
cd "$(dirname "$0")/.."

if [ $# -gt 0 ]; then # --help, too: nothing is installed for it
  sed -n '3,7s/^# \{0,1\}//p' tools/quickstart.sh
  case $1 in -h | --help) exit 0 ;; *) exit 2 ;; esac
fi

build=${BUILD_DIR:-build}/quickstart
data=tests/data/minilm
tolerance=1e-5

tools/setup.sh run

echo "quickstart: building in $build"
mkdir -p "$build"
if ! { [ -f "$build/build.ninja" ] ||
       meson setup "$build" --buildtype=release -Dtests=disabled -Dtools=enabled; } \
     >"$build.log" 2>&1 ||
   ! ninja -C "$build" >>"$build.log" 2>&1; then
  tail -n 40 "$build.log" >&2
  echo "quickstart: the build failed; all of its output is in $build.log" >&2
  exit 1
fi

run() { # run OPTION...: the main job, compared with the expected output
  rm -f "$build/o.npy" "$build/lse.npy"
  "$build/tools/clattn-run" -q "$data/q.npy" -k "$data/k.npy" -v "$data/v.npy" \
    --mask "$data/mask.npy" -o "$build/o.npy" --lse "$build/lse.npy" \
    --compare "$data/o.npy" --tolerance "$tolerance" "$@"
}

echo "quickstart: attention over 4 sentences, 12 heads of 32 channels, padding masked"
status=0
run || status=$?
if [ "$status" -gt 128 ]; then
  # PoCL aborts the process where it can't read the processor's topology, as in some containers.
  echo "quickstart: the OpenCL driver ended the process ($status), taking the CPU path" >&2
  status=0
  run --device cpu || status=$?
fi
failed=$((status != 0))

for name in o lse; do
  [ -f "$build/$name.npy" ] || { failed=1; continue; }
  echo
  echo "$build/$name.npy beside $data/$name.npy"
  tools/show_npy.py "$build/$name.npy" "$data/$name.npy" --tolerance "$tolerance" || failed=1
done

echo
if [ "$failed" -ne 0 ]; then
  echo "quickstart: the result is NOT what was expected" >&2
  exit 1
fi
echo "quickstart: the result is what was expected"
echo "quickstart: the tools are in $build/tools; README.md goes on with \"In a program\""
