#!/usr/bin/env bash
# Installs prometheus, which tests run, and promtool, which checks its rules, in .tools/bin: those of the machine are
# linked, otherwise the ones in Debian's package prometheus are unpacked. The package itself is not installed: it would
# start a system service.
set -euo pipefail

here=$(CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tools=$(cd "$here/../.." && pwd)/.tools
PATH=${PATH//"$tools/bin:"/} # check the machine itself, not the results of an earlier run
# shellcheck source=infra/tools/apt.sh
source "$here/apt.sh"

fail() {
  echo "prometheus: $*" >&2
  exit 1
}

installed() {
  [ -x "$tools/bin/prometheus" ] && [ -x "$tools/bin/promtool" ]
}

if installed; then exit 0; fi
mkdir -p "$tools/bin"
if command -v flock >/dev/null; then # of two concurrent runs, the second finds everything installed
  exec 9>"$tools/lock"
  flock 9
  if installed; then exit 0; fi
fi

if server=$(command -v prometheus) && promtool=$(command -v promtool); then
  ln -sfn "$server" "$tools/bin/prometheus"
  ln -sfn "$promtool" "$tools/bin/promtool"
else
  echo "prometheus: unpacking Debian's package prometheus"
  private_apt deb || fail "please install prometheus and promtool (Debian's package prometheus)"
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  (cd "$work" && "${APT[@]}" download prometheus && dpkg -x prometheus_*.deb .)
  install -m 755 "$work/usr/bin/prometheus" "$work/usr/bin/promtool" "$tools/bin/"
fi
"$tools/bin/prometheus" --version 2>&1 | sed -n 's/^prometheus, version \([^ ]*\).*/prometheus: \1/p'
