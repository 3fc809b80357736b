//! `userspace-tso-enable`: Linux guests leave checksums and segments of TCP to the switch, and get
//! segments merged. In between packets are as on the wire.

mod lab;

use lab::*;
use std::path::Path;
use testkit::{Netns, Switch, privileged, veth};

/// Bytes of the file that is fetched.
const FILE_BYTES: u64 = 8 << 20;
/// Bytes of a frame that is no merged one.
const WIRE_BYTES_MAX: u64 = 1514;

/// A port's counters of received packets: packets, bytes, dropped.
fn received(sw: &Switch, port: &str) -> [u64; 3] {
    let shown = ofctl(sw, &format!("dump-ports br0 {port}"));
    ["pkts=", "bytes=", "drop="].map(|name| {
        let number = shown.split(name).nth(1).and_then(|rest| rest.split(',').next());
        number.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{name} in {shown}"))
    })
}

/// Packets and bytes of one direction that a guest's kernel counted.
fn counted(guest: &mut Linux, direction: &str) -> [u64; 2] {
    ["packets", "bytes"].map(|what| {
        let file = format!("/sys/class/net/eth0/statistics/{direction}_{what}");
        guest.run(&format!("cat {file}")).trim().parse().unwrap()
    })
}

/// Bytes of a packet on average while `work` was done.
fn average(
    guests: &mut [Linux; 2],
    (which, direction): (usize, &str),
    work: impl FnOnce(&mut [Linux; 2]),
) -> u64 {
    let before = counted(&mut guests[which], direction);
    work(guests);
    let after = counted(&mut guests[which], direction);
    (after[1] - before[1]) / (after[0] - before[0])
}

/// Guest 0 fetches the file of guest 1.
fn fetch(guests: &mut [Linux; 2]) {
    let want = guests[1].run("md5sum < /tmp/file");
    let got = guests[0].run("wget -q -O - http://10.0.0.2:8080/file | md5sum");
    assert_eq!(got, want);
}

fn boot(socket: &Path, mac: u8, device: &str) -> Linux {
    let mut guest = Linux::start(Machine { socket, mac, queues: 1, device, incoming: None });
    guest.run(&format!("ip link set eth0 up && ip addr add 10.0.0.{mac}/24 dev eth0"));
    guest
}

#[test]
fn guests_leave_segments_to_the_switch() {
    if !privileged() {
        return;
    }
    let (_turn, ns, peer) = (turn(), Netns::new().unwrap(), Netns::new().unwrap());
    veth((&ns, "v1"), (&peer, "eth0")).unwrap();
    peer.ip("addr add 10.0.0.3/24 dev eth0").unwrap();
    let sw = start_with_bridge(&ns);
    vsctl(&sw, "set open . other_config:userspace-tso-enable=true");
    vsctl(&sw, "add-port br0 v1");
    let sockets = [1, 2].map(|i| sw.dir().join(format!("guest{i}")));
    for (i, socket) in sockets.iter().enumerate() {
        let kind =
            format!("type=dpdkvhostuserclient options:vhost-server-path={}", socket.display());
        vsctl(&sw, &format!("add-port br0 vhu{i} -- set interface vhu{i} {kind}"));
    }
    // One with split and one with packed rings.
    let mut guests = [boot(&sockets[0], 1, ""), boot(&sockets[1], 2, "packed=on")];
    guests[1].run(&format!("head -c {FILE_BYTES} /dev/urandom > /tmp/file"));
    guests[1].run("httpd -p 8080 -h /tmp");
    guests[0].run("ping -c 3 -W 5 10.0.0.2");

    let sent = average(&mut guests, (1, "tx"), fetch);
    assert!(sent > 2 * WIRE_BYTES_MAX, "guest 1 sends {sent} bytes a packet");
    let taken = average(&mut guests, (0, "rx"), fetch);
    assert!(taken > 2 * WIRE_BYTES_MAX, "guest 0 receives {taken} bytes a packet");
    let [packets, bytes, dropped] = received(&sw, "vhu1");
    assert!(bytes > 2 * FILE_BYTES && bytes / packets <= WIRE_BYTES_MAX, "{packets} {bytes}");
    assert_eq!(dropped, 0);

    // A host behind the kernel gets packets with right checksums.
    let want = guests[1].run("md5sum < /tmp/file");
    let got = peer.exec(&["sh", "-c", "busybox wget -q -O - http://10.0.0.2:8080/file | md5sum"]);
    assert_eq!(got.unwrap(), want);
}
