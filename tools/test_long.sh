#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Many random combinations of features, and every head dimension from 1 to 256, on the CPU path and
# on every OpenCL device that the loader finds, for runs by hand: some hours where a compiler is
# slow.
#
#   tools/test_long.sh [BUILD_DIR]     default: build
#
#   COUNT=500       random combinations on each device; 0 = none
#   SEED=N          of the first one; default: the time
#   DIMS=1          every DIMS-th dimension; 0 = none
#   WHERE=cpu       or opencl; default: both
#   ALGOS=...       algorithms, see CLATTN_TEST_ALGOS; default: all of them
#
# A case that fails is printed with its seed; SEED=<it> COUNT=1 DIMS=0 runs it alone.
set -euo pipefail
cd "$(dirname "$0")/.."

program=${1:-build}/tests/test_features
seed=${SEED:-$(date +%s)}
export CLATTN_TEST_RANDOM=${COUNT:-500} CLATTN_TEST_SEED=$seed CLATTN_TEST_DIMS=${DIMS:-1}
export CLATTN_TEST_ALGOS=${ALGOS:-fused,split_kv,two_loop,fused_kv_outer,unfused,host,reference}

if [ ! -x "$program" ]; then
  echo "$program is not there: ninja -C ${1:-build} tests/test_features" >&2
  exit 2
fi
echo "seed $seed"
status=0
selected=()
[ "$CLATTN_TEST_RANDOM" -eq 0 ] || selected+=('*: random combinations')
[ "$CLATTN_TEST_DIMS" -eq 0 ] || selected+=('*: every head dimension')
for tests in "${selected[@]}"; do
  for where in ${WHERE:-cpu opencl}; do
    code=0
    "$program" "$where" "$tests" || code=$?
    # 77: no OpenCL device
    [ "$code" -eq 0 ] || [ "$code" -eq 77 ] || status=1
  done
done
[ "$status" -eq 0 ] && echo "all passed" || echo "some failed, seed $seed"
exit "$status"
