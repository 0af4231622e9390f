#!/usr/bin/env bash
# usage: fetch.sh NAME [DEST]      NAME: zlib, bzip2 or lua
# Stores the project's upstream source, ready to build, as .tools/sources/NAME.tar.gz and its SHA-256 in a .sha256 file,
# and unpacks it into DEST. The source comes from the distribution's source packages, or else from upstream.
set -euo pipefail

usage() {
  echo "usage: fetch.sh zlib|bzip2|lua [DEST]" >&2
  exit 2
}

[ $# = 1 ] || [ $# = 2 ] || usage
name=$1
case $name in
  zlib)
    package=zlib
    url=https://github.com/madler/zlib/releases/download/v1.3.1/zlib-1.3.1.tar.gz
    mirror=https://zlib.net/fossils/zlib-1.3.1.tar.gz
    sha256=9a93b2b7dfdac77ceba5a558a580e74667dd6fede4585b91eefb60f03b72df23
    ;;
  bzip2)
    package=bzip2
    url=https://sourceware.org/pub/bzip2/bzip2-1.0.8.tar.gz
    mirror=https://mirrors.kernel.org/sourceware/bzip2/bzip2-1.0.8.tar.gz
    sha256=ab5a03176ee106d3f0fa90e381da478ddae405918153cca248e682cd0c4a2269
    ;;
  lua)
    package=lua5.4
    url=https://www.lua.org/ftp/lua-5.4.4.tar.gz
    mirror=https://www.tecgraf.puc-rio.br/lua/ftp/lua-5.4.4.tar.gz
    sha256=164c7849653b80ae67bec4b7473b884bf5cc8d2dca05653475ec2ed27b9ebf61
    ;;
  *) usage ;;
esac

here=$(CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tools=$(cd "$here/../.." && pwd)/.tools
# shellcheck source=infra/tools/apt.sh
source "$here/../tools/apt.sh"
archive=$tools/sources/$name.tar.gz
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Downloads the upstream tarball of the distribution's source package; apt checks its signature.
from_apt() {
  private_apt deb-src && (cd "$work" && "${APT[@]}" source --download-only "$package") || return 1
  mv "$work"/*.orig.tar.*[!c] "$work/upstream" # but not its signature, .asc
}

from_upstream() {
  local from
  for from in "$url" "$mirror"; do
    if curl -fsSL --connect-timeout 10 --max-time 300 -o "$work/upstream" "$from" &&
      echo "$sha256  $work/upstream" | sha256sum --quiet -c; then
      return
    fi
  done
  return 1
}

# Packs the source so that the same source always has the same digest.
pack() {
  mkdir "$work/tree"
  tar -xf "$work/upstream" -C "$work/tree" --strip-components=1
  if [ -d "$here/$name" ]; then cp -R "$here/$name/." "$work/tree/"; fi # files that the build also needs
  mkdir -p "$tools/sources"
  tar -C "$work/tree" --sort=name --mtime=@1000000000 --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX -cf - . |
    gzip -9n >"$work/packed"
  sha256sum "$work/packed" | cut -d ' ' -f 1 >"$archive.sha256"
  cp "$work/packed" "$archive.$$" # in the same file system, so that `mv` is atomic
  mv "$archive.$$" "$archive"
}

is_cached() {
  [ -f "$archive" ] && [ -z "$(find "$0" "$here/$name" -newer "$archive" 2>/dev/null)" ]
}

if ! is_cached; then
  from_apt || from_upstream || { echo "fetch: cannot download $name from any source" >&2; exit 1; }
  pack
fi
if [ $# = 2 ]; then mkdir -p "$2" && tar -xzf "$archive" -C "$2"; fi
