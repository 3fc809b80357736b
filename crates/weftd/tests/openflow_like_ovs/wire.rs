//! A connection that asks one thing at a time and says what came back.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const HELLO: u8 = 0;
const ERROR: u8 = 1;
/// Since 1.2.
const ROLE_REQUEST: u8 = 24;
/// Nicira's, in a vendor's message.
const NXT_ROLE_REQUEST: [u8; 8] = [0, 0, 0x23, 0x20, 0, 0, 0, 10];
const ECHO_REQUEST: u8 = 2;
/// What comes without being asked for: packet-in, flow-removed, port-status, and those of 1.4.
const ASYNCHRONOUS: &[u8] = &[10, 11, 12, 30, 31, 32];
/// Transaction id of the barriers that end an answer.
const LAST: u32 = 0x7fff_0001;

/// A part of an answer, as far as it is compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Type and code; of an experimenter's error also its number.
    Error(u16, u16, u32),
    /// A message of this type and version; pieces of one reply are one.
    Reply(u8, u8),
    /// The switch ended the connection.
    Closed,
}

/// An open connection.
pub struct Client {
    stream: UnixStream,
    version: u8,
}

struct Message {
    version: u8,
    kind: u8,
    xid: u32,
    body: Vec<u8>,
}

/// True if a message asks for a role.
pub fn is_role_request(message: &[u8]) -> bool {
    message[1] == ROLE_REQUEST || message.get(8..16) == Some(&NXT_ROLE_REQUEST)
}

impl Client {
    /// Connects and agrees on a version.
    pub fn connect(path: &Path, version: u8) -> Client {
        let stream =
            UnixStream::connect(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut client = Client { stream, version };
        let mut hello = vec![version, HELLO, 0, 16, 0, 0, 0, 1, 0, 1, 0, 8];
        hello.extend((1u32 << version).to_be_bytes());
        client.stream.write_all(&hello).unwrap();
        assert_eq!(client.next().map(|m| m.kind), Some(HELLO));
        client
    }

    fn next(&mut self) -> Option<Message> {
        let mut head = [0; 8];
        self.stream.read_exact(&mut head).ok()?;
        let len = usize::from(u16::from_be_bytes([head[2], head[3]]));
        let mut body = vec![0; len.checked_sub(8)?];
        self.stream.read_exact(&mut body).ok()?;
        let xid = u32::from_be_bytes([head[4], head[5], head[6], head[7]]);
        Some(Message { version: head[0], kind: head[1], xid, body })
    }

    /// Sends a message and a barrier; what comes back before the barrier's reply.
    pub fn ask(&mut self, message: &[u8]) -> Vec<Answer> {
        let barrier = if self.version == 1 { 18 } else { 20 };
        let mut bytes = message.to_vec();
        bytes.extend([self.version, barrier, 0, 8]);
        bytes.extend(LAST.to_be_bytes());
        let _ = self.stream.write_all(&bytes);
        let mut answers = Vec::new();
        loop {
            let Some(m) = self.next() else {
                answers.push(Answer::Closed);
                return answers;
            };
            if m.kind == barrier + 1 && m.xid == LAST {
                return answers;
            }
            let answer = match m.kind {
                ERROR => error(&m.body),
                ECHO_REQUEST => continue,
                kind if ASYNCHRONOUS.contains(&kind) => continue,
                kind => Answer::Reply(m.version, kind),
            };
            if answers.last() != Some(&answer) {
                answers.push(answer);
            }
        }
    }
}

fn error(body: &[u8]) -> Answer {
    let at = |i: usize| u16::from_be_bytes([body[i], body[i + 1]]);
    let experimenter = if at(0) == 0xffff || at(0) == 0xb0c2 { 4 } else { body.len() };
    let number = body.get(experimenter..experimenter + 4).unwrap_or(&[0; 4]);
    Answer::Error(at(0), at(2), u32::from_be_bytes([number[0], number[1], number[2], number[3]]))
}
