//! A connection without a socket and thread, for the fuzzer (crate `fuzz`).

use crate::memory;
use crate::message::{HEADER_BYTES, Header, Message};
use crate::session::Session;
use crate::shared::Shared;
use crate::{Config, Mode};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A message as received: header, payload and descriptors.
pub struct Said {
    /// Encoded request, flags and size.
    pub header: [u8; HEADER_BYTES],
    /// Bytes of the payload; if the header has another size the connection ends.
    pub payload: Vec<u8>,
    /// Descriptors sent with the message.
    pub fds: Vec<OwnedFd>,
}

/// Lets a connection act on messages until one is a violation. Returns the number of messages, and
/// the most units of work of one of them (see `crate::budget`).
pub fn converse(messages: impl IntoIterator<Item = Said>) -> (usize, u32) {
    let (path, mode) = (String::new(), Mode::Client);
    let shared = Shared::new(&Config {
        path,
        mode,
        n_txq: 1,
        offloads: false,
        tx_retries: 0,
        on_change: None,
        warn: None,
        info: None,
    });
    let Ok(event) = memory::event() else { return (0, 0) };
    let mut session = Session::new(&shared, Arc::new(event));
    let (mut taken, mut most) = (0, 0);
    for said in messages {
        let header = Header::decode(&said.header).ok().filter(|h| h.size == said.payload.len());
        let Some(header) = header else { break };
        let message = Message::decode(header.request, &said.payload, said.fds);
        let Ok(units) = message.and_then(|message| session.work(message)) else { break };
        (taken, most) = (taken + 1, most.max(units));
    }
    (taken, most)
}
