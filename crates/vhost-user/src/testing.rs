//! A connection without its socket and thread: for the fuzzer (crate `fuzz`).

use crate::memory;
use crate::message::{HEADER_BYTES, Header, Message};
use crate::session::Session;
use crate::shared::Shared;
use crate::{Config, Mode};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A message as it comes: header, payload and descriptors.
pub struct Said {
    /// Request, flags and size.
    pub header: [u8; HEADER_BYTES],
    /// As many bytes as there are; a message whose header says something else ends the connection.
    pub payload: Vec<u8>,
    /// What came with it.
    pub fds: Vec<OwnedFd>,
}

/// Has a connection act on messages until one is a violation. How many it took, and the most units
/// of work that one of them was (see `crate::budget`).
pub fn converse(messages: impl IntoIterator<Item = Said>) -> (usize, u32) {
    let (path, mode) = (String::new(), Mode::Client);
    let shared = Shared::new(&Config {
        path,
        mode,
        n_txq: 1,
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
