#!/bin/bash
# Makes target/deb/weft_VERSION_ARCH.deb from programs that are built (default: target/release), with
# Debian's own tools. Installing it diverts nothing: see packaging/ and `weft enable`.
# Usage: deb.sh [FOLDER OF weft AND weftd]
set -euo pipefail
cd "$(dirname "$0")/.."
programs=${1:-target/release}
out=target/deb root=target/deb/root
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
maintainer="The authors of Weft <weft@weft.example>"
arch=$(dpkg --print-architecture)
for p in weft weftd; do
    [ -x "$programs/$p" ] || { echo "weft: $programs/$p is not built: make build" >&2; exit 1; }
done
rm -rf "$out"
mkdir -p "$root"/usr/{bin,sbin,lib/weft,lib/systemd/system,share/weft} "$root"/usr/share/{man/man1,man/man8,doc/weft,bash-completion/completions} \
    "$root"/etc/default "$root"/DEBIAN "$out/debian"

# Programs, without what only a debugger reads.
strip --strip-unneeded -o "$root/usr/bin/weft" "$programs/weft"
strip --strip-unneeded -o "$root/usr/sbin/weftd" "$programs/weftd"
install -m 644 packaging/ovs-vswitchd.service "$root/usr/lib/weft/"
install -m 644 packaging/{weft-web,weft-standby}.service "$root/usr/lib/systemd/system/"
install -m 644 packaging/grafana.json "$root/usr/share/weft/"
install -m 644 packaging/default "$root/etc/default/weft"

# What the programs say of themselves.
"$programs/weft" manual "$out/manual" --weftd "$programs/weftd"
for page in "$out"/manual/*.[18]; do
    gzip -9nc "$page" > "$root/usr/share/man/man${page##*.}/$(basename "$page").gz"
done
install -m 644 "$out/manual/weft.bash" "$root/usr/share/bash-completion/completions/weft"
install -m 644 packaging/copyright CHANGELOG.md docs/*.md "$root/usr/share/doc/weft/"
when=$(git log -1 --format=%cD 2>/dev/null || date -R)
printf 'weft (%s) stable; urgency=medium\n\n  * See CHANGELOG.md.\n\n -- %s  %s\n' "$version" "$maintainer" "$when" |
    gzip -9n > "$root/usr/share/doc/weft/changelog.gz"

# Libraries that they are linked with.
echo "Source: weft" > "$out/debian/control"
depends=$(cd "$out" && dpkg-shlibdeps -O root/usr/bin/weft root/usr/sbin/weftd | sed -n 's/^shlibs:Depends=//p')
# What DPDK loads by itself and does not start without: packet pools, devices without hardware and with.
abi=$(sed 's/.*librte-eal\([0-9]*\).*/\1/' <<<"$depends")
plugins="librte-mempool-ring$abi, librte-bus-vdev$abi, librte-bus-pci$abi"
cat > "$root/DEBIAN/control" <<END
Package: weft
Version: $version
Architecture: $arch
Maintainer: $maintainer
Installed-Size: $(du -sk "$root" | cut -f1)
Section: net
Priority: optional
Depends: $depends, $plugins, openvswitch-switch (>= 3.1), openvswitch-common (>= 3.1)
Recommends: librte-meta-net, ethtool
Description: virtual switch that takes the place of ovs-vswitchd
 Weft uses Open vSwitch's database, speaks its OpenFlow and answers its tools;
 its packet path is its own, on DPDK. Installing it changes nothing about the
 switch that runs: "weft enable" hands over to it, "weft disable" goes back.
END
echo /etc/default/weft > "$root/DEBIAN/conffiles"
install -m 755 packaging/{postinst,prerm,postrm} "$root/DEBIAN/"
(cd "$root" && find usr etc -type f -print0 | xargs -0 md5sum > DEBIAN/md5sums)
dpkg-deb --root-owner-group --build "$root" "$out/weft_${version}_$arch.deb" >/dev/null
echo "weft: $out/weft_${version}_$arch.deb"
