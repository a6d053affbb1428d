#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Follows the README in a Debian 12 that has nothing but its minimal system: the first command,
# a program against the installed library, the Python module.
#
#   tools/fresh_check.sh [DIR]    DIR is where the system is made; default is a temporary folder
#
# Needs root, debootstrap, and the archives of Debian and PyPI.
set -euo pipefail
cd "$(dirname "$0")/.."

work=${1:-$(mktemp -d)}
root=$work/root
unmount() {
  local at
  for at in sys proc dev/shm dev; do
    ! mountpoint -q "$root/$at" || umount "$root/$at"
  done
}
trap 'unmount; [ -n "${KEEP:-}" ] || rm -rf --one-file-system "$root"' EXIT

say() {
  printf '%4d s  %s\n' "$SECONDS" "$*"
}

inside() { # inside WHAT SCRIPT: runs it there in the tree, and says how long it took
  local begin=$SECONDS
  printf 'cd /srv/clattn\n%s\n' "$2" >"$root/srv/step.sh"
  if ! env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/srv \
    PIP_CERT=/srv/ca.crt SSL_CERT_FILE=/srv/ca.crt REQUESTS_CA_BUNDLE=/srv/ca.crt \
    timeout --foreground 1200 chroot "$root" bash -euo pipefail /srv/step.sh \
    >"$work/log" 2>&1 </dev/null; then
    say "FAILED: $1"
    tail -n 40 "$work/log"
    exit 1
  fi
  say "$1: $((SECONDS - begin)) s"
}

mkdir -p "$work"
debootstrap --variant=minbase bookworm "$root" >"$work/log" 2>&1 || {
  tail -n 20 "$work/log"
  exit 1
}
cp /etc/resolv.conf /etc/hosts "$root/etc/"
# The certificates of this machine, whose network may have some of its own.
cp /etc/ssl/certs/ca-certificates.crt "$root/srv/ca.crt"
mount --bind /dev "$root/dev"
mount --bind /dev/shm "$root/dev/shm"
mount -t proc proc "$root/proc"
mount --bind /sys "$root/sys"
mkdir "$root/srv/clattn"
git ls-files -z | tar --null -c -T - | tar -x -C "$root/srv/clattn"
say "a fresh system"

inside "tools/quickstart.sh" 'tools/quickstart.sh'
# shellcheck disable=SC2016 # expanded inside
inside "a program" '
awk "/^\`\`\`c\$/ { on = (++seen == 1); next } /^\`\`\`\$/ { on = 0 } on" README.md >program.c
meson install -C build/quickstart && ldconfig
cc program.c -o program $(pkg-config --cflags --libs clattn) && ./program | grep -F "1.5 15, 2 20"
cd / && clattn-probe'
inside "the Python module" '
apt-get install -y -qq --no-install-recommends python3-venv
python3 -m venv /srv/env && /srv/env/bin/pip install .
cd / && /srv/env/bin/python -c "
import clattn, numpy as np
q, k, v = np.random.default_rng(0).standard_normal((3, 1, 8, 100, 64), np.float32)
out = clattn.attention(q, k, v, causal=True)
assert np.allclose(out[:, :, 0], v[:, :, 0], atol=1e-6)"'
inside "uninstalled" '
ninja -C build/quickstart uninstall
! find /usr/local -name "*clattn*" | grep .'
