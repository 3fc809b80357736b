//! A controller's packet-outs that are sent very often.

use crate::lab::*;
use crate::measure::*;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use testkit::Switch;

/// Packet-outs a second, and copies of each.
const RATE: u32 = 500;
const COPIES: usize = 4000;

/// A packet-out of OpenFlow 1.3: a frame of zeros to port 1, so many times.
fn packet_out(copies: usize) -> Vec<u8> {
    let output = [0, 0, 0, 16, 0, 0, 0, 1, 0xff, 0xff, 0, 0, 0, 0, 0, 0].repeat(copies);
    let len = ((24 + output.len() + 64) as u16).to_be_bytes();
    let actions = (output.len() as u16).to_be_bytes();
    let head = [4, 13, len[0], len[1], 0, 0, 0, 2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfd];
    [&head[..], &[actions[0], actions[1], 0, 0, 0, 0, 0, 0], &output, &[0; 64]].concat()
}

fn talk(sw: &Switch<'_>, copies: usize) -> Vec<Traffic> {
    let mut stream = UnixStream::connect(sw.dir().join("br0.mgmt")).unwrap();
    stream.write_all(&[4, 0, 0, 8, 0, 0, 0, 1]).unwrap();
    stream.set_nonblocking(true).unwrap();
    let message = packet_out(copies);
    let mut at = 0;
    vec![Traffic::run(RATE, move |_| {
        while let Ok(n) = stream.write(&message[at..]) {
            at = (at + n) % message.len();
            if at == 0 {
                break;
            }
        }
        let _ = stream.read(&mut [0; 4096]);
    })]
}

#[test]
fn packet_outs_that_are_sent_very_often() {
    attacked(|ns, sw, _| {
        vsctl(sw, "set interface v3 ofport_request=1");
        let victim = Victim::new(ns, sw);
        judge("packet-outs", &victim, || talk(sw, 1), || talk(sw, COPIES));
    });
}
