//! The message header, and cutting a byte stream into messages.

use std::fmt;

/// Bytes in an OpenFlow header.
pub const HEADER_LEN: usize = 8;

/// A message header (OpenFlow 1.0 section 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageHeader {
    /// Wire version.
    pub version: u8,
    /// Type, numbered per version.
    pub kind: u8,
    /// Bytes in the whole message.
    pub len: u16,
    /// Transaction id.
    pub xid: u32,
}

impl MessageHeader {
    /// Reads a header; `None` if there are fewer than 8 bytes.
    pub fn read(bytes: &[u8]) -> Option<MessageHeader> {
        let b: &[u8; HEADER_LEN] = bytes.first_chunk()?;
        Some(MessageHeader {
            version: b[0],
            kind: b[1],
            len: u16::from_be_bytes([b[2], b[3]]),
            xid: u32::from_be_bytes([b[4], b[5], b[6], b[7]]),
        })
    }
}

/// The stream cannot be cut into messages any more: close the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameError {
    /// The impossible length found.
    pub len: u16,
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "message length {} is less than the header's 8 bytes", self.len)
    }
}

impl std::error::Error for FrameError {}

/// Collects bytes and gives complete messages. Holds at most what was pushed; a message is at most
/// 65535 bytes, so a caller that takes messages as they come bounds its memory.
#[derive(Debug, Default)]
pub struct Framer {
    buf: Vec<u8>,
    at: usize,
}

impl Framer {
    /// An empty one.
    pub fn new() -> Framer {
        Framer::default()
    }

    /// Adds received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.at == self.buf.len() {
            self.buf.clear();
            self.at = 0;
        } else if self.at > self.buf.len() / 2 {
            self.buf.drain(..self.at);
            self.at = 0;
        }
        self.buf.extend_from_slice(bytes);
    }

    /// The next complete message, `None` until more bytes come.
    ///
    /// # Errors
    /// [`FrameError`] for a length below 8; it stays.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<Result<&[u8], FrameError>> {
        let header = MessageHeader::read(&self.buf[self.at..])?;
        let len = usize::from(header.len);
        if len < HEADER_LEN {
            return Some(Err(FrameError { len: header.len }));
        }
        let start = self.at;
        let message = self.buf.get(start..start + len)?;
        self.at += len;
        Some(Ok(message))
    }

    /// Bytes not yet given out.
    pub fn pending(&self) -> usize {
        self.buf.len() - self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_whole_however_they_are_cut() {
        let mut stream = Vec::new();
        for n in 0u8..40 {
            stream.extend([4, 2, 0, 8 + n, 0, 0, 0, n]);
            stream.extend(vec![n; usize::from(n)]);
        }
        for step in [1, 3, 7, 100, stream.len()] {
            let (mut framer, mut seen) = (Framer::default(), 0u8);
            for chunk in stream.chunks(step) {
                framer.push(chunk);
                while let Some(m) = framer.next() {
                    let m = m.unwrap();
                    assert_eq!(m.len(), 8 + usize::from(seen));
                    assert_eq!(MessageHeader::read(m).unwrap().xid, u32::from(seen));
                    seen += 1;
                }
            }
            assert_eq!((seen, framer.pending()), (40, 0));
        }
    }

    #[test]
    fn a_short_length_is_an_error() {
        let mut framer = Framer::default();
        framer.push(&[4, 2, 0, 7, 0, 0, 0, 0]);
        assert_eq!(framer.next(), Some(Err(FrameError { len: 7 })));
        assert_eq!(framer.next(), Some(Err(FrameError { len: 7 })));
    }
}
