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
download() {
    name=$(apt-cache depends linux-image-cloud-amd64 2>/dev/null | awk '/Depends: linux-image/ { print $2; exit }')
    [ -n "$name" ] && apt-get download -qq -o APT::Sandbox::User=root "$name"
}
# Lists of packages may be missing, or too old.
download 2>/dev/null || { apt-get update -qq && download; } ||
    { echo "weft: the tests' Linux guest needs Debian's package linux-image-cloud-amd64" >&2; exit 1; }
echo "weft: unpacking $name for the tests' Linux guest"
dpkg -x ./*.deb tree
mkdir guest-kernel
find tree/lib/modules -name '*.ko' \( -name 'virtio*' -o -name '*failover*' \) -exec cp -t guest-kernel {} +
cp tree/boot/vmlinuz-* guest-kernel/vmlinuz
rm -rf "$target/guest-kernel"
mv guest-kernel "$target/"
