#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that can be tested without a GPU, for hours: the steps of CI with their full selections
# on each device, and those that CI has no time for. Run whole before a release.
#
#   tools/ci_full.sh              all of it; what passed in an earlier run with the same sources is
#                                 not run again
#   tools/ci_full.sh STEP...      some of it; tools/test_all.sh has the names
#
# The last lines are a table of the steps, which is also in BUILD_DIR/summary.txt (default:
# build/full/summary.txt), and "N passed, N failed"; the exit status is 0 when none failed.
set -euo pipefail
cd "$(dirname "$0")/.."
BUILD_DIR=${BUILD_DIR:-build/full} exec tools/test_all.sh --full --resume "$@"
