#!/bin/bash
# Unpacks Debian's kernel for virtual machines, and its modules, into target/guest-kernel for the tests' Linux
# guest, once. Nothing is installed: the machine's own choice of kernels stays as it is.
set -euo pipefail
target=${CARGO_TARGET_DIR:-$(dirname "$0")/../target}
mkdir -p "$target"
target=$(cd "$target" && pwd)
[ -e "$target/guest-kernel/vmlinuz" ] && exit 0
work=$(mktemp -d "$target/guest-kernel.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
package() { apt-cache depends linux-image-cloud-amd64 2>/dev/null | awk '/Depends: linux-image/ { print $2; exit }'; }
name=$(package)
[ -n "$name" ] || { apt-get update -qq; name=$(package); }
[ -n "$name" ] || { echo "weft: the tests' Linux guest needs Debian's package linux-image-cloud-amd64" >&2; exit 1; }
echo "weft: unpacking $name for the tests' Linux guest"
apt-get download -qq -o APT::Sandbox::User=root "$name"
dpkg -x ./*.deb tree
mkdir guest-kernel
find tree/lib/modules -name '*.ko' \( -name 'virtio*' -o -name '*failover*' \) -exec cp -t guest-kernel {} +
cp tree/boot/vmlinuz-* guest-kernel/vmlinuz
rm -rf "$target/guest-kernel"
mv guest-kernel "$target/"
