# shellcheck shell=bash
# Sourced by setup.sh, clients.sh and demo/fetch.sh, which set tools.
#
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
