//! A connection without a socket and thread, for the fuzzer (crate `fuzz`); the time after which an
//! engine hangs, for tests whose engine is a thread.

use crate::completions::HANG_TIME_MS_MAX;
use crate::memory;
use crate::message::{HEADER_BYTES, Header, Message};
use crate::session::Session;
use crate::shared::Shared;
use crate::{Config, Mode};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Sets how long an engine may complete no copy before it counts as hanging, ms: a machine with
/// other work takes the core of an engine that is a thread away for longer than any engine takes.
pub fn set_hang_time(ms: u32) {
    HANG_TIME_MS_MAX.store(ms, Ordering::Relaxed);
}

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
