//! The blocks of a pcapng file (draft-ietf-opsawg-pcapng): a section, an interface per port, and
//! packets with their comments.

use super::Packet;

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const PACKET: u32 = 6;
/// Says in which order the bytes of numbers are.
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const ETHERNET: u16 = 1;
/// Options: who wrote a section; an interface's name and its unit of time; a comment; where a
/// packet went.
const USER_APPLICATION: u16 = 4;
const NAME: u16 = 2;
const TIME_RESOLUTION: u16 = 9;
const COMMENT: u16 = 1;
const FLAGS: u16 = 2;
/// [`TIME_RESOLUTION`]: ten to the minus so much of a second.
const NANOSECONDS: u8 = 9;
/// [`FLAGS`]: it came in.
const INBOUND: u32 = 1;

/// What a file has so far.
pub struct Capture {
    snaplen: u32,
    /// Ports, by the number of their interface.
    interfaces: Vec<String>,
}

impl Capture {
    /// A capture of packets that are cut to so many bytes.
    pub fn new(snaplen: u32) -> Capture {
        Capture { snaplen, interfaces: Vec::new() }
    }

    /// What a file begins with.
    pub fn head() -> Vec<u8> {
        let unknown_length = u64::MAX.to_le_bytes();
        let version = [1u16.to_le_bytes(), 0u16.to_le_bytes()].concat();
        let writer =
            option(USER_APPLICATION, concat!("weft ", env!("CARGO_PKG_VERSION")).as_bytes());
        block(SECTION, &[&BYTE_ORDER_MAGIC.to_le_bytes(), &version, &unknown_length, &writer, &END])
    }

    /// A packet, with its port if that is not there yet.
    pub fn packet(&mut self, p: &Packet) -> Vec<u8> {
        let known = self.interfaces.iter().position(|name| *name == p.port);
        let mut blocks = if known.is_some() { Vec::new() } else { self.interface(&p.port) };
        let number = known.unwrap_or(self.interfaces.len() - 1) as u32;
        let time = [(p.time_ns >> 32) as u32, p.time_ns as u32];
        let numbers = [number, time[0], time[1], p.bytes.len() as u32, p.length];
        let numbers = numbers.map(u32::to_le_bytes).concat();
        let comment = option(COMMENT, p.comment.as_bytes());
        let flags = option(FLAGS, &INBOUND.to_le_bytes());
        blocks.extend(block(PACKET, &[&numbers, &padded(&p.bytes), &comment, &flags, &END]));
        blocks
    }

    fn interface(&mut self, name: &str) -> Vec<u8> {
        self.interfaces.push(name.into());
        let link = u32::from(ETHERNET).to_le_bytes();
        let (name, time) = (option(NAME, name.as_bytes()), option(TIME_RESOLUTION, &[NANOSECONDS]));
        block(INTERFACE, &[&link, &self.snaplen.to_le_bytes(), &name, &time, &END])
    }
}

/// The end of a list of options.
const END: [u8; 4] = [0; 4];

/// Its type, its length, what is in it, and its length again.
fn block(kind: u32, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let length = (12 + body.len() as u32).to_le_bytes();
    [&kind.to_le_bytes()[..], &length, &body, &length].concat()
}

/// An option; of a value that is too long what fits.
fn option(code: u16, value: &[u8]) -> Vec<u8> {
    let value = &value[..value.len().min(usize::from(u16::MAX))];
    [&code.to_le_bytes()[..], &(value.len() as u16).to_le_bytes(), &padded(value)].concat()
}

/// Up to a multiple of four bytes.
fn padded(bytes: &[u8]) -> Vec<u8> {
    let mut all = bytes.to_vec();
    all.resize(bytes.len().next_multiple_of(4), 0);
    all
}
