#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs tests of the CPU path under Valgrind's memcheck; each error is a failure.
#
#   tools/memcheck.sh BUILD          a small selection, for seconds
#   tools/memcheck.sh --long BUILD   the unit tests without OpenCL and the programs of the CPU path
#                                    but forks, long rows, and what looks at resident memory, which
#                                    is Valgrind's, for a quarter of an hour
#
# BUILD is a build folder with tests, without sanitizers.
set -euo pipefail

long=no
if [ "${1:-}" = --long ]; then
  long=yes
  shift
fi
if [ $# -ne 1 ] || [ ! -f "$1/build.ninja" ]; then
  echo "usage: tools/memcheck.sh [--long] BUILD" >&2
  exit 2
fi
build=$(cd "$1" && pwd)
memcheck=(valgrind --quiet --error-exitcode=99 --num-callers=24)
export CLATTN_CACHE=0 CLATTN_TUNE=0 OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive

# A program that decides by memory that it never wrote, to see that it is noticed.
control=$build/memcheck-control
cat >"$control.c" <<'END'
#include <stdio.h>
#include <stdlib.h>
int main(void)
{
    float *x = malloc(16 * sizeof *x);
    if (x)
        puts(x[7] > 1.0f ? "more" : "less");
    free(x);
    return 0;
}
END
"${CC:-cc}" -O0 "$control.c" -o "$control"
status=0
"${memcheck[@]}" "$control" >"$control.log" 2>&1 || status=$?
if [ "$status" -ne 99 ]; then
  cat "$control.log" >&2
  echo "memcheck does not notice what it is there for: exit status $status" >&2
  exit 1
fi

export CLATTN_TEST_SMALL=1 # the same ways as in larger selections, which take hours
failed=0
run() { # run PROGRAM ARGUMENT...: one program of the tests
  status=0
  "${memcheck[@]}" "$build/tests/$1" "${@:2}" >"$control.log" 2>&1 || status=$?
  if [ "$status" -eq 0 ]; then
    echo "passed: $*"
  else
    grep -E '==|FAILED|ERROR' "$control.log" | tail -n 60
    echo "FAILED: $* (exit status $status)"
    failed=$((failed + 1))
  fi
}

if [ "$long" = no ]; then
  run test_features cpu
  run test_append cpu
  run test_threads cpu
  run test_edges cpu
else
  cd "$build"
  # host_features and long rows take more than an hour each, and go the ways of the others.
  unit='host|host_dot|plan|problem|call_features|tile|ladder|ref|half|quantize'
  unit+='|softmax_merge|struct_size|log|os'
  mapfile -t programs < <(meson test --no-rebuild --suite unit --suite device --list 2>/dev/null |
    sed 's|.* / ||' | grep -Ev '^(fork|long|steady) cpu$' |
    grep -E " cpu\$|^($unit)\$")
  meson test --no-rebuild --num-processes 1 --timeout-multiplier 40 --logbase memcheck \
    --wrapper "${memcheck[*]}" "${programs[@]}" || failed=1
fi
[ "$failed" -eq 0 ]
