//! `<bridge>.snoop`: what the bridge's controllers and the switch say to each other, for a third.

use super::server::{Task, write};
use crate::listener::Seat;
use crate::state::Shared;
use openflow::codec;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::sync::mpsc::{self, UnboundedSender};

/// Bytes that may wait for a reader who does not read; messages beyond are left out.
const BACKLOG: usize = 1 << 20;

/// A reader: bridge, writer, bytes waiting.
struct Snoop {
    bridge: String,
    out: UnboundedSender<Vec<u8>>,
    backlog: Rc<Cell<usize>>,
}

/// The readers of all bridges.
#[derive(Clone, Default)]
pub struct Snoops(Rc<RefCell<Vec<Snoop>>>);

impl Snoops {
    /// Copies a message of one of the bridge's controllers, or to it.
    pub fn copy(&self, bridge: &str, bytes: &[u8]) {
        self.0.borrow_mut().retain(|s| {
            if s.bridge != bridge || s.backlog.get() > BACKLOG {
                return !s.out.is_closed();
            }
            s.backlog.set(s.backlog.get() + bytes.len());
            s.out.send(bytes.to_vec()).is_ok()
        });
    }

    /// The bridge is gone.
    pub fn forget(&self, bridge: &str) {
        self.0.borrow_mut().retain(|s| s.bridge != bridge);
    }
}

/// Serves a reader: a hello, then copies as long as it stays.
pub fn serve<S: AsyncRead + AsyncWrite + 'static>(
    state: &Shared,
    bridge: &str,
    stream: S,
    seat: Seat,
) {
    let (reader, writer) = tokio::io::split(stream);
    let (out, queue) = mpsc::unbounded_channel();
    let backlog = Rc::new(Cell::new(0));
    let snoops = state.borrow().snoops.clone();
    let hello = codec::encode_hello(1, crate::state::DEFAULT_VERSIONS);
    backlog.set(hello.len());
    let _ = out.send(hello);
    let snoop = Snoop { bridge: bridge.to_string(), out, backlog: backlog.clone() };
    snoops.0.borrow_mut().push(snoop);
    tokio::task::spawn_local(async move {
        let _writer = Task::spawn(write(writer, queue, backlog));
        let mut reader = std::pin::pin!(reader);
        let mut buf = [0; 512];
        while matches!(reader.read(&mut buf).await, Ok(n) if n > 0) {}
        drop(seat);
    });
}
