# shellcheck shell=bash
# Sourced by the scripts of this folder and demo/fetch.sh, which set tools.

# apt_install PACKAGE...: installs them on this machine, as root. Scripts of two checkouts wait for each other.
apt_install() {
  local lock=/run/lock/forebay-tools
  [ -w /run/lock ] || lock=/dev/null
  (
    if [ $lock != /dev/null ] && command -v flock >/dev/null; then flock 8; fi
    apt_update || exit 1
    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends -o DPkg::Lock::Timeout=300 "$@" \
      8>&- >/dev/null
  ) 8>$lock
}

# Updates the package lists of this machine. While another process updates them, apt-get does not wait but fails.
apt_update() {
  local said attempt
  for attempt in {1..60}; do
    if said=$(LC_ALL=C apt-get -qq update 8>&- 2>&1); then return; fi
    case $said in *'Could not get lock'*) ;; *) break ;; esac
    if [ "$attempt" = 1 ]; then echo "tools: waiting for another process that uses apt" >&2; fi
    sleep 5
  done
  echo "$said" >&2
  return 1
}

# private_apt TYPE (deb or deb-src): sets APT to an apt-get command line with separate package lists,
# which come from the distribution's entries in this machine's apt sources. It does not need root and
# does not change the system's apt.
private_apt() {
  # shellcheck disable=SC2154  # tools: see above
  local type=$1 state=$tools/apt/$1 file
  command -v apt-get >/dev/null || return 1
  mkdir -p "$state/sources" "$state/lists/partial" "$state/cache/archives/partial"
  for file in /etc/apt/sources.list.d/*.sources; do
    if grep -qsE '(debian|ubuntu)-archive-keyring' "$file"; then
      sed "s/^Types:.*/Types: $type/" "$file" >"$state/sources/${file##*/}"
    fi
  done
  if [ -f /etc/apt/sources.list ]; then
    sed -n "s/^deb /$type /p" /etc/apt/sources.list >"$state/sources/system.list"
  fi
  APT=(
    apt-get -qq
    -o Dir::Etc::sourcelist=/dev/null
    -o "Dir::Etc::sourceparts=$state/sources"
    -o "Dir::State::lists=$state/lists"
    -o "Dir::Cache=$state/cache"
    -o Acquire::GzipIndexes=true
    -o APT::Sandbox::User=root
  )
  "${APT[@]}" update
}
