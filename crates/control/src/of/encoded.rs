//! A message for several connections, which is encoded once for all that speak alike.

use openflow::Reply;
use openflow::codec::{self, Dialect};

/// An asynchronous message, and its bytes for each dialect that asked for them.
pub struct Encoded<'a> {
    message: &'a Reply,
    forms: Vec<(Dialect, Vec<Vec<u8>>)>,
}

impl<'a> Encoded<'a> {
    /// A message that is not encoded before a connection wants it.
    pub fn new(message: &'a Reply) -> Encoded<'a> {
        Encoded { message, forms: Vec::new() }
    }

    /// The message itself.
    pub fn message(&self) -> &'a Reply {
        self.message
    }

    /// The message's bytes; none if the dialect has no such message.
    pub fn of(&mut self, dialect: Dialect) -> &[Vec<u8>] {
        let at = self.forms.iter().position(|(known, _)| *known == dialect);
        let at = at.unwrap_or_else(|| {
            self.forms.push((dialect, codec::encode(dialect, 0, self.message)));
            self.forms.len() - 1
        });
        &self.forms[at].1
    }

    /// How often the message was encoded.
    #[cfg(test)]
    pub fn encodings(&self) -> usize {
        self.forms.len()
    }
}
