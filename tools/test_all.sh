#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what the tests need (Debian 12, as root or through sudo) and runs all of them: with gcc
# and clang, on every OpenCL device that a machine without a GPU can have, and without OpenCL.
#
#   tools/test_all.sh                      everything
#   tools/test_all.sh [--no-install] STEP... only these steps, see `steps` below
#
# A device that can't be found is a failure. BUILD_DIR says where to build (default: build in the
# repository). The last line reads "N passed, N failed"; the exit status is 0 when none failed.
set -euo pipefail
cd "$(dirname "$0")/.."

steps=(build host pocl pocl-cbs intel llvmpipe oclgrind no-opencl sanitize library install minilm)

# The Intel CPU runtime comes from PyPI; nothing of it is linked.
intel_packages=(intel-opencl-rt==2026.2.0 intel-cmplr-lib-rt==2026.2.0)

# A line of any report of Oclgrind: races, invalid accesses, diverging barriers.
oclgrind_report='data race at |Invalid (read|write) of size|divergence detected|^\s*Entity: '

mkdir -p "${BUILD_DIR:-build}"
build=$(cd "${BUILD_DIR:-build}" && pwd)
data=tests/data/minilm
log=$build/step.log

# ---- counting ----------------------------------------------------------------------------------

passed=0
failed=0
skipped=0
table=()

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

run_step() { # run_step NAME: calls step_NAME and keeps a row for the table
  local name=$1 start=$SECONDS was=("$passed" "$failed" "$skipped")
  say "== $name"
  "step_${name//-/_}"
  local row=($((passed - was[0])) $((failed - was[1])) $((skipped - was[2])))
  table+=("$(printf '%-10s %8d %8d %8d %8ds' "$name" "${row[@]}" $((SECONDS - start)))")
  say "   $name: ${row[0]} passed, ${row[1]} failed, ${row[2]} skipped, $((SECONDS - start)) s"
}

# ---- building ----------------------------------------------------------------------------------

declare -A built=()

compile() { # compile NAME: sets up $build/NAME once and builds it
  local dir=$build/$1 options=(-Dwerror=true -Dtests=enabled -Dtools=enabled) compiler=gcc
  case $1 in
    gcc) ;;
    # Assertions are on in this build, and off in the others, which are what users get.
    clang) compiler=clang options+=(--buildtype=debugoptimized) ;;
    no-opencl) options+=(-Dopencl=disabled) ;;
    sanitize)
      options+=(-Dopencl=disabled --buildtype=debugoptimized "-Db_sanitize=address,undefined")
      ;;
  esac
  if [ ! -f "$dir/build.ninja" ]; then
    rm -rf "$dir"
    CC=$compiler meson setup "$dir" "${options[@]}" || return 1
  fi
  ninja -C "$dir" -k 0
}

need() { # need NAME: true when that build is good; the first call builds it, which is one test
  local before=$failed
  if [ -z "${built[$1]:-}" ]; then
    check "build $1" compile "$1"
    built[$1]=$((failed == before))
  fi
  [ "${built[$1]}" -eq 1 ]
}

# ---- devices -----------------------------------------------------------------------------------

device_env=()

use_device() { # use_device NAME: sets device_env so that only this OpenCL device is seen
  device_env=("CLATTN_TEST_EXPECT=$1")
  case $1 in
    pocl)
      device_env+=(OCL_ICD_VENDORS=/etc/OpenCL/vendors/pocl.icd "POCL_CACHE_DIR=$build/cache/pocl")
      ;;
    pocl-cbs)
      device_env=(CLATTN_TEST_EXPECT=pocl OCL_ICD_VENDORS=/etc/OpenCL/vendors/pocl.icd
                  "POCL_CACHE_DIR=$build/cache/pocl-cbs" POCL_WORK_GROUP_METHOD=cbs)
      ;;
    intel)
      device_env+=("OCL_ICD_VENDORS=$build/intel/vendors"
                   "LD_LIBRARY_PATH=$build/intel/venv/lib")
      ;;
    llvmpipe)
      device_env+=(OCL_ICD_VENDORS=/etc/OpenCL/vendors/rusticl.icd RUSTICL_ENABLE=llvmpipe
                   "MESA_SHADER_CACHE_DIR=$build/cache/mesa")
      ;;
    oclgrind)
      # As an ICD: the `oclgrind` command preloads its own OpenCL, which a program that opens the
      # loader by name goes past.
      device_env+=("OCL_ICD_VENDORS=$build/oclgrind" OCLGRIND_DATA_RACES=1 CLATTN_TEST_SMALL=1)
      mkdir -p "$build/oclgrind"
      dpkg -L oclgrind | grep '/liboclgrind-rt-icd\.so$' >"$build/oclgrind/oclgrind.icd"
      ;;
  esac
  mkdir -p "$build/cache/pocl" "$build/cache/pocl-cbs" "$build/cache/mesa"
}

install_intel() { # a virtual environment of its own, made anew when the versions change
  local dir=$build/intel
  if [ "$(cat "$dir/installed" 2>/dev/null)" != "${intel_packages[*]}" ]; then
    rm -rf "$dir"
    mkdir -p "$dir/vendors"
    python3 -m venv "$dir/venv"
    "$dir/venv/bin/pip" install -q --disable-pip-version-check "${intel_packages[@]}"
    printf '%s\n' "${intel_packages[*]}" >"$dir/installed"
  fi
  printf '%s\n' "$dir/venv/lib/libintelocl.so" >"$dir/vendors/intel.icd"
  [ -f "$dir/venv/lib/libintelocl.so" ]
}

intel_job=

have_intel() { # waits for the installation that began at the start
  [ -n "$intel_job" ] || return 0
  check "install ${intel_packages[*]}" wait "$intel_job"
  [ ! -s "$build/intel.log" ] || sed 's/^/  pip: /' "$build/intel.log"
  intel_job=
}

# ---- suites ------------------------------------------------------------------------------------

suites() { # suites BUILD RUN SECONDS [--forbid REGEX] SUITE...: meson suites under device_env
  local dir=$build/$1 run=$2 limit=$3 forbid=() names=() status=0 counts name
  shift 3
  if [ "$1" = --forbid ]; then
    forbid=("$1" "$2")
    shift 2
  fi
  for name in "$@"; do
    names+=(--suite "$name")
  done
  rm -f "$dir/meson-logs/$run.json"
  env "${device_env[@]}" timeout -k 30 "$limit" meson test -C "$dir" --no-rebuild \
    --logbase "$run" "${names[@]}" >"$log" 2>&1 </dev/null || status=$?
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

# ---- the steps ---------------------------------------------------------------------------------

step_build() {
  need gcc || true
  need clang || true
}

step_host() {
  use_device pocl
  ! need gcc || suites gcc host 600 unit header style tools
  ! need clang || suites clang host 300 unit
}

step_pocl() {
  use_device pocl
  ! need gcc || suites gcc pocl 900 device
}

step_pocl_cbs() {
  use_device pocl-cbs
  ! need gcc || suites gcc pocl-cbs 900 device
}

step_intel() {
  have_intel
  use_device intel
  ! need gcc || suites gcc intel 900 device
}

step_llvmpipe() {
  use_device llvmpipe
  ! need gcc || suites gcc llvmpipe 900 device
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
  use_device oclgrind
  check "a data race is reported" race_is_reported
  ! need gcc || suites gcc oclgrind 900 --forbid "$oclgrind_report" device
}

step_no_opencl() {
  device_env=()
  ! need no-opencl || suites no-opencl no-opencl 600 unit header tools device
}

step_sanitize() {
  device_env=(UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1)
  ! need sanitize || suites sanitize sanitize 600 unit tools device
}

# Only the C library, its maths, threads of OpenMP and the program loader may be linked.
links_nothing_else() {
  local needed
  needed=$(readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
  printf '%s\n' "$needed"
  ! grep -Ev '^(libc\.so\.|libm\.so\.|libgomp\.so\.|libomp\.so\.|ld-linux)' <<<"$needed"
}

exports_only() { # exports_only REGEX NM-ARGUMENT... FILE: all defined symbols fit
  local pattern=$1 names
  shift
  names=$(nm --defined-only --extern-only --format=posix "$@" | awk 'NF > 2 { print $1 }')
  [ -n "$names" ] && ! grep -Ev "$pattern" <<<"$names"
}

step_library() {
  local name
  for name in gcc clang no-opencl; do
    need "$name" || continue
    check "$name: linked libraries" links_nothing_else "$build/$name/libclattn.so"
    check "$name: exported symbols" exports_only '^clattn_' --dynamic "$build/$name/libclattn.so"
    check "$name: names in the archive" exports_only '^(clattn|cla)_' "$build/$name/libclattn.a"
  done
}

readme_example() { # readme_example N: the N-th C program of the README, against what was installed
  local source=$build/stage/example$1.c
  awk -v n="$1" '/^```c$/ { on = (++seen == n); next } /^```$/ { on = 0 } on' README.md >"$source"
  [ -s "$source" ] || return 1
  local flags
  flags=$(pkg-config --cflags --libs clattn)
  # shellcheck disable=SC2086 # the flags are separate words
  gcc -std=c11 -Wall -Wextra -Wpedantic -Werror "$source" $flags -lm -o "${source%.c}" &&
    env "${device_env[@]}" LD_LIBRARY_PATH="$libdir" timeout 60 "${source%.c}"
}

step_install() {
  need gcc || return 0
  local stage=$build/stage/root libdir
  rm -rf "$build/stage"
  mkdir -p "$build/stage"
  check "meson install" env DESTDIR="$stage" meson install -C "$build/gcc" --no-rebuild --quiet
  libdir=$(dirname "$(find "$stage" -name libclattn.so | head -n 1)")
  export PKG_CONFIG_PATH=$libdir/pkgconfig PKG_CONFIG_SYSROOT_DIR=$stage
  use_device pocl
  local n
  for n in $(seq "$(grep -c '^```c$' README.md)"); do
    check "C program $n of the README" readme_example "$n"
  done
  unset PKG_CONFIG_PATH PKG_CONFIG_SYSROOT_DIR
}

minilm() { # minilm WHAT OPTION...: the real input through clattn-run, to 1e-5
  local what=$1 out=$build/minilm
  shift
  mkdir -p "$out"
  rm -f "$out"/*.npy
  check "minilm on $what" env "${device_env[@]}" timeout 300 "$build/gcc/tools/clattn-run" "$@" \
    -q "$data/q.npy" -k "$data/k.npy" -v "$data/v.npy" --mask "$data/mask.npy" \
    -o "$out/o.npy" --lse "$out/lse.npy" --compare "$data/o.npy" --tolerance 1e-5
  check "minilm on $what: log-sum-exp" tools/show_npy.py "$out/lse.npy" "$data/lse.npy"
}

step_minilm() {
  need gcc || return 0
  have_intel
  local device part kernel
  for device in pocl intel llvmpipe; do
    use_device "$device"
    case $device in
      pocl) part=portable ;;
      *) part=$device ;;
    esac
    check "clattn-probe on $device" env "${device_env[@]}" timeout 300 \
      "$build/gcc/tools/clattn-probe"
    for kernel in group vector; do
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
  case " --no-install ${steps[*]} " in
    *" $argument "*) ;;
    *)
      say "usage: tools/test_all.sh [--no-install] [STEP...], steps: ${steps[*]}" >&2
      exit 2
      ;;
  esac
  if [ "$argument" = --no-install ]; then
    install=no
  else
    chosen+=("$argument")
  fi
done
[ "${#chosen[@]}" -gt 0 ] || chosen=("${steps[@]}")

# What the caller's environment says about devices must not change what is tested.
unset CLATTN_DEVICE CLATTN_KERNEL_DIR CLATTN_CACHE_DIR CLATTN_TUNE_FILE CLATTN_LOG
unset OCL_ICD_VENDORS OCL_ICD_FILENAMES RUSTICL_ENABLE POCL_WORK_GROUP_METHOD LD_LIBRARY_PATH
# Test programs run side by side: threads that wait must not take the cores from those that work.
export OMP_WAIT_POLICY=passive

[ "$install" = no ] || tools/setup.sh test
case " ${chosen[*]} " in
  *" intel "* | *" minilm "*)
    install_intel >"$build/intel.log" 2>&1 </dev/null &
    intel_job=$!
    ;;
esac

for step in "${chosen[@]}"; do
  run_step "$step"
done

say
say "$(printf '%-10s %8s %8s %8s %9s' step passed failed skipped time)"
printf '%s\n' "${table[@]}"
say "all of it took $SECONDS s"
if [ "$skipped" -gt 0 ]; then
  say "$passed passed, $failed failed, $skipped skipped"
else
  say "$passed passed, $failed failed"
fi
[ "$failed" -eq 0 ]
