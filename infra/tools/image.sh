#!/usr/bin/env bash
# usage: image.sh
# Makes the image gcc-11 of tests/e2e as an OCI layout in .tools/images: Debian 12 with the compiler that Bazel's actions use. Also
# installs docker-registry and skopeo, which serve it, and what workers make environments with. Takes some minutes, once.
set -euo pipefail

SUITE=bookworm
COMPILER=11 # not the compiler of Debian 12, which the machine may have
PACKAGES=(mmdebstrap bubblewrap umoci skopeo docker-registry)

here=$(CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tools=$(cd "$here/../.." && pwd)/.tools
# shellcheck source=infra/tools/apt.sh
source "$here/apt.sh"

missing() {
  local name
  for name in "${PACKAGES[@]}"; do command -v "$name" >/dev/null || echo "$name"; done
}
install_tools() {
  if [ -z "$(missing)" ]; then return; fi
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "image: please install $(missing | tr '\n' ' ')" >&2
    exit 1
  fi
  echo "image: installing ${PACKAGES[*]}"
  apt_install "${PACKAGES[@]}"
}

# make_image NAME PATH PACKAGES [OPTION...]: PATH is the search path in the image, OPTION those of mmdebstrap.
make_image() {
  local name=$1 path=$2 packages=$3 layout=$tools/images/$1 work
  shift 3
  if [ -f "$layout/index.json" ]; then return; fi
  install_tools
  echo "image: making the image $name of Debian $SUITE"
  work=$(mktemp -d)
  # shellcheck disable=SC2064 # the folder is known now
  trap "rm -rf '$work'" EXIT
  mmdebstrap --quiet --mode=root --variant=essential --include="$packages" \
    --dpkgopt='force-unsafe-io' --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' "$@" "$SUITE" "$work/root.tar"
  umoci init --layout "$work/layout"
  umoci new --image "$work/layout:latest"
  umoci unpack --image "$work/layout:latest" "$work/bundle"
  tar -xf "$work/root.tar" -C "$work/bundle/rootfs" --exclude='./dev/*'
  umoci repack --image "$work/layout:latest" "$work/bundle"
  umoci config --image "$work/layout:latest" --config.env "PATH=$path"
  mkdir -p "${layout%/*}"
  rm -rf "$layout"
  mv "$work/layout" "$layout"
  rm -rf "$work"
}

links="for tool in gcc g++ cpp; do ln -sf \$tool-$COMPILER \"\$1/usr/bin/\$tool\"; done; ln -sf gcc-$COMPILER \"\$1/usr/bin/cc\""
make_image "gcc-$COMPILER" /usr/local/bin:/usr/bin:/bin "gcc-$COMPILER,g++-$COMPILER,libc6-dev,binutils,bash" --customize-hook="$links"
