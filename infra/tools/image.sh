#!/usr/bin/env bash
# usage: image.sh
# Makes the image that tests/e2e runs Bazel's actions in: Debian 12 with GCC 11, as an OCI layout in .tools/images/gcc-11, by
# Debian's mmdebstrap and umoci. Also installs docker-registry and skopeo, which serve it. Takes some minutes, once.
set -euo pipefail

SUITE=bookworm
COMPILER=11 # not the compiler of Debian 12, which the machine may have
PACKAGES=(mmdebstrap umoci skopeo docker-registry)

tools=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/.tools
layout=$tools/images/gcc-$COMPILER

if [ -f "$layout/index.json" ]; then exit 0; fi
missing() {
  local name
  for name in "${PACKAGES[@]}"; do command -v "$name" >/dev/null || echo "$name"; done
}
if [ -n "$(missing)" ]; then
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "image: please install $(missing | tr '\n' ' ')" >&2
    exit 1
  fi
  echo "image: installing ${PACKAGES[*]}"
  apt-get -qq update
  DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${PACKAGES[@]}" >/dev/null
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo "image: making an image of Debian with GCC $COMPILER"
links="for tool in gcc g++ cpp; do ln -sf \$tool-$COMPILER \"\$1/usr/bin/\$tool\"; done; ln -sf gcc-$COMPILER \"\$1/usr/bin/cc\""
mmdebstrap --quiet --mode=root --variant=essential \
  --include="gcc-$COMPILER,g++-$COMPILER,libc6-dev,binutils,bash" --customize-hook="$links" \
  --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
  --dpkgopt='path-exclude=/usr/share/locale/*' "$SUITE" "$work/root.tar"
umoci init --layout "$work/layout"
umoci new --image "$work/layout:latest"
umoci unpack --image "$work/layout:latest" "$work/bundle"
tar -xf "$work/root.tar" -C "$work/bundle/rootfs" --exclude='./dev/*'
umoci repack --image "$work/layout:latest" "$work/bundle"
umoci config --image "$work/layout:latest" --config.env PATH=/usr/local/bin:/usr/bin:/bin
mkdir -p "${layout%/*}"
rm -rf "$layout"
mv "$work/layout" "$layout"
