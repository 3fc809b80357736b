//! The readers of `.snoop` sockets.

use super::io::Backlog;
use std::cell::RefCell;
use std::rc::Rc;
use tokio::sync::mpsc::UnboundedSender;

/// Bytes that may wait for a client that does not read; messages beyond are left out.
const SNOOP_BACKLOG_BYTES_MAX: usize = 1 << 20;

/// A reader: bridge, writer, bytes waiting.
pub(super) struct Snoop {
    pub bridge: String,
    pub out: UnboundedSender<Vec<u8>>,
    pub backlog: Rc<Backlog>,
}

/// The readers of all bridges.
#[derive(Clone, Default)]
pub struct Snoops(Rc<RefCell<Vec<Snoop>>>);

impl Snoops {
    /// Copies a message of one of the bridge's controllers, or to it.
    pub fn copy(&self, bridge: &str, bytes: &[u8]) {
        self.0.borrow_mut().retain(|s| {
            if s.bridge != bridge || s.backlog.bytes() > SNOOP_BACKLOG_BYTES_MAX {
                return !s.out.is_closed();
            }
            s.backlog.add(bytes.len());
            s.out.send(bytes.to_vec()).is_ok()
        });
    }

    /// Adds a reader.
    pub(super) fn add(&self, snoop: Snoop) {
        self.0.borrow_mut().push(snoop);
    }

    /// The bridge is gone.
    pub fn forget(&self, bridge: &str) {
        self.0.borrow_mut().retain(|s| s.bridge != bridge);
    }
}
