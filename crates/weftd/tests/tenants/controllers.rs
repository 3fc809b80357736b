//! Very many connections to one bridge's socket, each of which always has messages that cost as
//! much as they may.

use crate::groups::layers;
use crate::lab::*;
use crate::measure::*;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use testkit::{Netns, Switch, privileged};

/// Connections, and how often a second all of them are given more to say.
const CONNECTIONS: usize = 400;
const RATE: u32 = 200;
/// Each bridge's connections have 5 ms between two turns of the others; a process has as much of
/// them as another one, however many connections that has: some ten turns are needed.
const DUMP_TIME_MAX: Duration = Duration::from_secs(2);
/// Messages that a connection says again and again.
const MESSAGES: usize = 50;

/// A hello and packet-outs of OpenFlow 1.3: a frame of zeros to these actions.
fn messages(actions: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let (frame, hello) = ([0; 64], vec![4, 0, 0, 8, 0, 0, 0, 1]);
    let len = (24 + actions.len() + frame.len()) as u8;
    let head = [4, 13, 0, len, 0, 0, 0, 2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfd];
    let one = [&head[..], &[0, actions.len() as u8, 0, 0, 0, 0, 0, 0], actions, &frame].concat();
    (hello, one.repeat(MESSAGES))
}

/// Connections that say these messages as fast as they are read.
fn talk(sw: &Switch<'_>, actions: &[u8]) -> Traffic {
    let (hello, messages) = messages(actions);
    // Those of an earlier attack may still have places.
    let open = |_| {
        let mut stream = UnixStream::connect(sw.dir().join("br0.mgmt")).ok()?;
        stream.write_all(&hello).ok()?;
        stream.set_nonblocking(true).ok()?;
        Some((stream, 0))
    };
    let mut all: Vec<(UnixStream, usize)> = (0..CONNECTIONS).filter_map(open).collect();
    Traffic::run(RATE, move |_| {
        for (stream, at) in &mut all {
            while let Ok(n) = stream.write(&messages[*at..]) {
                *at = (*at + n) % messages.len();
            }
            let _ = stream.read(&mut [0; 4096]);
        }
    })
}

#[test]
fn a_bridge_that_many_talk_to_is_no_burden_for_others() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    let victim = Victim::new(&ns, &sw);
    layers(&sw);
    let group = [0, 22, 0, 8, 0, 0, 0, 1];
    let (harmless, attack) = (|| vec![talk(&sw, &[])], || vec![talk(&sw, &group)]);
    judge("connections to one bridge", &victim, harmless, attack);
    let _traffic = attack();
    let took = (0..3).map(|_| another_controller(&sw)).min().expect("three");
    println!("connections to one bridge: another process's dump-flows there {took:?}");
    assert!(took < DUMP_TIME_MAX, "{took:?}");
}

/// How long a process with one connection to the same bridge waits for its flows.
fn another_controller(sw: &Switch<'_>) -> Duration {
    let start = Instant::now();
    let dump = sw.command("ovs-ofctl").args(["--timeout=60", "dump-flows", "br0"]).output();
    match dump.expect("ovs-ofctl runs") {
        o if o.status.success() => start.elapsed(),
        o => {
            println!("dump-flows: {}", String::from_utf8_lossy(&o.stderr));
            Duration::from_secs(60)
        }
    }
}
