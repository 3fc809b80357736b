//! JSON values out of a byte stream that has no other framing (RFC 7047 section 4).

use serde_json::Value;
use thiserror::Error;

/// The largest message accepted unless the caller says otherwise, in bytes. A database of a hundred
/// thousand interfaces stays below it.
pub const MAX_MESSAGE: usize = 256 << 20;

/// The stream cannot be JSON-RPC; there is no way to find the next message in it.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum FramingError {
    /// A message starts with something else than `{` or `[`.
    #[error("unexpected byte 0x{0:02x} at the start of a message")]
    NotAMessage(u8),
    /// A message has balanced brackets but is not JSON.
    #[error("malformed JSON: {0}")]
    Malformed(String),
    /// A message exceeds the limit, in bytes.
    #[error("message exceeds {0} bytes")]
    TooLong(usize),
}

/// Splits a byte stream into JSON objects and arrays; each byte is scanned once.
#[derive(Debug)]
pub struct Framer {
    buffer: Vec<u8>,
    scanned: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
    limit: usize,
}

impl Default for Framer {
    fn default() -> Self {
        Self::with_limit(MAX_MESSAGE)
    }
}

impl Framer {
    /// A framer that refuses messages of more than `limit` bytes.
    pub fn with_limit(limit: usize) -> Self {
        Self { buffer: Vec::new(), scanned: 0, depth: 0, in_string: false, escaped: false, limit }
    }

    /// Appends bytes as they came from the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Whether bytes of an unfinished message are held.
    pub fn has_partial(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// The next complete message, `None` when more bytes are needed. After an error the stream is
    /// of no further use.
    pub fn next_message(&mut self) -> Result<Option<Value>, FramingError> {
        self.next_bytes()?.map(|bytes| parse(&bytes)).transpose()
    }

    /// As [`Framer::next_message`], for a caller that parses the message ([`parse`]) elsewhere.
    pub fn next_bytes(&mut self) -> Result<Option<Vec<u8>>, FramingError> {
        if self.depth == 0 {
            self.skip_blank()?;
        }
        while self.scanned < self.buffer.len() {
            let byte = self.buffer[self.scanned];
            self.scanned += 1;
            if self.ends_message(byte) {
                let rest = self.buffer.split_off(std::mem::take(&mut self.scanned));
                return Ok(Some(std::mem::replace(&mut self.buffer, rest)));
            }
            if self.scanned > self.limit {
                return Err(FramingError::TooLong(self.limit));
            }
        }
        Ok(None)
    }

    fn skip_blank(&mut self) -> Result<(), FramingError> {
        let blank = self.buffer.iter().take_while(|b| b.is_ascii_whitespace()).count();
        self.buffer.drain(..blank);
        match self.buffer.first() {
            None | Some(b'{' | b'[') => Ok(()),
            Some(&other) => Err(FramingError::NotAMessage(other)),
        }
    }

    fn ends_message(&mut self, byte: u8) -> bool {
        if self.in_string {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return false;
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => {
                self.depth -= 1;
                return self.depth == 0;
            }
            _ => {}
        }
        false
    }
}

/// Reads a message that [`Framer::next_bytes`] found.
///
/// # Errors
/// It is not JSON.
pub fn parse(message: &[u8]) -> Result<Value, FramingError> {
    serde_json::from_slice(message).map_err(|e| FramingError::Malformed(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn messages_are_found_whatever_the_chunks() {
        let text = br#" {"a":"}{\"["} [1,{"b":[]}]
{}"#;
        for chunk in 1..text.len() {
            let mut framer = Framer::default();
            let mut seen = Vec::new();
            for piece in text.chunks(chunk) {
                framer.push(piece);
                while let Some(value) = framer.next_message().unwrap() {
                    seen.push(value);
                }
            }
            assert_eq!(seen, [json!({"a": "}{\"["}), json!([1, {"b": []}]), json!({})]);
            assert!(!framer.has_partial());
        }
    }

    #[test]
    fn what_is_not_a_message_is_an_error() {
        for (text, limit) in
            [("x", 100), ("}", 100), ("{]", 100), ("[1 2]", 100), (r#"["aaaaaaaaaa"#, 5)]
        {
            let mut framer = Framer::with_limit(limit);
            framer.push(text.as_bytes());
            assert!(framer.next_message().is_err(), "{text}");
        }
    }

    #[test]
    fn deep_nesting_is_an_error_and_no_overflow() {
        let mut framer = Framer::default();
        framer.push("[".repeat(100_000).as_bytes());
        framer.push("]".repeat(100_000).as_bytes());
        assert!(framer.next_message().is_err());
    }
}
