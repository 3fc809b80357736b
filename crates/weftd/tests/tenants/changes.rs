//! Changes of what holds for all packets of a bridge, very often; guests' ports that come and go.

use crate::lab::*;
use crate::measure::*;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use testkit::Switch;

/// Changes of each kind a second, and how often the victim asks meanwhile.
const RATE: u32 = 100;
const QUESTIONS: u32 = 400;

/// A flow-mod of OpenFlow 1.3 for all packets: add, or delete.
fn flow(command: u8) -> Vec<u8> {
    let head = [[4, 14, 0, 56, 0, 0, 0, 2], [0; 8], [0; 8]].concat();
    let rest = [[0, command, 0, 0, 0, 0, 0, 1], [0xff; 8], [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]];
    [head, rest.concat(), vec![0, 1, 0, 4, 0, 0, 0, 0]].concat()
}

/// A group-mod for group 1: add, or delete.
fn group(command: u8) -> Vec<u8> {
    vec![4, 15, 0, 16, 0, 0, 0, 3, 0, command, 0, 0, 0, 0, 0, 1]
}

/// What becomes of fragments.
fn set_frags(mode: u8) -> Vec<u8> {
    vec![4, 9, 0, 12, 0, 0, 0, 4, 0, mode, 0, 0]
}

/// Says these messages, first of two and then of the other.
fn talk(sw: &Switch<'_>, messages: [Vec<u8>; 2]) -> Traffic {
    let mut stream = UnixStream::connect(sw.dir().join("br0.mgmt")).unwrap();
    stream.write_all(&[4, 0, 0, 8, 0, 0, 0, 1]).unwrap();
    stream.set_nonblocking(true).unwrap();
    Traffic::run(RATE, move |i| {
        stream.write_all(&messages[i as usize % 2]).unwrap();
        let _ = stream.read(&mut [0; 4096]);
    })
}

/// The victim's packets that no cached decision covered, while it asks.
fn misses(sw: &Switch<'_>, victim: &Victim<'_>) -> u64 {
    let before = coverage(sw, "xlate_actions");
    let args = format!("-q -i 0.005 -c {QUESTIONS} {}", addr(2));
    let ping = victim.a.command("ping").args(args.split(' ')).output().unwrap();
    assert!(ping.status.success(), "{ping:?}");
    coverage(sw, "xlate_actions") - before
}

#[test]
fn packets_of_other_bridges_do_not_miss() {
    attacked(|ns, sw, _| {
        let victim = Victim::new(ns, sw);
        let quiet = misses(sw, &victim);
        for (what, attack) in [
            ("flows", [flow(0), flow(3)]),
            ("groups", [group(0), group(2)]),
            ("fragments", [set_frags(1), set_frags(0)]),
        ] {
            let _attack = talk(sw, attack);
            let n = misses(sw, &victim);
            println!("{what}: {n} misses of another bridge, {quiet} without changes");
            assert!(n <= quiet + 40, "{what}: {n} misses, {quiet} without");
        }
    });
}

/// Ports that are added and removed while the victim asks.
const PORTS: usize = 20;

#[test]
fn ports_of_guests_that_come_and_go_make_no_packet_miss() {
    attacked(|ns, sw, _| {
        let victim = Victim::new(ns, sw);
        let quiet = misses(sw, &victim);
        for bridge in ["br0", "victim"] {
            let n = std::thread::scope(|s| {
                s.spawn(|| {
                    for _ in 0..PORTS {
                        let port = "guest -- set interface guest type=dpdkvhostuser";
                        vsctl(sw, &format!("add-port {bridge} {port}"));
                        vsctl(sw, "del-port guest");
                    }
                });
                misses(sw, &victim)
            });
            println!("{bridge}: {n} misses, {quiet} without changes");
            assert!(n <= quiet + PORTS as u64 / 2, "{bridge}: {n} misses, {quiet} without");
        }
    });
}
