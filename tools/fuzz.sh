#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the fuzz targets of tests/fuzz under libFuzzer, Address- and UndefinedBehaviorSanitizer.
#
#   tools/fuzz.sh [--seconds N | --long] [TARGET...]
#
# Each target begins with its corpus and runs for N seconds (default 10) or, with --long, 20
# minutes. What it finds lies in BUILD_DIR/found (default: build/fuzz/found), and the exit status is
# 1. New inputs that reach more code are kept in BUILD_DIR/corpus, never in the tree; see
# tests/fuzz/README.md. Needs clang with its runtime libraries (tools/setup.sh test).
set -euo pipefail
cd "$(dirname "$0")/.."

all=(descriptor call tune_file cache_file npy options)
seconds=10
targets=()
while [ $# -gt 0 ]; do
  case "$1" in
    --seconds) seconds=${2:?--seconds needs a number}; shift ;;
    --long) seconds=1200 ;;
    -*) echo "usage: tools/fuzz.sh [--seconds N | --long] [TARGET...]" >&2; exit 2 ;;
    *) targets+=("$1") ;;
  esac
  shift
done
[ "${#targets[@]}" -gt 0 ] || targets=("${all[@]}")
for target in "${targets[@]}"; do
  [ -d "tests/fuzz/corpus/$target" ] || { echo "fuzz: no target $target: ${all[*]}" >&2; exit 2; }
done

mkdir -p "${BUILD_DIR:-build/fuzz}"
build=$(cd "${BUILD_DIR:-build/fuzz}" && pwd)
found=$build/found
mkdir -p "$found"
compiler=clang
command -v ccache >/dev/null && compiler="ccache clang"
if ! { [ -f "$build/build.ninja" ] ||
       CC=$compiler meson setup "$build" -Dfuzz=enabled -Dopenmp=disabled -Dtests=enabled \
         -Dtools=enabled -Db_lundef=false -Dc_args=-g1 --buildtype=debugoptimized; } \
     >"$build.log" 2>&1 ||
   ! ninja -C "$build" "${targets[@]/#/tests/fuzz/fuzz_}" >>"$build.log" 2>&1; then
  tail -n 40 "$build.log" >&2
  echo "fuzz: the build failed; all of its output is in $build.log" >&2
  exit 1
fi

# Files of the targets themselves are small and many.
[ -w /dev/shm ] && export TMPDIR=${TMPDIR:-/dev/shm}
finds=0
printf '%-12s %9s %8s %9s %6s\n' target inputs seconds branches finds
for target in "${targets[@]}"; do
  mkdir -p "$build/corpus/$target"
  log=$build/$target.log
  dict=()
  [ -f "tests/fuzz/$target.dict" ] && dict=("-dict=$PWD/tests/fuzz/$target.dict")
  status=0
  timeout $((seconds + 300)) "$build/tests/fuzz/fuzz_$target" \
    -max_total_time="$seconds" -print_final_stats=1 -timeout=20 -rss_limit_mb=2048 -max_len=2048 \
    -artifact_prefix="$found/$target-" ${dict[@]+"${dict[@]}"} \
    "$build/corpus/$target" "$PWD/tests/fuzz/corpus/$target" >"$log" 2>&1 || status=$?
  inputs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  took=$(sed -n 's/^Done .* in \([0-9]*\) second.*/\1/p' "$log")
  reached=$(sed -n 's/^#.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)
  bad=0
  if [ "$status" -ne 0 ]; then
    bad=1
    finds=$((finds + 1))
  fi
  printf '%-12s %9s %8s %9s %6s\n' "$target" "${inputs:-?}" "${took:-?}" "${reached:-?}" "$bad"
  if [ "$bad" -eq 1 ]; then
    grep -E 'ERROR|runtime error|\.c:[0-9]+:|Test unit written' "$log" | head -n 12 >&2 || true
    echo "fuzz: $target ended with status $status; its output is in $log" >&2
  fi
done
[ "$finds" -eq 0 ]
