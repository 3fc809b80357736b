//! The other end of an OpenFlow connection, of bytes.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

/// Message types (those above 13 as in 1.1 and later).
pub mod kind {
    pub const HELLO: u8 = 0;
    pub const ERROR: u8 = 1;
    pub const ECHO_REQUEST: u8 = 2;
    pub const ECHO_REPLY: u8 = 3;
    pub const PACKET_IN: u8 = 10;
    pub const FLOW_REMOVED: u8 = 11;
    pub const FLOW_MOD: u8 = 14;
    pub const MULTIPART_REQUEST: u8 = 18;
    pub const MULTIPART_REPLY: u8 = 19;
    pub const BARRIER_REQUEST: u8 = 20;
    pub const BARRIER_REPLY: u8 = 21;
    pub const ROLE_REQUEST: u8 = 24;
    pub const ROLE_REPLY: u8 = 25;
    pub const ROLE_STATUS: u8 = 30;
    pub const BUNDLE_CONTROL: u8 = 33;
    pub const BUNDLE_ADD: u8 = 34;
}

/// A message as it came.
#[derive(Debug)]
pub struct Message {
    pub kind: u8,
    pub xid: u32,
    pub body: Vec<u8>,
}

pub struct Peer {
    stream: UnixStream,
    version: u8,
    xid: u32,
    /// Types of what came and was not waited for (what was waited for too).
    pub seen: Vec<u8>,
}

impl Peer {
    /// Waits for the switch to connect; agrees on a version.
    pub fn accept(listener: &UnixListener, version: u8) -> Peer {
        Peer::start(listener.accept().unwrap().0, version)
    }

    /// Connects to the switch; agrees on a version.
    pub fn connect(path: &Path, version: u8) -> Peer {
        Peer::start(UnixStream::connect(path).unwrap(), version)
    }

    fn start(stream: UnixStream, version: u8) -> Peer {
        stream.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
        let mut peer = Peer { stream, version, xid: 100, seen: Vec::new() };
        peer.send(kind::HELLO, 1, &[]);
        peer.expect(kind::HELLO);
        peer
    }

    /// Greets with a version; the type of the message after the switch's hello.
    pub fn greet(path: &Path, version: u8) -> Option<u8> {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
        let mut peer = Peer { stream, version, xid: 1, seen: Vec::new() };
        // A bitmap of this version alone: nothing below it will do.
        let bit = 1u32 << version;
        let mut body = vec![0, 1, 0, 8];
        body.extend(bit.to_be_bytes());
        peer.send(kind::HELLO, 1, &body);
        peer.next()?;
        peer.next().map(|m| m.kind)
    }

    /// Bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// A message.
    pub fn send(&mut self, kind: u8, xid: u32, body: &[u8]) {
        let bytes = message(self.version, kind, xid, body);
        self.raw(&bytes);
    }

    fn next(&mut self) -> Option<Message> {
        let mut head = [0; 8];
        self.stream.read_exact(&mut head).ok()?;
        let len = usize::from(u16::from_be_bytes([head[2], head[3]]));
        let mut body = vec![0; len.checked_sub(8)?];
        self.stream.read_exact(&mut body).ok()?;
        let xid = u32::from_be_bytes([head[4], head[5], head[6], head[7]]);
        self.seen.push(head[1]);
        Some(Message { kind: head[1], xid, body })
    }

    /// The next message of a type; others are passed over, echoes answered.
    pub fn expect(&mut self, kind: u8) -> Message {
        loop {
            let m = self.next().unwrap_or_else(|| panic!("no {kind}, only {:?}", self.seen));
            if m.kind == kind {
                return m;
            }
            if m.kind == kind::ECHO_REQUEST {
                self.send(kind::ECHO_REPLY, m.xid, &m.body);
            }
        }
    }

    /// The type of the next message that is of one of these types; others are passed over.
    #[allow(dead_code)] // Not every suite has a use for it.
    pub fn next_of(&mut self, kinds: &[u8]) -> u8 {
        loop {
            let m = self.next().unwrap_or_else(|| panic!("none of {kinds:?}: {:?}", self.seen));
            if kinds.contains(&m.kind) {
                return m.kind;
            }
        }
    }

    /// True if the switch closes the connection.
    pub fn closed(&mut self) -> bool {
        while self.next().is_some() {}
        let mut byte = [0];
        matches!(self.stream.read(&mut byte), Ok(0))
    }

    /// Asks for a barrier and waits for it.
    pub fn barrier(&mut self) {
        self.xid += 1;
        let xid = self.xid;
        self.send(kind::BARRIER_REQUEST, xid, &[]);
        while self.expect(kind::BARRIER_REPLY).xid != xid {}
    }

    /// From port to port.
    pub fn flow_mod(&mut self, from: u32, to: u32) {
        self.xid += 1;
        let bytes = flow_mod(self.version, self.xid, from, to);
        self.raw(&bytes);
    }

    /// The same, and the error that comes back, if one does: type and code.
    pub fn flow_mod_error(&mut self, from: u32, to: u32) -> Option<(u16, u16)> {
        self.flow_mod(from, to);
        self.xid += 1;
        self.send(kind::BARRIER_REQUEST, self.xid, &[]);
        let mut error = None;
        loop {
            let m = self.next().unwrap();
            match m.kind {
                kind::ERROR => error = Some(code(&m)),
                kind::BARRIER_REPLY => return error,
                _ => {}
            }
        }
    }

    /// Asks for all flows, without waiting.
    pub fn dump_flows(&mut self) {
        let mut body = vec![0, 1, 0, 0, 0, 0, 0, 0, 0xff, 0, 0, 0];
        body.extend([0xff; 8]); // any port, any group
        body.extend([0; 4 + 16]); // cookie and mask
        body.extend([0, 1, 0, 4, 0, 0, 0, 0]);
        self.xid += 1;
        self.send(kind::MULTIPART_REQUEST, self.xid, &body);
    }

    /// How many flows the answer to [`Peer::dump_flows`] has.
    pub fn count_flows(&mut self) -> usize {
        let mut flows = 0;
        loop {
            let m = self.expect(kind::MULTIPART_REPLY);
            let mut rest = &m.body[8..];
            while rest.len() > 2 {
                flows += 1;
                rest = &rest[usize::from(u16::from_be_bytes([rest[0], rest[1]]))..];
            }
            if m.body[3] & 1 == 0 {
                return flows;
            }
        }
    }

    /// Asks for a role: the one it has then, or the error's type and code.
    pub fn role(&mut self, role: u32, generation: u64) -> Result<u32, (u16, u16)> {
        let mut body = role.to_be_bytes().to_vec();
        body.extend([0; 4]);
        body.extend(generation.to_be_bytes());
        self.xid += 1;
        self.send(kind::ROLE_REQUEST, self.xid, &body);
        loop {
            let m = self.next().unwrap();
            match m.kind {
                kind::ERROR => return Err(code(&m)),
                kind::ROLE_REPLY => {
                    return Ok(u32::from_be_bytes([m.body[0], m.body[1], m.body[2], m.body[3]]));
                }
                _ => {}
            }
        }
    }

    /// A bundle-control request without waiting: open is 0, commit 4. Atomic and ordered.
    pub fn bundle(&mut self, id: u32, step: u16) {
        let mut body = id.to_be_bytes().to_vec();
        body.extend(step.to_be_bytes());
        body.extend([0, 3]);
        self.xid += 1;
        self.send(kind::BUNDLE_CONTROL, self.xid, &body);
        if step == 0 {
            self.expect(kind::BUNDLE_CONTROL);
        }
    }

    /// Puts a whole message into a bundle, under its transaction id.
    pub fn bundle_add(&mut self, id: u32, inner: &[u8]) {
        let mut body = id.to_be_bytes().to_vec();
        body.extend([0, 0, 0, 3]);
        body.extend(inner);
        let xid = u32::from_be_bytes([inner[4], inner[5], inner[6], inner[7]]);
        self.send(kind::BUNDLE_ADD, xid, &body);
    }

    /// A bundle-control request and how it ends.
    pub fn bundle_result(&mut self, id: u32, step: u16) -> Result<(), ()> {
        self.bundle(id, step);
        let mut result = Ok(());
        loop {
            let m = self.next().unwrap();
            match m.kind {
                kind::ERROR if m.xid == self.xid => return Err(()),
                kind::ERROR => result = Err(()),
                kind::BUNDLE_CONTROL => return result,
                _ => {}
            }
        }
    }
}

fn code(m: &Message) -> (u16, u16) {
    let at = |i| u16::from_be_bytes([m.body[i], m.body[i + 1]]);
    (at(0), at(2))
}

fn message(version: u8, kind: u8, xid: u32, body: &[u8]) -> Vec<u8> {
    let mut m = vec![version, kind];
    m.extend(((8 + body.len()) as u16).to_be_bytes());
    m.extend(xid.to_be_bytes());
    m.extend(body);
    m
}

/// "add": what comes in at `from`, with `actions`, goes that way.
fn add(version: u8, xid: u32, from: u32, actions: &[u8]) -> Vec<u8> {
    let mut b = vec![0; 16];
    b.extend([0, 0, 0, 0, 0, 0, 0x80, 0]);
    b.extend([0xff; 12]);
    b.extend([0; 4]);
    // Match: in_port (OXM, padded), then apply-actions.
    b.extend([0, 1, 0, 12, 0x80, 0, 0, 4]);
    b.extend(from.to_be_bytes());
    b.extend([0; 4]);
    b.extend([0, 4]);
    b.extend(((8 + actions.len()) as u16).to_be_bytes());
    b.extend([0; 4]);
    b.extend(actions);
    message(version, kind::FLOW_MOD, xid, &b)
}

/// A flow from port to port.
pub fn flow_mod(version: u8, xid: u32, from: u32, to: u32) -> Vec<u8> {
    let mut output = vec![0, 0, 0, 16];
    output.extend(to.to_be_bytes());
    output.extend([0xff, 0xff, 0, 0, 0, 0, 0, 0]);
    add(version, xid, from, &output)
}

/// A port-mod that takes a port's device down or up; `mac`: the device's address. OpenFlow 1.4 on.
#[allow(dead_code)]
pub fn port_mod(version: u8, xid: u32, port: u32, mac: [u8; 6], down: bool) -> Vec<u8> {
    const PORT_MOD: u8 = 16;
    const PORT_DOWN: u32 = 1;
    let mut body = port.to_be_bytes().to_vec();
    body.extend([0; 4]);
    body.extend(mac);
    body.extend([0; 2]);
    body.extend(if down { PORT_DOWN } else { 0 }.to_be_bytes());
    body.extend(PORT_DOWN.to_be_bytes());
    message(version, PORT_MOD, xid, &body)
}

/// A flow from a port to a group.
pub fn flow_mod_to_group(version: u8, xid: u32, from: u32, group: u32) -> Vec<u8> {
    let mut action = vec![0, 22, 0, 8];
    action.extend(group.to_be_bytes());
    add(version, xid, from, &action)
}
