#!/usr/bin/env bash
# Installs promtool, which checks the rules of Prometheus, as .tools/bin/promtool: that of the machine is linked,
# otherwise the one in Debian's package prometheus is unpacked. The package itself is not installed: it would start a
# system service.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tools=$(cd "$here/../.." && pwd)/.tools
PATH=${PATH//"$tools/bin:"/} # check the machine itself, not the results of an earlier run
# shellcheck source=infra/tools/apt.sh
source "$here/apt.sh"

fail() {
  echo "promtool: $*" >&2
  exit 1
}

if [ -x "$tools/bin/promtool" ]; then exit 0; fi
mkdir -p "$tools/bin"
if command -v flock >/dev/null; then # of two concurrent runs, the second finds everything installed
  exec 9>"$tools/lock"
  flock 9
  if [ -x "$tools/bin/promtool" ]; then exit 0; fi
fi

if found=$(command -v promtool); then
  ln -sfn "$found" "$tools/bin/promtool"
else
  echo "promtool: unpacking Debian's package prometheus"
  private_apt deb || fail "please install promtool (Debian's package prometheus)"
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  (cd "$work" && "${APT[@]}" download prometheus && dpkg -x prometheus_*.deb .)
  install -m 755 "$work/usr/bin/promtool" "$tools/bin/promtool"
fi
"$tools/bin/promtool" --version 2>&1 | sed -n '1s/^/promtool: /p'
