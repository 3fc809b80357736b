//! A bridge's controller that changes very often what holds for all packets of its bridge.

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

/// Packets of another bridge that no cached decision covered, while the victim asks.
fn misses(sw: &Switch<'_>, victim: &Victim<'_>, attack: Option<[Vec<u8>; 2]>) -> u64 {
    let _attack = attack.map(|messages| talk(sw, messages));
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
        let quiet = misses(sw, &victim, None);
        for (what, attack) in [
            ("flows", [flow(0), flow(3)]),
            ("groups", [group(0), group(2)]),
            ("fragments", [set_frags(1), set_frags(0)]),
        ] {
            let n = misses(sw, &victim, Some(attack));
            println!("{what}: {n} misses of another bridge, {quiet} without changes");
            assert!(n <= quiet + 40, "{what}: {n} misses, {quiet} without");
        }
    });
}
