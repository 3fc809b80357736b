//! `<bridge>.snoop`: what the bridge's controllers and the switch say to each other, for a third.

use super::io::{Backlog, Task, write};
use super::snoops::Snoop;
use crate::listener::ConnectionSlot;
use crate::state::Shared;
use crate::vlog;
use openflow::codec;
use std::rc::Rc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::sync::mpsc;

const MODULE: &str = "connmgr";

/// Serves a reader: a hello, then copies as long as it stays. A bridge without controllers has
/// nothing to show: its readers are sent away, so that they do not wait for nothing.
pub fn serve<S: AsyncRead + AsyncWrite + 'static>(
    state: &Shared,
    bridge: &str,
    stream: S,
    slot: ConnectionSlot,
) {
    if state.borrow().bridges.get(bridge).is_none_or(|b| b.controllers.is_empty()) {
        vlog::info!(MODULE, "{bridge}: no controller connection to snoop");
        return;
    }
    let (reader, writer) = tokio::io::split(stream);
    let (out, queue) = mpsc::unbounded_channel();
    let backlog = Rc::new(Backlog::default());
    let snoops = state.borrow().of.snoops.clone();
    let hello = codec::encode_hello(1, crate::state::DEFAULT_VERSIONS);
    backlog.add(hello.len());
    let _ = out.send(hello);
    let snoop = Snoop { bridge: bridge.to_string(), out, backlog: backlog.clone() };
    snoops.add(snoop);
    tokio::task::spawn_local(async move {
        let _writer = Task::spawn(write(writer, queue, backlog));
        let mut reader = std::pin::pin!(reader);
        let mut buf = [0; 512];
        // A reader never says anything: the one that came first makes room.
        let eviction = slot.eviction();
        let ended =
            async { while matches!(eviction.idle(reader.read(&mut buf)).await, Ok(1..)) {} };
        eviction.unless_evicted(ended).await;
    });
}
