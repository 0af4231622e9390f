#!/usr/bin/env bash
# usage: clients.sh [--all]
# Installs the clients that tests/e2e runs, the sources that they build, and what tests/system needs besides setup.sh into
# .tools/: always Bazel, moto (S3), Azurite (Azure blobs), schemathesis and openapi-spec-validator (the HTTP API), Chromium
# with chromedriver and axe-core (the pages), oidc-provider (OpenID Connect), and what gives Debian's Bazel TLS; with --all also Lighthouse, and Bazel 2.1.0 and BuildStream if they are
# available (their tests report it if they are not).
set -euo pipefail

BAZEL_PACKAGE=@bazel/bazel-linux_x64@2.1.0 # the newest in the registry: an old release, to test a second version
BUILDSTREAM_PYTHON=3.10
AZURITE_PACKAGE=azurite@3.35.0
AZURITE_DATE=2026-11-20 # its dependencies are those of this day: the package does not pin them
AXE_PACKAGE=axe-core@4.14.1
OPENID_PACKAGE=oidc-provider@9.13.3 # certified by the OpenID Foundation
OPENID_DATE=2026-11-20
LIGHTHOUSE_PACKAGE=lighthouse@12.8.2 # the last one for Node.js before 22.19
LIGHTHOUSE_DATE=2026-11-20
SOURCES=(zlib bzip2 lua)

here=$(CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tools=$(cd "$here/../.." && pwd)/.tools
PATH=${PATH//"$tools/bin:"/} # check the machine itself, not the results of an earlier run
# shellcheck source=infra/tools/apt.sh
source "$here/apt.sh"

case ${1:-} in
  '') all= wanted=(bazel moto_server azurite-blob schemathesis openapi-spec-validator chromium chromedriver openid-provider) ;;
  --all)
    all=1
    wanted=(bazel moto_server azurite-blob schemathesis openapi-spec-validator chromium chromedriver openid-provider
      lighthouse bazel-2.1 bst)
    ;;
  *) echo "usage: clients.sh [--all]" >&2 && exit 2 ;;
esac

fail() {
  echo "clients: $*" >&2
  exit 1
}

# A client that --all cannot install is recorded as absent, so that later runs do not try again.
is_complete() {
  local name
  for name in "${wanted[@]}"; do
    [ -x "$tools/bin/$name" ] || [ -f "$tools/absent/$name" ] || return 1
  done
  for name in "${SOURCES[@]}"; do [ -f "$tools/sources/$name.tar.gz" ] || return 1; done
  [ -f "$tools/lib/bazel/libnetty_tcnative.so" ] || [ -f "$tools/absent/tls-of-bazel" ] || return 1
  [ -f "$tools/axe/axe.min.js" ] || return 1
  [ "$(cat "$tools/clients.stamp$all" 2>/dev/null)" = "$stamp" ]
}

absent() {
  echo "clients: $1 is not installed, its tests are skipped: $2"
  mkdir -p "$tools/absent"
  echo "$2" >"$tools/absent/$1"
}

# Bazel 4 from Debian and its derivatives: later versions cannot build without rules from the network.
find_bazel() {
  local found
  found=$(command -v bazel-4) || return 1
  ln -sfn "$found" "$tools/bin/bazel"
}

install_bazel() {
  if find_bazel; then return; fi
  if [ "$(id -u)" = 0 ] && has_bazel_package; then
    echo "clients: installing bazel-bootstrap"
    apt_install bazel-bootstrap
    find_bazel || fail "the package bazel-bootstrap does not contain bazel-4"
  else
    install_old_bazel || fail "please install Bazel 4 (Debian's bazel-bootstrap) or npm"
    ln -sfn bazel-2.1 "$tools/bin/bazel"
  fi
}

# With it, Debian's Bazel has TLS: its Java classes are in the package of Bazel, and look for it under this name.
install_tls_of_bazel() {
  local work
  private_apt deb || return 1
  work=$(mktemp -d)
  (cd "$work" && "${APT[@]}" download libnetty-tcnative-jni libapr1 && for deb in ./*.deb; do dpkg -x "$deb" .; done) || return 1
  install -D -m 644 "$work"/usr/lib/*/jni/libnetty-tcnative.so "$tools/lib/bazel/libnetty_tcnative.so"
  install -D -m 644 "$work"/usr/lib/*/libapr-1.so.0 "$tools/lib/bazel/libapr-1.so.0"
  rm -rf "$work"
}

has_bazel_package() {
  command -v apt-get >/dev/null || return 1
  apt_update && [ -n "$(apt-cache show bazel-bootstrap 2>/dev/null)" ]
}

install_old_bazel() {
  local work
  if [ -x "$tools/bin/bazel-2.1" ]; then return; fi
  command -v npm >/dev/null || return 1
  work=$(mktemp -d)
  (cd "$work" && npm pack --silent "$BAZEL_PACKAGE" >/dev/null && tar -xzf ./*.tgz) || return 1
  install -m 755 "$work"/package/bazel-*-linux-x86_64 "$tools/bin/bazel-2.1"
  rm -rf "$work"
}

# wrapper NAME COMMAND...: .tools/bin/NAME runs the command, followed by the arguments of NAME.
wrapper() {
  local path=$tools/bin/$1
  shift
  rm -f "$path"
  printf '#!%s\nexec %s "$@"\n' "$BASH" "${*@Q}" >"$path"
  chmod +x "$path"
}

# python_packages NAME: installs the packages of NAME.txt into .tools/NAME.
python_packages() {
  rm -rf "${tools:?}/$1"
  "$tools/bin/python" -m pip install -q --disable-pip-version-check --no-warn-script-location \
    --root-user-action=ignore --target "$tools/$1" -r "$here/$1.txt"
}

# An S3 server, without the packages of moto's other services.
install_moto() {
  local start="import sys; sys.path.insert(0, sys.argv.pop(1)); from moto.server import main; main()"
  python_packages moto || return 1
  wrapper moto_server "$tools/bin/python" -c "$start" "$tools/moto"
}

# What tests the HTTP API by its OpenAPI document.
install_openapi() {
  local start="import sys; sys.path.insert(0, sys.argv.pop(1)); from"
  python_packages openapi || return 1
  wrapper schemathesis "$tools/bin/python" -c "$start schemathesis.cli import schemathesis; schemathesis()" "$tools/openapi"
  wrapper openapi-spec-validator "$tools/bin/python" -c "$start openapi_spec_validator.__main__ import main; main()" \
    "$tools/openapi"
}

install_azurite() {
  local root=$tools/azurite
  find_node || return 1
  npm_package "$root" "$AZURITE_DATE" "$AZURITE_PACKAGE" || return 1
  find "$root" -name '*.map' -delete
  wrapper azurite-blob "$(command -v node)" "$root/node_modules/azurite/dist/src/blob/main.js"
}

# usage: npm_package FOLDER DATE PACKAGE
# Installs it with what it needs, as it was at that date.
npm_package() {
  rm -rf "$1"
  npm install --silent --prefix "$1" --before "$2" --omit=dev --omit=optional --ignore-scripts --no-audit --no-fund "$3" >/dev/null
}

# npm fails without a cache: where the home is read-only, it is in .tools.
choose_npm_cache() {
  local usual=${npm_config_cache:-${HOME:-/nonexistent}/.npm}
  mkdir -p "$usual" 2>/dev/null || true
  [ -w "$usual" ] || export npm_config_cache=$tools/npm
}

find_node() {
  if command -v node >/dev/null && command -v npm >/dev/null; then return; fi
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 1
  echo "clients: installing nodejs npm"
  apt_install nodejs npm
}

# A browser and its driver, of the same version.
install_chromium() {
  local browser driver
  if ! find_chromium && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "clients: installing chromium chromium-driver"
    apt_install chromium chromium-driver fonts-dejavu-core
  fi
  find_chromium || return 1
  ln -sfn "$browser" "$tools/bin/chromium"
  ln -sfn "$driver" "$tools/bin/chromedriver"
}

# Sets browser and driver of install_chromium.
find_chromium() {
  browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || return 1
  driver=$(command -v chromedriver) || return 1
}

# What checks that pages are accessible: one file.
install_axe() {
  local work
  find_node || return 1
  work=$(mktemp -d)
  (cd "$work" && npm pack --silent "$AXE_PACKAGE" >/dev/null && tar -xzf ./*.tgz) || return 1
  install -D -m 644 "$work/package/axe.min.js" "$tools/axe/axe.min.js"
  rm -rf "$work"
}

# A provider with which people sign in, and the program that starts it for a test.
install_openid() {
  local root=$tools/oidc
  find_node || return 1
  npm_package "$root" "$OPENID_DATE" "$OPENID_PACKAGE" || return 1
  wrapper openid-provider "$(command -v node)" "$here/openid_provider.mjs" "$root"
}

install_lighthouse() {
  local root=$tools/lighthouse
  npm_package "$root" "$LIGHTHOUSE_DATE" "$LIGHTHOUSE_PACKAGE" || return 1
  wrapper lighthouse "$(command -v node)" "$root/node_modules/lighthouse/cli/index.js"
}

# A Python that BuildStream supports: that of the machine, or a newer one from its version manager.
find_python() {
  local candidate
  for candidate in python3 python3.13 python3.12 python3.11 python3.10 "${HOME:-}"/.pyenv/versions/3.1*/bin/python3; do
    if "$candidate" -c "import sys, venv, ensurepip; sys.exit(sys.version_info < (${BUILDSTREAM_PYTHON/./, }))" \
      2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  return 1
}

# BuildStream, and a static busybox, which is the complete system that its actions see.
install_buildstream() {
  local python
  python=$(find_python) || return 1
  private_apt deb && unpack_busybox || return 1
  rm -rf "$tools/buildstream"
  "$python" -m venv "$tools/buildstream"
  "$tools/buildstream/bin/python" -m pip install -qq --disable-pip-version-check -r "$here/buildstream.txt" || return 1
  ln -sfn "$tools/buildstream/bin/bst" "$tools/bin/bst"
}

unpack_busybox() {
  local work
  work=$(mktemp -d)
  (cd "$work" && "${APT[@]}" download busybox-static && dpkg -x busybox-static_*.deb .) || return 1
  install -m 755 "$work/bin/busybox" "$tools/bin/busybox-static"
  rm -rf "$work"
}

stamp=$(echo "$tools" | cat - "$here"/{clients.sh,apt.sh,buildstream.txt,moto.txt,openapi.txt} | sha256sum)
if is_complete; then exit 0; fi
mkdir -p "$tools/bin"
if command -v flock >/dev/null; then # of two concurrent runs, the second finds everything installed
  exec 9>"$tools/lock"
  flock 9
  if is_complete; then exit 0; fi
fi

choose_npm_cache
# From here on it is incomplete until all is installed.
rm -rf "$tools"/clients.stamp* "$tools/absent"
for name in "${SOURCES[@]}"; do "$here/../demo/fetch.sh" "$name"; done
install_bazel
install_tls_of_bazel || absent tls-of-bazel "it needs Debian's libnetty-tcnative-jni and libapr1"
install_moto || fail "please check that PyPI is reachable: pip could not install moto"
install_openapi || fail "please check that PyPI is reachable: pip could not install schemathesis"
install_azurite || fail "please install Node.js and npm (Debian's nodejs and npm); they install $AZURITE_PACKAGE"
install_chromium || fail "please install Chromium and chromedriver (Debian's chromium and chromium-driver)"
install_openid || fail "please install Node.js and npm (Debian's nodejs and npm); they install $OPENID_PACKAGE"
install_axe || fail "please install npm; it fetches $AXE_PACKAGE"
if [ -n "$all" ]; then
  install_lighthouse || fail "npm could not install $LIGHTHOUSE_PACKAGE"
  install_old_bazel || absent bazel-2.1 "npm could not fetch $BAZEL_PACKAGE"
  install_buildstream || absent bst "it needs Python $BUILDSTREAM_PYTHON with venv, PyPI, and Debian's busybox-static"
fi
for suffix in '' $all; do echo "$stamp" >"$tools/clients.stamp$suffix"; done
echo "clients: ${wanted[*]} and the sources of ${SOURCES[*]} are in .tools"
