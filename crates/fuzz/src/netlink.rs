//! What the kernel says of links, addresses, routes and neighbours, as any bytes.

use port::testing::{read_link_datagram, read_underlay};

pub fn run(data: &[u8]) {
    let messages = read_link_datagram(data);
    assert!(messages <= data.len() / 16, "a message has a header");
    read_underlay(data);
}

/// A message: header and body.
fn message(kind: u16, body: &[u8]) -> Vec<u8> {
    let mut out = (16 + body.len() as u32).to_ne_bytes().to_vec();
    out.extend(kind.to_ne_bytes());
    out.extend([0; 10]);
    out.extend(body);
    out.resize(out.len().next_multiple_of(4), 0);
    out
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut out = (4 + value.len() as u16).to_ne_bytes().to_vec();
    out.extend(kind.to_ne_bytes());
    out.extend(value);
    out.resize(out.len().next_multiple_of(4), 0);
    out
}

pub fn seeds() -> Vec<Vec<u8>> {
    let head = |len: usize, first: u8| {
        let mut h = vec![0; len];
        h[0] = first;
        h
    };
    let link = [
        head(16, 0),
        attribute(3, b"eth0\0"),
        attribute(1, &[2, 0, 0, 0, 0, 1]),
        attribute(4, &1500u32.to_ne_bytes()),
        attribute(23, &[1; 192]),
        attribute(33, &[1]),
        attribute(35, &2u32.to_ne_bytes()),
    ]
    .concat();
    let index = 1u32.to_ne_bytes();
    let address = [&[2, 24, 0, 0][..], &index, &attribute(2, &[10, 0, 0, 1])].concat();
    let hop = [&16u16.to_ne_bytes()[..], &[0, 0], &index, &attribute(5, &[10, 0, 0, 9])].concat();
    let route = [&[2, 24, 0, 0, 254, 0, 0, 1, 0, 0, 0, 0][..], &attribute(1, &[10, 1, 0, 0])];
    let plain = [&route.concat()[..], &attribute(4, &index), &attribute(6, &index)].concat();
    let many = [route.concat(), attribute(9, &hop)].concat();
    let near = [&[2, 0, 0, 0][..], &index, &2u16.to_ne_bytes(), &[0, 0], &attribute(1, &[10; 4])];
    let near = [near.concat(), attribute(2, &[2, 0, 0, 0, 0, 2])].concat();
    vec![
        message(16, &link),
        [message(17, &link), message(2, &[0; 4])].concat(),
        message(20, &address),
        message(24, &plain),
        message(24, &many),
        message(28, &near),
    ]
}
