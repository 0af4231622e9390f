set -eu
export LC_ALL=C DEBIAN_FRONTEND=noninteractive PATH="$PATH:/usr/sbin:/sbin"
rootless='' user=''
if [ "$(id -u)" != 0 ]; then
  rootless=--rootless
  user='--unshare-user --uid 0 --gid 0'
fi

# Runs a shell command in the image, with the network of the build.
inside() {
  had_resolver=$([ -e bundle/rootfs/etc/resolv.conf ] && echo yes || true)
  bwrap --bind bundle/rootfs / --proc /proc --dev /dev --tmpfs /tmp --tmpfs /run \
    --ro-bind-try /etc/resolv.conf /etc/resolv.conf --unshare-pid --unshare-ipc --die-with-parent $user --clearenv \
    --setenv PATH /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin --setenv HOME /root \
    --setenv DEBIAN_FRONTEND noninteractive sh -ec "$1"
  # A link would lead to the machine.
  if [ -z "$had_resolver" ] && [ ! -L bundle/rootfs/etc ]; then rm -f bundle/rootfs/etc/resolv.conf; fi
}

if [ -n "${ENVIRONMENT_BASE-}" ]; then
  echo "reading the base image $ENVIRONMENT_BASE"
  insecure=''
  # As container engines do: a registry of the machine itself needs no certificate.
  case $ENVIRONMENT_BASE in 127.*:* | localhost:*) insecure=--src-tls-verify=false ;; esac
  skopeo --insecure-policy copy --quiet $insecure "docker://$ENVIRONMENT_BASE" oci:image:latest
  umoci unpack $rootless --image image:latest bundle
  if [ -n "${ENVIRONMENT_PACKAGES-}" ]; then
    echo "installing $ENVIRONMENT_PACKAGES"
    inside "if command -v apt-get >/dev/null; then
      apt-get -qq -o APT::Sandbox::User=root update
      apt-get -qq -o APT::Sandbox::User=root install -y --no-install-recommends $ENVIRONMENT_PACKAGES
      rm -rf /var/lib/apt/lists/* /var/cache/apt/archives/*.deb
    elif command -v apk >/dev/null; then
      apk add --no-cache $ENVIRONMENT_PACKAGES
    elif command -v dnf >/dev/null; then
      dnf -y install $ENVIRONMENT_PACKAGES && dnf clean all
    else
      echo 'the base image has none of apt-get, apk and dnf: install with run instead of packages' >&2
      exit 1
    fi"
  fi
else
  echo "installing Debian $ENVIRONMENT_RELEASE${ENVIRONMENT_PACKAGES:+ with $ENVIRONMENT_PACKAGES}"
  mmdebstrap --quiet --variant=minbase ${ENVIRONMENT_PACKAGES:+"--include=$ENVIRONMENT_PACKAGES"} \
    --dpkgopt=force-unsafe-io --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
    "$ENVIRONMENT_RELEASE" root.tar ${ENVIRONMENT_MIRROR:+"$ENVIRONMENT_MIRROR"}
  umoci init --layout image
  umoci new --image image:latest
  umoci unpack $rootless --image image:latest bundle
  tar -xf root.tar -C bundle/rootfs --exclude='./dev/*'
  rm root.tar
fi
if [ -n "${ENVIRONMENT_RUN-}" ]; then
  echo "running the commands of the definition"
  inside "$ENVIRONMENT_RUN"
fi
echo "packing the image"
umoci repack --image image:latest bundle
if [ $# -gt 0 ]; then umoci config --image image:latest "$@"; fi
umoci gc --layout image
