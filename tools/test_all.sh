#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what the tests need (Debian 12, as root or through sudo) and runs all of them: with gcc
# and clang, on every OpenCL device that a machine without a GPU can have, and without OpenCL.
#
#   tools/test_all.sh                   all of them, within 25 minutes on 2 cores
#   tools/test_all.sh --full            wider selections of cases on each device, and further steps,
#                                       for hours: tools/ci_full.sh
#   tools/test_all.sh [OPTION...] STEP...
#                                       only these steps, see `steps` below, and their builds
#   --no-install                        what is missing is not installed
#   --resume                            steps that passed in this folder, with the same options and
#                                       sources, are not run again, but counted
#
# A device that can't be found is a failure. BUILD_DIR says where to build (default: build in the
# repository). The last lines are a table of the steps, which is also in BUILD_DIR/summary.txt, and
# "N passed, N failed"; the exit status is 0 when none failed.
set -euo pipefail
cd "$(dirname "$0")/.."

# Long ones first, since two run at a time; each makes the builds that it needs.
steps=(intel sanitize pocl oclgrind llvmpipe host fuzz gpu_compile pocl-cbs no-opencl minilm
       install python)
# With --full only, or by their names.
full_steps=({random,combined,dims}-{pocl,intel,llvmpipe} random threads failures packages cross
            fresh)

# The Intel CPU runtime comes from PyPI; nothing of it is linked.
intel_packages=(intel-opencl-rt==2026.2.0 intel-cmplr-lib-rt==2026.2.0)

# A line of any report of Oclgrind: races, invalid accesses, diverging barriers.
oclgrind_report='data race at |Invalid (read|write) of size|divergence detected|^\s*Entity: '

mkdir -p "${BUILD_DIR:-build}"
build=$(cd "${BUILD_DIR:-build}" && pwd)
data=tests/data/minilm
log=$build/step.log

# ---- counting ----------------------------------------------------------------------------------

# A step runs in a subshell with counters of its own, so that two of them can run at once: compiling
# kernels, which most of the time goes into, takes one core.
passed=0
failed=0
skipped=0
full=no   # yes: the wider selections
resume=no # yes: what has passed is not run again

say() {
  printf '%s\n' "$*"
}

fail() { # fail WHAT [FILE]: one failed test, with the end of its output
  failed=$((failed + 1))
  say "  FAILED: $1"
  [ $# -lt 2 ] || tail -n 40 "$2" | sed 's/^/    | /'
}

check() { # check WHAT COMMAND...: one test; its output is shown when it fails
  local what=$1
  shift
  if "$@" >"$log" 2>&1 </dev/null; then
    passed=$((passed + 1))
  else
    fail "$what" "$log"
  fi
}

run_step() { # run_step NAME &: leaves steps/NAME.out and steps/NAME.counts
  step=$1
  rm -f "$build/steps/$step.counts" "$build/steps/$step.passed"
  passed=0
  failed=0
  skipped=0
  SECONDS=0
  exec >"$build/steps/$step.out" 2>&1 </dev/null
  log=$build/steps/$step.log
  trap 'echo "$passed $failed $skipped $SECONDS" >"$build/steps/$step.counts"' EXIT
  case $step in
    random-* | combined-* | dims-*) "${step%-*}_on" "${step#*-}" ;;
    *) "step_${step//-/_}" ;;
  esac
}

finish_step() { # finish_step NAME STATUS: shows what the step said and takes its counts
  local counts
  cat "$build/steps/$1.out"
  # A step that was killed left no counts.
  read -ra counts < <(cat "$build/steps/$1.counts" 2>/dev/null || echo 0 0 0 0)
  if [ "$2" -ne 0 ]; then
    counts[1]=$((counts[1] + 1))
    say "  FAILED: the step ended with exit status $2"
  fi
  [ "${counts[1]}" -gt 0 ] || printf '%s\n' "$sources" >"$build/steps/$1.passed"
  passed=$((passed + counts[0]))
  failed=$((failed + counts[1]))
  skipped=$((skipped + counts[2]))
  table+=("$(printf '%-17s %8d %8d %8d %8ds' "$1" "${counts[@]}")")
  say "== $1: ${counts[0]} passed, ${counts[1]} failed, ${counts[2]} skipped, ${counts[3]} s"
}

run_steps() { # run_steps JOBS NAME...: at most JOBS at once
  local jobs=$1 pid status running=()
  shift
  while [ $# -gt 0 ] || [ "${#running[@]}" -gt 0 ]; do
    while [ $# -gt 0 ] && [ "${#running[@]}" -lt "$jobs" ]; do
      if [ "$resume" = yes ] && [ "$(cat "$build/steps/$1.passed" 2>/dev/null)" = "$sources" ]; then
        say "== $1: passed before"
        finish_step "$1" 0
        shift
        continue
      fi
      say "== $1: started"
      run_step "$1" &
      running[$!]=$1
      shift
    done
    [ "${#running[@]}" -gt 0 ] || break
    status=0
    wait -n -p pid "${!running[@]}" || status=$?
    finish_step "${running[$pid]}" "$status"
    unset "running[$pid]"
  done
}

# ---- building ----------------------------------------------------------------------------------

compile() { # compile NAME: sets up $build/NAME once and builds it
  local dir=$build/$1 options=(-Dwerror=true -Dtests=enabled -Dtools=enabled) compiler=gcc
  local targets=()
  case $1 in
    # What is made where its tools are must not be missing here.
    gcc)
      options+=(-Dexamples=enabled -Dman=enabled -Ddocs=enabled -Dcompletions=enabled
                -Dopenmp=enabled)
      ;;
    # Assertions are on here, and off in gcc and no-opencl, which are what users get.
    # The code is what counts in these two, not its speed.
    clang)
      compiler=clang
      options+=(--buildtype=debugoptimized -Doptimization=1 -Dtest_widths=false)
      ;;
    no-opencl) options+=(-Dopencl=disabled -Doptimization=1 -Dtest_widths=false) ;;
    sanitize)
      # Lines are enough for a report; to follow variables, too, takes as long as all the rest. At
      # this level gcc doubts the length of texts that it can follow at the others.
      options+=(--buildtype=debugoptimized -Doptimization=1 "-Db_sanitize=address,undefined"
                "-Dc_args=-g1 -Wno-format-truncation")
      # The vector widths that tests add take the same ways through the code.
      [ "$full" = yes ] || options+=(-Dtest_widths=false)
      ;;
    threads)
      # A lock that OpenMP takes is none that this sanitizer knows.
      compiler=clang
      options=(-Dwerror=true -Dtests=enabled -Dtools=disabled -Dtest_widths=false -Dopenmp=disabled
               --buildtype=debugoptimized -Doptimization=1 -Db_sanitize=thread -Db_lundef=false)
      targets=(tests/test_threads)
      ;;
  esac
  rm -f "$build/$1.built"
  # Meson keeps the options that a folder was made with.
  if [ ! -f "$dir/build.ninja" ] ||
    [ "$(cat "$build/$1.options" 2>/dev/null)" != "${options[*]}" ]; then
    rm -rf "$dir"
    printf '%s\n' "${options[*]}" >"$build/$1.options"
    CC=$compiler meson setup "$dir" "${options[@]}" || return 1
  fi
  ninja -C "$dir" -j "$(nproc)" --quiet -k 0 "${targets[@]}" && touch "$build/$1.built"
}

have() { # have NAME: makes that build, once in a run; without it the step has failed
  exec 8>"$build/$1.lock"
  flock 8
  [ -f "$build/$1.tried" ] || check "build $1" compile "$1"
  touch "$build/$1.tried"
  exec 8>&-
  [ -f "$build/$1.built" ] || { fail "there is no build $1"; return 1; }
}

programs_of() { # programs_of BUILD SUITE,... GREP-ARGUMENT...: names of their programs
  local dir=$build/$1 suites
  IFS=, read -ra suites <<<"$2"
  shift 2
  meson test -C "$dir" --no-rebuild --list "${suites[@]/#/--suite=}" 2>/dev/null |
    sed 's|.* / ||' | sort -u | grep -E "$@"
}

# ---- devices -----------------------------------------------------------------------------------

device_env=()
forbid=()

use_device() { # use_device NAME: sets device_env so that only this OpenCL device is seen
  device_env=("CLATTN_TEST_EXPECT=$1")
  case $1 in
    pocl)
      # It takes three seconds to compile a kernel, so the full selection is Intel's; the group
      # shape is llvmpipe's.
      device_env+=(OCL_ICD_VENDORS=/etc/OpenCL/vendors/pocl.icd "POCL_CACHE_DIR=$build/cache/pocl")
      [ "$full" = yes ] ||
        device_env+=(CLATTN_TEST_MEDIUM=1 CLATTN_TEST_PREFERRED=1 CLATTN_TEST_SHARE=1)
      ;;
    pocl-cbs)
      # Another way to turn barriers into loops. PoCL 3.1 does not know this name and takes its
      # "auto", which is not its default either.
      # The kernels are those of the step pocl, so a few variants of them will do.
      device_env=(CLATTN_TEST_EXPECT=pocl CLATTN_TEST_SMALL=1
                  CLATTN_TEST_SHARE=9 OCL_ICD_VENDORS=/etc/OpenCL/vendors/pocl.icd
                  "POCL_CACHE_DIR=$build/cache/pocl-cbs" POCL_WORK_GROUP_METHOD=cbs)
      ;;
    intel)
      device_env+=("OCL_ICD_VENDORS=$build/intel/vendors"
                   "LD_LIBRARY_PATH=$build/intel/venv/lib")
      [ "$full" = yes ] ||
        device_env+=(CLATTN_TEST_MEDIUM=1 CLATTN_TEST_PREFERRED=1 CLATTN_TEST_SHARE=3)
      ;;
    llvmpipe)
      device_env+=(OCL_ICD_VENDORS=/etc/OpenCL/vendors/rusticl.icd RUSTICL_ENABLE=llvmpipe
                   "MESA_SHADER_CACHE_DIR=$build/cache/mesa" CLATTN_TEST_RANDOM=20)
      ;;
    oclgrind)
      # As an ICD: the `oclgrind` command preloads its own OpenCL, which a program that opens the
      # loader by name goes past.
      device_env+=("OCL_ICD_VENDORS=$build/oclgrind" OCLGRIND_DATA_RACES=1 CLATTN_TEST_SMALL=1)
      mkdir -p "$build/oclgrind"
      dpkg -L oclgrind | grep '/liboclgrind-rt-icd\.so$' >"$build/oclgrind/oclgrind.icd"
      ;;
  esac
}

install_intel() ( # a virtual environment of its own, made anew when the versions change
  dir=$build/intel
  exec 9>"$build/intel.lock"
  flock 9 # two steps need it
  if [ "$(cat "$dir/installed" 2>/dev/null)" != "${intel_packages[*]}" ]; then
    rm -rf "$dir"
    mkdir -p "$dir/vendors"
    python3 -m venv "$dir/venv"
    "$dir/venv/bin/pip" install -q --disable-pip-version-check "${intel_packages[@]}"
    printf '%s\n' "${intel_packages[*]}" >"$dir/installed"
  fi
  printf '%s\n' "$dir/venv/lib/libintelocl.so" >"$dir/vendors/intel.icd"
  [ -f "$dir/venv/lib/libintelocl.so" ]
)

# ---- suites ------------------------------------------------------------------------------------

suites() { # suites BUILD RUN SECONDS ARGUMENT...: `meson test` with these, under device_env
  local dir=$build/$1 run=$2 limit=$3 status=0 counts
  shift 3
  rm -f "$dir/meson-logs/$run.json"
  env "${device_env[@]}" timeout --foreground -k 30 "$limit" \
    meson test -C "$dir" --no-rebuild --logbase "$run" "$@" >"$log" 2>&1 </dev/null || status=$?
  counts=$(tools/test_summary.py "$dir/meson-logs/$run.json" "${forbid[@]}" 2>"$log.failures")
  cat "$log.failures"
  read -ra counts <<<"$counts"
  passed=$((passed + counts[0]))
  failed=$((failed + counts[1]))
  skipped=$((skipped + counts[2]))
  if [ "$status" -ne 0 ] && [ "${counts[1]}" -eq 0 ]; then
    fail "meson test $run: exit status $status (124: over $limit s)" "$log"
  fi
}

# Programs named "... cpu" are for the CPU path, which the step `host` has.
device_suite() { # device_suite NAME SECONDS [BUT]: the suite on one device, without programs BUT
  local programs
  use_device "$1"
  have gcc || return 0
  mapfile -t programs < <(programs_of gcc device -v " cpu( dot)?\$|^(${3:-})\$")
  suites gcc "$1" "$2" "${programs[@]}"
}

slow_device_suite() { # slow_device_suite NAME SECONDS WIDE [BUT]: likewise, but only the programs
  # WIDE run the device's own selection, the others the small one; with --full all their own
  local programs
  if [ "$full" = yes ]; then
    device_suite "$1" 14400
    return
  fi
  use_device "$1"
  have gcc || return 0
  mapfile -t programs < <(programs_of gcc device "^($3)\$")
  [ "${#programs[@]}" -eq 0 ] || suites gcc "$1" "$2" "${programs[@]}"
  mapfile -t programs < <(programs_of gcc device -v " cpu( dot)?\$|^($3|${4:-})\$")
  device_env+=(CLATTN_TEST_SMALL=1)
  suites gcc "$1-small" "$2" "${programs[@]}"
}

# ---- the steps ---------------------------------------------------------------------------------

step_host() {
  use_device pocl # the tools are tested on it here
  local programs but='banks|run_features'
  # What takes a minute: the tools' features run on the CPU path in the step no-opencl, banks of
  # local memory are looked at with --full.
  [ "$full" = no ] || but=none
  if have gcc; then
    mapfile -t programs < <(programs_of gcc unit,header,style,tools -v "^($but)\$")
    # Dumps of the interface, exported names and hardening are looked at, whatever is installed.
    local program
    for program in "binary interface" exports hardening reference; do
      printf '%s\n' "${programs[@]}" | grep -x -e "$program" >/dev/null ||
        fail "there is no test $program"
    done
    check "abidw is there" abidw --version
    suites gcc host 900 "${programs[@]}"
    mapfile -t programs < <(programs_of gcc device ' cpu( dot)?$')
    suites gcc host-device 300 "${programs[@]}"
  fi
  # CI compiles with clang in the steps fuzz and threads.
  # Long computations are the same in both, and so are headers and scripts.
  if [ "$full" = yes ] && have clang; then
    mapfile -t programs < <(programs_of clang unit,header -v \
      '^(banks|killed|host|host_features|binary interface.*)$')
    suites clang host-clang 300 --suite unit --suite header "${programs[@]}"
  fi
}

# Programs about what the host does, whichever device it has.
host_programs='programs|program_cache|opencl_(api|softmax|kv)|failures|liars|enqueue'

# PoCL takes three seconds to compile a kernel, llvmpipe as long to run one. What is left out on one
# of the three devices runs on another, or with --full.
step_pocl() {
  # Long rows are the Intel runtime's, refusals and failing calls llvmpipe's.
  local but='long|agreement|allocations|ceilings|invalid|refusals|refused_memory|family'
  slow_device_suite pocl 1200 none "($but|feature_identities) opencl|failures|liars|enqueue"
}

step_pocl_cbs() {
  # What the host refuses and keeps does not depend on how kernels are compiled, and programs about
  # results have no kernels of their own.
  local host='invalid|refusals|refused_memory|ceilings'
  local results='agreement|long|offsets|cases|minilm|split_kv|features|feature_identities|softmax'
  results+='|family|append|merge|rotary|warm_up|tuned|allocations'
  device_suite pocl-cbs 1200 \
    "$host_programs|subgroups|unfused|($host|$results) opencl"
}

step_intel() {
  check "install ${intel_packages[*]}" install_intel
  slow_device_suite intel 1200 "(features|long) opencl" \
    "(allocations|agreement|invalid|refusals|feature_identities) opencl|failures|liars"
  # Each feature on the other algorithms, too.
  [ "$full" = yes ] || return 0
  device_env+=(CLATTN_TEST_ALGOS=split_kv,two_loop,fused_kv_outer,unfused)
  ! have gcc || suites gcc intel-algos 7200 "features opencl"
}

# Of the tools the step minilm runs two on each device; their own tests are the host's work, where
# they meet PoCL.
step_llvmpipe() {
  slow_device_suite llvmpipe 1200 none "(warm_up|ceilings) opencl"
}

race_is_reported() { # a kernel with a race, to see that reports are recognised
  local dir=$build/oclgrind/control
  mkdir -p "$dir"
  printf '__kernel void race(__global int *a) { a[0] = (int)get_global_id(0); }\n' >"$dir/race.cl"
  printf 'race.cl\nrace\n4 1 1\n4 1 1\n<size=4 fill=0>\n' >"$dir/race.sim"
  (cd "$dir" && oclgrind-kernel --data-races race.sim) >"$dir/log" 2>&1 || true
  cat "$dir/log"
  grep -Eq "$oclgrind_report" "$dir/log"
}

step_oclgrind() {
  check "a data race is reported" race_is_reported
  have gcc || return 0
  use_device oclgrind
  [ "$full" = no ] || device_env+=(CLATTN_TEST_PAIRS=1)
  # The test of the test: kernels with a fault put into them are reported, and so not forbidden.
  suites gcc kernel-faults 900 --suite simulator "kernel faults"
  # Every kernel on tiny problems. What host and results are about is other devices' work.
  forbid=(--forbid "$oclgrind_report")
  suites gcc simulator 1800 --suite simulator simulator "simulator, not written yet in fused_group"
  [ "$full" = yes ] || device_env+=(CLATTN_TEST_SHARE=3)
  suites gcc traffic 600 --suite traffic
  [ "$full" = yes ] || return 0
  suites gcc unwritten 1800 --suite simulator "simulator, not written yet in fused_vector" \
    "simulator, not written yet in two_loop_group" "simulator, not written yet in two_loop_vector"
  check "every barrier and bound is needed" env "${device_env[@]}" timeout --foreground 3600 \
    tests/tools/test_kernel_faults.py --simulator "$build/gcc/tests/test_simulator" \
    --kernels cl --long
  # Oclgrind has one kernel running at a time and waits for ever where a user event is set later.
  # The programs about what the host refuses and decides have nothing for it to find.
  # Nor have those whose kernels other programs run, and whose problems are large.
  local host='identities|invalid|refusals|refused_memory|ceilings|tuned|allocations'
  local large='agreement|long|offsets|minilm|cases|fused|edges|feature_identities|range'
  device_suite oclgrind 7200 "$host_programs|subgroups|unfused|($host|$large) opencl"
}

step_no_opencl() {
  have no-opencl || return 0
  # The CPU path has no other code here: its long computations are the step host's.
  local programs but='host|host_features|(long|fused|family|softmax|features|stress|range) cpu'
  [ "$full" = no ] || but=none
  mapfile -t programs < <(programs_of no-opencl unit,header,tools,device -v "^($but|bench)\$")
  suites no-opencl no-opencl 600 "${programs[@]}"
}

step_sanitize() {
  local ubsan=UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
  device_env=("$ubsan" "OCL_ICD_VENDORS=$build/no-vendors")
  mkdir -p "$build/no-vendors"
  have sanitize || return 0
  # What times something takes minutes here, banks of local memory are arithmetic, and the device
  # suite goes the ways of host_features.
  local programs but='banks|bench|options|trace|host_features'
  [ "$full" = no ] || but=bench
  mapfile -t programs < <(programs_of sanitize unit,tools -v "^($but)\$")
  suites sanitize sanitize 2400 --timeout-multiplier 4 "${programs[@]}"
  # The programs left out look at numbers, along the ways that the others go.
  mapfile -t programs < <(programs_of sanitize device ' cpu( dot)?$' |
    grep -Ev '^(fused|family) cpu$')
  suites sanitize sanitize-device 600 "${programs[@]}"
  # What a driver is part of, on one of them.
  use_device pocl
  device_env+=("$ubsan" CLATTN_TEST_SMALL=1)
  if [ "$full" = yes ]; then
    mapfile -t programs < <(programs_of sanitize device -v ' cpu( dot)?$')
  else
    programs=("exit opencl" "fork opencl" "threads opencl" "steady opencl")
  fi
  suites sanitize sanitize-pocl 7200 "${programs[@]}"
}

# Eight threads under ThreadSanitizer, and the CPU path under Valgrind.
step_threads() {
  use_device pocl
  ! have threads || suites threads threads 300 "threads cpu" "threads opencl"
  if [ "$full" = yes ]; then # without the widths that tests add: the same ways, and hours less
    ! have no-opencl || check "memcheck" tools/memcheck.sh --long "$build/no-opencl"
  else
    ! have gcc || check "memcheck" tools/memcheck.sh "$build/gcc"
  fi
}

step_fuzz() {
  local options=(--seconds 3)
  [ "$full" = no ] || options=(--long)
  check "fuzz" env "BUILD_DIR=$build/fuzz" tools/fuzz.sh "${options[@]}"
}

# ---- with --full only --------------------------------------------------------------------------

figures() { # figures WHAT COMMAND...: a check whose last figures are kept: steps/STEP.figures
  check "$@"
  printf '== %s\n' "$1" >>"$build/steps/$step.figures"
  grep -E ' of its bound|problems|pairs|worst|tolerated|dimensions' "$log" | tail -n 40 \
    >>"$build/steps/$step.figures" || true
}

# How much of it: compiling a kernel takes Intel's runtime a fraction of a second, others 1 to 3 s.
random_device() { # random_device NAME: what the steps of random problems on one device begin with
  rm -f "$build/steps/$step.figures"
  problems=100 combinations=40 dims_algos=fused
  if [ "$1" = intel ]; then
    problems=300 combinations=100 dims_algos=fused,split_kv,two_loop,fused_kv_outer,unfused
    check "install ${intel_packages[*]}" install_intel
  fi
  use_device "$1"
  have gcc
}

# Random problems of every feature on every algorithm; a failure prints its seed.
step_random() {
  random_device cpu || return 0
  figures "random problems on the CPU path" env CLATTN_TEST_RANDOM=5000 "CLATTN_TEST_SEED=$RANDOM" \
    timeout --foreground 7200 "$build/gcc/tests/test_stress" cpu
  figures "random combinations on the CPU path" env COUNT=100 WHERE=cpu \
    timeout --foreground 7200 tools/test_long.sh "$build/gcc"
}

random_on() { # random_on DEVICE
  random_device "$1" || return 0
  figures "random problems on $1" env "${device_env[@]}" "CLATTN_TEST_RANDOM=$problems" \
    "CLATTN_TEST_SEED=$RANDOM" timeout --foreground 14400 "$build/gcc/tests/test_stress" opencl
  figures "ends of the range on $1" env "${device_env[@]}" CLATTN_TEST_FORMATS=1 \
    CLATTN_TEST_ALGOS=fused,two_loop,fused_kv_outer,split_kv,unfused \
    timeout --foreground 14400 "$build/gcc/tests/test_range" opencl
}

combined_on() { # combined_on DEVICE: several features at a time
  random_device "$1" || return 0
  figures "random combinations on $1" env "${device_env[@]}" "COUNT=$combinations" DIMS=0 \
    WHERE=opencl timeout --foreground 14400 tools/test_long.sh "$build/gcc"
}

dims_on() { # dims_on DEVICE: every third head dimension, another third each time
  random_device "$1" || return 0
  figures "head dimensions on $1" env "${device_env[@]}" COUNT=0 DIMS=3 WHERE=opencl \
    "ALGOS=$dims_algos" timeout --foreground 14400 tools/test_long.sh "$build/gcc"
}

# Every single call of OpenCL and every allocation fails.
step_failures() {
  use_device llvmpipe
  device_env+=(CLATTN_TEST_EVERY=1)
  have gcc || return 0
  suites gcc failures 14400 failures "allocations cpu" "allocations opencl"
  # As many calls of each kind as the CPU path gets in CI.
  use_device pocl
  device_env+=(CLATTN_TEST_CALLS=10000)
  suites gcc steady 7200 "steady opencl"
}

step_packages() {
  check "Debian packages" timeout --foreground 3600 tools/debian_check.sh
}

# For other machines and systems, run by emulators.
step_cross() {
  local target # Android's NDK is nothing that can be installed unasked
  for target in aarch64 armhf i386 s390x mingw zig; do
    check "cross build of $target" timeout --foreground 3600 \
      tools/cross_check.sh "$build/cross" "$target"
  done
}

# The README in a system that has nothing else.
step_fresh() {
  check "a fresh Debian" timeout --foreground 3600 tools/fresh_check.sh "$build/fresh"
}

# ---- the installed library ---------------------------------------------------------------------

step_install() {
  have gcc || return 0
  local stage=$build/stage/root
  rm -rf "$build/stage"
  mkdir -p "$build/stage"
  check "meson install" env DESTDIR="$stage" meson install -C "$build/gcc" --no-rebuild --quiet
  use_device pocl
  check "what is wrong on a page is found" python3 -B tests/docs/check_blocks.py --self-test \
    --prefix "$stage"
  check "the code of every page" env "${device_env[@]}" timeout --foreground 600 \
    python3 -B tests/docs/check_blocks.py --prefix "$stage"
  local options=()
  [ "$full" = no ] || options=(--subproject --dist)
  check "consumers of the installed library" env "${device_env[@]}" \
    tests/consumers/check.sh "$build/gcc" "${options[@]}"
  local before=$passed
  suites gcc examples 600 --suite examples
  # Those of C++, of OpenCL and of MPI are left out where something is not found.
  [ $((passed - before)) -eq 9 ] || fail "$((passed - before)) of 9 examples ran"
}

# The Python module as pip builds it.
step_python() {
  use_device pocl
  local options=()
  [ "$full" = no ] || options=(--long)
  check "the Python module" env "${device_env[@]}" timeout --foreground 3600 \
    tools/python_check.sh "${options[@]}" "$build/python"
  have gcc || return 0
  check "meson install" env DESTDIR="$build/python/stage" \
    meson install -C "$build/gcc" --no-rebuild --quiet
  check "the README's Python" env "${device_env[@]}" timeout --foreground 300 \
    python3 -B tests/docs/check_blocks.py --prefix "$build/python/stage" --only README.md \
    --python "$build/python/venv/bin/python"
}

# ---- the real input ----------------------------------------------------------------------------

minilm() { # minilm WHAT OPTION...: the real input through clattn-run, to 1e-5
  local what=$1 out=$build/minilm
  shift
  mkdir -p "$out"
  rm -f "$out"/*.npy
  check "minilm on $what" \
    env "${device_env[@]}" timeout --foreground 300 "$build/gcc/tools/clattn-run" "$@" \
    -q "$data/q.npy" -k "$data/k.npy" -v "$data/v.npy" --mask "$data/mask.npy" \
    -o "$out/o.npy" --lse "$out/lse.npy" --compare "$data/o.npy" --tolerance 1e-5
  check "minilm on $what: log-sum-exp" tools/show_npy.py "$out/lse.npy" "$data/lse.npy"
}

# The kernels for GPUs, by compilers that are fetched and kept under the build folder.
step_gpu_compile() {
  have gcc || return 0
  local options=(--targets sm_75,gfx1100,pvc) status=0
  [ "$full" = no ] || options=(--require nvidia,amd,intel)
  timeout --foreground 900 tools/gpu_compile_check --build "$build/gcc" \
    --tools "$build/gpu-compilers" --jobs 2 "${options[@]}" >"$log" 2>&1 </dev/null || status=$?
  # The last lines say what could not be had.
  tail -n 4 "$log"
  case $status in
    0) passed=$((passed + 1)) ;;
    77) skipped=$((skipped + 1)) ;; # no compiler could be fetched
    *) fail "kernels compile for GPUs" "$log" ;;
  esac
}

step_minilm() {
  have gcc || return 0
  check "install ${intel_packages[*]}" install_intel
  local device part
  for device in pocl intel llvmpipe; do
    use_device "$device"
    case $device in
      pocl) part=portable ;;
      *) part=$device ;;
    esac
    check "clattn-probe on $device" env "${device_env[@]}" timeout --foreground 300 \
      "$build/gcc/tools/clattn-probe"
    for kernel in group vector; do
      # That driver is refused the vector shape.
      [ "$device $kernel" != "llvmpipe vector" ] || continue
      minilm "$device, $kernel shape" --device "$part" --algo fused --kernel "$kernel"
    done
  done
  device_env=()
  minilm "the CPU path" --device cpu
  minilm "the reference" --device cpu --algo reference
}

# ---- main --------------------------------------------------------------------------------------

install=yes
chosen=()
for argument in "$@"; do
  case " --no-install --full --resume ${steps[*]} ${full_steps[*]} " in
    *" $argument "*) ;;
    *)
      say "usage: tools/test_all.sh [--full] [--no-install] [--resume] [STEP...]" >&2
      say "steps: ${steps[*]}; for hours: ${full_steps[*]}" >&2
      exit 2
      ;;
  esac
  case $argument in
    --no-install) install=no ;;
    --full) full=yes ;;
    --resume) resume=yes ;;
    *) chosen+=("$argument") ;;
  esac
done
if [ "${#chosen[@]}" -eq 0 ]; then
  chosen=("${steps[@]}")
  [ "$full" = no ] || chosen+=("${full_steps[@]}")
fi
# What a step that passed has passed with.
sources="full=$full $(find . -type f ! -path './build*' ! -path './.git/*' \
  ! -path '*/__pycache__/*' -print0 | LC_ALL=C sort -z | xargs -0 cat | cksum)"

# What the caller's environment says about devices must not change what is tested.
unset CLATTN_DEVICE CLATTN_KERNEL_DIR CLATTN_CACHE_DIR CLATTN_TUNE_FILE CLATTN_LOG
# Examples and tools use the program cache, in a folder of this build.
export XDG_CACHE_HOME=$build/cache/xdg
unset CLATTN_CACHE CLATTN_CACHE_MAX_MIB CLATTN_TUNE CLATTN_MAX_LOCAL_BYTES CLATTN_MAX_GROUP
unset OCL_ICD_VENDORS OCL_ICD_FILENAMES RUSTICL_ENABLE POCL_WORK_GROUP_METHOD LD_LIBRARY_PATH
# Test programs run side by side: threads that wait must not take the cores from those that work.
export OMP_WAIT_POLICY=passive

# Steps that run in the background do not see Ctrl-C.
trap 'trap "" TERM; kill -TERM 0; exit 130' INT

if [ "$install" = yes ]; then
  case $full in
    yes) tools/setup.sh full ;;
    no) tools/setup.sh test ;;
  esac
fi
mkdir -p "$build/steps" "$build/cache/pocl" "$build/cache/pocl-cbs" "$build/cache/mesa"
rm -f "$build"/*.tried
table=()
run_steps 2 "${chosen[@]}"

{
  say "$(printf '%-17s %8s %8s %8s %9s' step passed failed skipped time)"
  printf '%s\n' "${table[@]}"
  say "all of it took $SECONDS s"
  if [ "$skipped" -gt 0 ]; then
    say "$passed passed, $failed failed, $skipped skipped"
  else
    say "$passed passed, $failed failed"
  fi
} >"$build/summary.txt"
say
cat "$build/summary.txt"
[ "$failed" -eq 0 ]
