//! One connection: the tasks that read and write it. What makes connections is in `connect.rs`.

use super::account::{REPLY_BYTES_MAX, Turn};
use super::conn::{Conn, ConnId, Kind};
use super::dispatch;
use super::io::{Backlog, Task, drained, write};
use super::pace::Paced;
use super::timing::Timing;
use crate::listener::EvictionQueue;
use crate::state::{Shared, wait_for_changes};
use crate::vlog;
use openflow::Reply;
use openflow::framing::Framer;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::sync::{mpsc, oneshot};
use tokio::time::error::Elapsed;

const MODULE: &str = "rconn";
/// How long a controller may take for its hello.
const HELLO_TIME_MAX: Duration = Duration::from_secs(8);

/// Messages after which changes are handed to the packet side. With more, the switch half would
/// merge their regions, and more cached decisions would go than must.
const FLUSH_INTERVAL_MESSAGES: u32 = 64;
/// Changes on their way to the packet side beyond which a connection waits for those so far before
/// it makes more: each keeps its regions.
const CHANGES_AHEAD_MAX: usize = 64;

/// A peer that sent something this soon after the last time is waited for awake.
const PROMPT_PEER_PAUSE_MAX: Duration = Duration::from_micros(300);

/// How long, at most. A thread that sleeps costs such a peer two wake-ups of a core per message,
/// which on virtual machines is most of the time that it waits.
const AWAKE_WAIT_MAX: Duration = Duration::from_micros(150);

/// One connection from hello to the end, with its peer's part of its bridge's share of the control
/// thread. It makes room for another one at any time.
pub(super) async fn serve_paced<S: AsyncRead + AsyncWrite + 'static>(
    state: &Shared,
    bridge: &str,
    kind: Kind,
    timing: Timing,
    stream: (S, &EvictionQueue),
) {
    let pace = state.borrow().of.paces.of(bridge);
    let eviction = stream.1;
    Paced::new(pace, eviction, run_connection(state, bridge, kind, timing, stream)).await;
}

async fn run_connection<S: AsyncRead + AsyncWrite + 'static>(
    state: &Shared,
    bridge: &str,
    kind: Kind,
    timing: Timing,
    (stream, eviction): (S, &EvictionQueue),
) {
    let (reader, writer) = tokio::io::split(stream);
    let (out, queue) = mpsc::unbounded_channel();
    let backlog = Rc::new(Backlog::default());
    let _writer = Task::spawn(write(writer, queue, backlog.clone()));
    let (open, closed) = oneshot::channel();
    let id = {
        let mut s = state.borrow_mut();
        let mut conn = Conn::new(bridge.into(), kind.clone(), out, backlog.clone(), open);
        conn.snoops = s.of.snoops.clone();
        if kind.target().is_some_and(|t| s.is_silent(bridge, t)) {
            conn.wants = super::conn::NO_WANTS;
        }
        s.add_conn(conn)
    };
    let guard = RemoveOnDrop { state: state.clone(), id };
    send_hello(state, id);
    let name = state.borrow().conn_name(id);
    let why = tokio::select! {
        why = read(state, id, timing, reader, Peer { backlog: &backlog, eviction }) => Some(why),
        () = eviction.evicted() => {
            vlog::warn!(MODULE, "{name}: another connection gets its place, disconnecting");
            Some(CloseReason::Replaced)
        }
        // The connection was removed meanwhile.
        _ = closed => None,
    };
    let made_room = why == Some(CloseReason::Replaced);
    if let (Some(target), Some(why)) = (kind.target(), why) {
        state.borrow_mut().controller_ended(bridge, target, &name, why);
    }
    // Let the last replies (an error before closing) go out.
    for _ in 0..20 {
        if backlog.bytes() == 0 || made_room {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(guard);
}

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The peer closed it.
    Closed,
    /// What carries it failed: how, if that is more than that it is closed.
    Broken(String),
    /// The peer said nothing for too long.
    Silent,
    /// What came is not OpenFlow, or no version is common.
    Protocol,
    /// Another connection has its place, because nothing was heard from it for longest.
    Replaced,
    /// We closed it.
    Ours,
}

/// Removes the connection when its task ends, however it ends.
struct RemoveOnDrop {
    state: Shared,
    id: ConnId,
}

impl Drop for RemoveOnDrop {
    fn drop(&mut self) {
        if let Ok(mut s) = self.state.try_borrow_mut() {
            s.remove_conn(self.id);
        }
    }
}

fn send_hello(state: &Shared, id: ConnId) {
    let mut s = state.borrow_mut();
    let versions = s.versions_of(id);
    let hello = openflow::codec::encode_hello(1, versions);
    if let Some(c) = s.conns.get_mut(&id) {
        c.send_all(vec![hello], || super::message_text::offered(versions));
    }
}

/// Reads without going to sleep, giving others their turn; None: nothing came for
/// [`AWAKE_WAIT_MAX`].
async fn read_awake<R: AsyncRead>(
    reader: &mut Pin<&mut R>,
    buf: &mut [u8],
) -> Option<io::Result<usize>> {
    let since = Instant::now();
    let late = async {
        while since.elapsed() < AWAKE_WAIT_MAX {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        got = reader.read(buf) => Some(got),
        () = late => None,
    }
}

/// A connection's peer: what waits to be sent to it.
struct Peer<'a> {
    /// Bytes that wait for it.
    backlog: &'a Backlog,
    /// Where it is said that the connection waits for its peer.
    eviction: &'a EvictionQueue,
}

impl Peer<'_> {
    /// Waits until few enough bytes wait for the peer.
    async fn drained(&self) {
        if self.backlog.bytes() > REPLY_BYTES_MAX {
            self.eviction.idle(drained(self.backlog, REPLY_BYTES_MAX)).await;
        }
    }
}

/// Waits until the daemon's clock was put forward so far that `time_max` has gone by since it was
/// `since_ms`; zero: for ever.
async fn warped(state: &Shared, since_ms: u64, time_max: Duration) {
    let warped = state.borrow().of.warped.clone();
    loop {
        warped.notified().await;
        let silent = datapath::now_ms().saturating_sub(since_ms);
        if !time_max.is_zero() && u128::from(silent) >= time_max.as_millis() {
            return;
        }
    }
}

/// As [`tokio::time::timeout`]; zero: for ever.
async fn within<T>(time_max: Duration, f: impl Future<Output = T>) -> Result<T, Elapsed> {
    match time_max.is_zero() {
        true => Ok(f.await),
        false => tokio::time::timeout(time_max, f).await,
    }
}

async fn read<R: AsyncRead>(
    state: &Shared,
    id: ConnId,
    mut timing: Timing,
    reader: R,
    peer: Peer<'_>,
) -> CloseReason {
    let mut reader = std::pin::pin!(reader);
    let mut framer = Framer::new();
    let mut buf = vec![0; 64 * 1024];
    let mut probed = false;
    let mut turn = Turn::begin();
    let mut pause = Duration::MAX;
    loop {
        let ready = match state.borrow().conns.get(&id) {
            Some(c) => c.dialect.is_some(),
            None => return CloseReason::Ours,
        };
        let wait_max = if ready { timing.now().probe } else { HELLO_TIME_MAX };
        let (since, since_ms) = (Instant::now(), datapath::now_ms());
        let soon = match pause < PROMPT_PEER_PAUSE_MAX {
            true => read_awake(&mut reader, &mut buf).await,
            false => None,
        };
        let got = match soon {
            Some(r) => Some(r),
            None => tokio::select! {
                biased;
                r = within(wait_max, peer.eviction.idle(reader.read(&mut buf))) => r.ok(),
                () = timing.changed() => continue,
                () = warped(state, since_ms, wait_max), if ready => None,
            },
        };
        let got = match got {
            Some(got) => got,
            None if probed || !ready => return CloseReason::Silent,
            None => {
                probed = true;
                state.borrow_mut().reply(id, 0, &Reply::EchoRequest(Vec::new()));
                continue;
            }
        };
        pause = since.elapsed();
        probed = false;
        match got {
            // The system knows little more than that it is closed; TLS knows why.
            Err(e) if e.raw_os_error().is_none() => return CloseReason::Broken(e.to_string()),
            Ok(0) | Err(_) => return CloseReason::Closed,
            Ok(n) => framer.push(&buf[..n]),
        }
        if let Some(why) = handle_buffered(state, id, &mut framer, &mut turn, &peer).await {
            return why;
        }
        state.borrow_mut().flush_changes();
        peer.drained().await;
    }
}

/// Handles the messages that were read whole; Some: the connection ends.
async fn handle_buffered(
    state: &Shared,
    id: ConnId,
    framer: &mut Framer,
    turn: &mut Turn,
    peer: &Peer<'_>,
) -> Option<CloseReason> {
    for n in 1u32.. {
        let message = match framer.next()? {
            Ok(message) => message,
            Err(e) => {
                let name = state.borrow().conn_name(id);
                vlog::warn!(MODULE, "{name}: {e}, disconnecting");
                return Some(CloseReason::Protocol);
            }
        };
        if n.is_multiple_of(FLUSH_INTERVAL_MESSAGES) {
            state.borrow_mut().flush_changes();
            // Who changes more than cached flows can follow waits for them.
            if state.borrow().changes_ahead() > CHANGES_AHEAD_MAX {
                wait_for_changes(state).await;
            }
        }
        if !dispatch::message(state, id, message).await {
            return Some(CloseReason::Protocol);
        }
        // A peer that always has more to say gives others their turn.
        if turn.is_over() {
            state.borrow_mut().settle_accounts();
            tokio::task::yield_now().await;
            *turn = Turn::begin();
        }
        if peer.backlog.bytes() > REPLY_BYTES_MAX {
            state.borrow_mut().flush_changes();
            peer.drained().await;
        }
    }
    None
}
