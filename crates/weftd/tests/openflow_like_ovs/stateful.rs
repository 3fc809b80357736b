//! Messages about connections and paused pipelines.

use crate::corpus::{ODD_PROPERTY, Put, message};

const VENDOR: [u8; 4] = [0, 0, 0x23, 0x20];

fn vendor(version: u8, subtype: u8, body: &[u8]) -> Vec<u8> {
    message(version, 4, &[&VENDOR, &[0, 0, 0, subtype], body])
}

/// A Nicira action.
fn action(kind: u8, body: &[u8]) -> Vec<u8> {
    let len = (10 + body.len()).next_multiple_of(8);
    let mut a = [&[0xff, 0xff, 0, len as u8][..], &VENDOR, &[0, kind], body].concat();
    a.resize(len, 0);
    a
}

/// A `ct`: flags, zone's field and zone, table, alg, and what is in it.
fn ct(flags: u8, zone: ([u8; 4], u16), table: u8, alg: u8, inner: &[Vec<u8>]) -> Vec<u8> {
    let [a, b] = zone.1.to_be_bytes();
    let head = [&[0, flags][..], &zone.0, &[a, b, table, 0, 0, 0, 0, alg]].concat();
    action(35, &[&head, &inner.concat()[..]].concat())
}

/// A `nat`: flags, which parts of a range there are, and these.
fn nat(flags: u8, present: u8, range: &[u8]) -> Vec<u8> {
    action(36, &[&[0, 0, 0, flags, 0, present][..], range].concat())
}

const NO_FIELD: [u8; 4] = [0; 4];
/// The headers of register 0, of an Ethernet address, of an unknown field, of ct_mark.
const REG0: [u8; 4] = [0, 1, 0, 4];
const ETH_DST: [u8; 4] = [0, 0, 2, 6];
const UNKNOWN: [u8; 4] = [0, 1, 0xfe, 4];
const CT_MARK: [u8; 4] = [0, 1, 107 << 1, 4];
/// All of a zone in the low 16 bits of a field, and 15 of them.
const LOW_16: u16 = 15;
const LOW_15: u16 = 14;

/// Actions that are fine, and that are not.
fn actions() -> Vec<(&'static str, Vec<u8>)> {
    let load = |field: [u8; 4]| action(7, &[&[0, 31][..], &field, &[0; 7], &[3]].concat());
    let (a, b) = ([10, 0, 0, 1], [10, 0, 0, 9]);
    let v6: Vec<u8> = (1..17).collect();
    let in_ct = |list: &[Vec<u8>]| ct(1, (NO_FIELD, 3), 255, 0, list);
    vec![
        ("ct", ct(0, (NO_FIELD, 0), 255, 0, &[])),
        ("ct with a table", ct(0, (NO_FIELD, 7), 4, 0, &[])),
        ("ct that forces", ct(2, (NO_FIELD, 7), 255, 0, &[])),
        ("ct that forces and commits", ct(3, (NO_FIELD, 7), 255, 0, &[])),
        ("ct of unknown flags", ct(0x41, (NO_FIELD, 7), 255, 0, &[])),
        ("ct of a field's zone", ct(0, (REG0, LOW_16), 255, 0, &[])),
        ("ct of a zone of 15 bits", ct(0, (REG0, LOW_15), 255, 0, &[])),
        ("ct of a zone beyond its field", ct(0, (REG0, 20 << 6 | LOW_16), 255, 0, &[])),
        ("ct of an Ethernet address's zone", ct(0, (ETH_DST, LOW_16), 255, 0, &[])),
        ("ct of an unknown field's zone", ct(0, (UNKNOWN, LOW_16), 255, 0, &[])),
        ("ct for ftp", ct(0, (NO_FIELD, 0), 255, 21, &[])),
        ("ct for tftp", ct(0, (NO_FIELD, 0), 255, 69, &[])),
        ("ct for whois", ct(0, (NO_FIELD, 0), 255, 43, &[])),
        ("nat", in_ct(&[nat(0, 0, &[])])),
        ("nat without commit", ct(0, (NO_FIELD, 0), 1, 0, &[nat(0, 0, &[])])),
        ("nat(src) without commit", ct(0, (NO_FIELD, 0), 1, 0, &[nat(1, 0, &[])])),
        ("nat outside of ct", nat(0, 0, &[])),
        ("nat both ways", in_ct(&[nat(3, 0, &[])])),
        ("nat by hash and at random", in_ct(&[nat(0x19, 1, &a)])),
        ("nat of unknown flags", in_ct(&[nat(0x21, 1, &a)])),
        ("nat of flags without a side", in_ct(&[nat(4, 0, &[])])),
        ("nat of a range", in_ct(&[nat(1, 3, &[a, b].concat())])),
        ("nat of a range backwards", in_ct(&[nat(1, 3, &[b, a].concat())])),
        ("nat of a range's end", in_ct(&[nat(1, 2, &a)])),
        ("nat to nowhere", in_ct(&[nat(1, 1, &[0; 4])])),
        ("nat of both families", in_ct(&[nat(1, 5, &[&a[..], &v6].concat())])),
        ("nat of IPv6", in_ct(&[nat(2, 4, &v6)])),
        ("nat of ports", in_ct(&[nat(1, 0x31, &[&a[..], &[0, 9, 0, 19]].concat())])),
        ("nat of ports backwards", in_ct(&[nat(1, 0x31, &[&a[..], &[0, 9, 0, 8]].concat())])),
        ("nat of port 0", in_ct(&[nat(1, 0x11, &[&a[..], &[0, 0]].concat())])),
        ("nat of ports alone", in_ct(&[nat(1, 0x10, &[0, 9])])),
        ("nat of a last port", in_ct(&[nat(1, 0x21, &[&a[..], &[0, 9]].concat())])),
        ("nat that is cut off", in_ct(&[nat(1, 4, &a)])),
        ("mark", in_ct(&[load(CT_MARK)])),
        ("mark without commit", ct(0, (NO_FIELD, 0), 1, 0, &[load(CT_MARK)])),
        ("mark outside of ct", load(CT_MARK)),
        ("a register in ct", in_ct(&[load(REG0)])),
        ("ct in ct", in_ct(&[in_ct(&[])])),
        ("exit in ct", in_ct(&[action(17, &[0; 6])])),
        ("ct_clear", action(43, &[0; 6])),
        ("length", action(49, &[&[5, 220, 0, 3][..], &REG0].concat())),
        ("length, bit 40", action(49, &[&[5, 220, 0, 40][..], &REG0].concat())),
    ]
}

/// Fields named with a mask's bit, which some controllers set, and with a length of their own.
fn odd_headers() -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for (name, field) in
        [("masked", [0, 1, 1, 8]), ("of a mask alone", [0, 1, 1, 4]), ("too long", [0, 1, 0, 8])]
    {
        let mut put = |what: &str, kind: u8, body: &[&[u8]]| {
            all.push((format!("{what} of a field {name}"), action(kind, &body.concat())));
        };
        let learn = [&[0; 16][..], &[5, 0, 0, 0, 0, 0]].concat();
        put("load", 7, &[&[0, 31], &field, &[0; 7], &[3]]);
        put("move", 6, &[&[0, 8, 0, 0, 0, 0], &field, &REG0]);
        put("move to", 6, &[&[0, 8, 0, 0, 0, 0], &REG0, &field]);
        put("output", 15, &[&[0, 31], &field, &[0, 0], &[0; 6]]);
        put("push", 27, &[&[0, 0], &field, &[0, 32], &[0; 6]]);
        put("pop", 28, &[&[0, 0], &field, &[0, 32], &[0; 6]]);
        put("length", 49, &[&[5, 220, 0, 3], &field]);
        put("ct", 35, &[&[0, 0], &field, &[0, 15, 255, 0, 0, 0, 0, 0]]);
        put("multipath", 10, &[&[0; 6], &[0, 0, 0, 3], &[0; 6], &[0, 31], &field]);
        put(
            "bundle_load",
            13,
            &[&[0, 1, 0, 0, 0, 50, 0, 0, 0, 2, 0, 1, 0, 31], &field, &[0; 4], &[0, 1]],
        );
        put("learn", 16, &[&learn, &[0, 16], &field, &[0, 0], &field, &[0, 0], &[0; 4]]);
        put("learn and load", 16, &[&learn, &[0x28, 16], &[0, 7], &field, &[0, 0], &[0; 2]]);
    }
    all
}

/// Properties of `controller` (a length, an id, a meter) with bodies of all sizes, whose first
/// bytes are the number and whose others are zeros or not.
fn odd_properties() -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    let kinds = [("max_len", 0, 2), ("id", 1, 2), ("meter_id", 5, 4)];
    for (name, kind, number) in kinds {
        for size in 0..10usize {
            for noise in [0, 9] {
                let mut body = vec![0, kind, 0, 4 + size as u8];
                body.extend((1..=size).map(|n| {
                    if n == number {
                        1
                    } else if n < number {
                        0
                    } else {
                        noise
                    }
                }));
                body.resize(body.len().next_multiple_of(8), 0);
                let text = format!("{ODD_PROPERTY} {name} of {size} bytes, noise {noise}");
                all.push((text, action(37, &[&[0; 6], &body[..]].concat())));
            }
        }
    }
    all
}

/// Ends of connections, continuations, and packets that are to be tracked.
pub fn messages(v: u8, put: Put<'_>) {
    put("ct-flush-zone", vendor(v, 29, &[0, 0, 0, 0, 0, 0, 0, 5]));
    put("ct-flush-zone with noise", vendor(v, 29, &[0, 0, 1, 0, 0, 0, 0, 5]));
    let zone = [0, 2, 0, 8, 0, 5, 0, 0];
    let src = [0, 0, 0, 20, 32, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
    let tuple = |body: &[u8]| [&[0, 0, 0, 8 + body.len() as u8, 0, 0, 0, 0][..], body].concat();
    for (name, props) in [
        ("ct-flush", vec![]),
        ("ct-flush of a zone", zone.to_vec()),
        ("ct-flush of a short zone", vec![0, 2, 0, 5, 0, 0, 0, 0]),
        ("ct-flush of a source", tuple(&src)),
        ("ct-flush of a short source", tuple(&[0, 0, 0, 8, 1, 2, 3, 4])),
        ("ct-flush of a port", tuple(&[0, 2, 0, 8, 0, 80, 0, 0])),
        ("ct-flush of something unknown", vec![0, 77, 0, 8, 0, 80, 0, 0]),
    ] {
        put(name, vendor(v, 32, &[&[6, 0, 0, 0, 0, 0, 0, 0][..], &props].concat()));
    }
    put("ct-flush with noise", vendor(v, 32, &[6, 0, 0, 0, 0, 0, 0, 1]));
    put("resume without a packet", vendor(v, 28, &[]));
    let packet = [&[0, 0, 0, 18][..], &[2; 14], &[0; 6]].concat();
    let bridge = [&[0x80, 0, 0, 20][..], &[9; 16], &[0; 4]].concat();
    let state = |parts: &[u8]| {
        let head = [0, 8, 0, 8 + parts.len() as u8, 0, 0, 0, 0];
        vendor(v, 28, &[&packet[..], &head, parts].concat())
    };
    put("resume of nothing", vendor(v, 28, &packet));
    put("resume of a bridge that is not there", state(&bridge));
    put("resume of something unknown", state(&[0x80, 99, 0, 8, 0, 0, 0, 0]));
    put("resume with an empty stack", state(&[0x80, 1, 0, 4, 0, 0, 0, 0]));
    put("resume with a long cookie", state(&[0x80, 5, 0, 8, 0, 0, 0, 0]));
    for (name, list) in actions() {
        put(&format!("packet-out, {name}"), packet_out(v, &list));
    }
    for (name, list) in odd_headers().into_iter().chain(odd_properties()) {
        put(&format!("packet-out, {name}"), packet_out(v, &list));
    }
}

/// A packet that is IPv4, from port 1.
fn packet_out(v: u8, list: &[u8]) -> Vec<u8> {
    let len = (list.len() as u16).to_be_bytes();
    let mut packet = vec![2; 12];
    packet.extend([8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0x66, 0xcf, 10, 0, 0, 1, 10, 0, 0, 2]);
    packet.extend([0, 7, 0, 9, 0, 8, 0, 0]);
    let none = [0xff; 4];
    match v {
        1 => message(v, 13, &[&none, &[0, 1], &len, list, &packet]),
        6 => {
            let matching = [0, 1, 0, 12, 0x80, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0, 0];
            message(v, 13, &[&none, &len, &[0, 0], &matching, list, &packet])
        }
        _ => message(v, 13, &[&none, &[0, 0, 0, 1], &len, &[0; 6], list, &packet]),
    }
}
