//! Where OpenFlow connections come from: listeners (`<bridge>.mgmt`, `<bridge>.snoop`, passive
//! controllers), and active controllers with backoff.

use super::account::CONNECTIONS_MAX;
use super::conn::Kind;
use super::io::{Task, UnixSocket, error_text};
use super::server::serve_paced;
use super::snoop;
use super::timing::Timing;
use crate::address::Address;
use crate::listener::{self, ConnectionSlot, ConnectionSlots, EvictionQueue, Peer};
use crate::state::Shared;
use crate::tls;
use crate::vlog;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixStream};

const MODULE: &str = "rconn";

/// What a listener makes of those who connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Service {
    /// An OpenFlow connection of this kind.
    OpenFlow(Kind),
    /// A reader of what controllers and the switch say to each other.
    Snoop,
}

/// Listens on a unix socket for a bridge.
pub fn listen_unix(
    state: &Shared,
    path: &Path,
    bridge: &str,
    service: Service,
) -> io::Result<UnixSocket> {
    let _ = std::fs::remove_file(path);
    let listener = listener::bind_unix(path)?;
    let (state, bridge) = (state.clone(), bridge.to_string());
    let name = path.display().to_string();
    let task = Task::spawn(async move {
        let slots = ConnectionSlots::new(CONNECTIONS_MAX);
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let taken = take_slot(&state, &slots, Peer::of_unix(&stream), &name).await;
                    let Some(slot) = taken else { continue };
                    accept(&state, &bridge, &service, Timing::default(), (stream, slot));
                }
                Err(e) => {
                    vlog::warn!(MODULE, "{bridge}: accept: {e}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    });
    Ok(UnixSocket { path: path.into(), _task: task })
}

/// Listens on TCP for a bridge and a row of the database (`ptcp:[PORT][:ADDR]`).
pub fn listen_tcp(state: &Shared, addr: Address, bridge: &str, kind: Kind, timing: Timing) -> Task {
    let (state, bridge) = (state.clone(), bridge.to_string());
    let row = kind.target().unwrap_or_default().to_string();
    let mut bound = addr.listen_now();
    Task::spawn(async move {
        let listener = loop {
            let result = match bound.take() {
                Some(listener) => TcpListener::from_std(listener),
                None => addr.listen().await,
            };
            match result {
                Ok(l) => break l,
                Err(e) => {
                    let error = error_text(&e);
                    vlog::warn!(MODULE, "{bridge}: listening on {}: {error}", addr.place);
                    state.borrow_mut().controller_failed(&bridge, &row, &error);
                }
            }
            tokio::time::sleep(Duration::from_secs(5)).await;
        };
        let service = Service::OpenFlow(kind);
        let slots = ConnectionSlots::new(CONNECTIONS_MAX);
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => {
                    let taken = take_slot(&state, &slots, Peer::Host(peer.ip()), &row).await;
                    let Some(slot) = taken else { continue };
                    let _ = stream.set_nodelay(true);
                    accept(&state, &bridge, &service, timing.clone(), (stream, slot));
                }
                // Out of descriptors, say: leave others time to give some back.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    })
}

/// Listens for TLS for a bridge and a row of the database (`pssl:[PORT][:ADDR]`).
pub fn listen_tls(state: &Shared, addr: Address, bridge: &str, kind: Kind, timing: Timing) -> Task {
    let (state, bridge) = (state.clone(), bridge.to_string());
    let row = kind.target().unwrap_or_default().to_string();
    let bound = addr.listen_now();
    Task::spawn(async move {
        let failed = |error: &str| state.borrow_mut().controller_failed(&bridge, &row, error);
        let tls = state.borrow().of.tls.clone();
        if let Err(e) = tls.check().await {
            failed(&error_text(&e));
        }
        let mut listener = match tls.listen(addr, bound, CONNECTIONS_MAX) {
            Ok(listener) => listener,
            Err(e) => return failed(&error_text(&e)),
        };
        let service = Service::OpenFlow(kind);
        while let Some(event) = listener.next().await {
            match event {
                tls::ListenEvent::Connected(stream, slot) => {
                    accept(&state, &bridge, &service, timing.clone(), (stream, slot));
                }
                tls::ListenEvent::Full(most) => refused(&state, &row, most),
                tls::ListenEvent::Failed(why) => failed(&why),
            }
        }
    })
}

/// A place for a connection that was accepted; None: it ends at once.
async fn take_slot(
    state: &Shared,
    slots: &ConnectionSlots,
    peer: Peer,
    name: &str,
) -> Option<ConnectionSlot> {
    let slot = slots.take(peer).await;
    if slot.is_none() {
        refused(state, name, slots.most());
    }
    slot
}

/// Says and counts that a listener had no place for a connection.
fn refused(state: &Shared, name: &str, most: usize) {
    vlog::warn!(MODULE, "{name}: {most} connections at once are the most: refusing another");
    state.borrow_mut().of.counts.not_served += 1;
}

fn accept<S: AsyncRead + AsyncWrite + 'static>(
    state: &Shared,
    bridge: &str,
    service: &Service,
    timing: Timing,
    (stream, slot): (S, ConnectionSlot),
) {
    match service {
        Service::OpenFlow(kind) => {
            let (state, bridge, kind) = (state.clone(), bridge.to_string(), kind.clone());
            tokio::task::spawn_local(async move {
                serve_paced(&state, &bridge, kind, timing, (stream, slot.eviction())).await;
            });
        }
        Service::Snoop => snoop::serve(state, bridge, stream, slot),
    }
}

/// Where an active controller is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// `tcp:HOST[:PORT]`
    Tcp(Address),
    /// `unix:FILE`
    Unix(PathBuf),
    /// `ssl:HOST[:PORT]`
    Tls(Address),
}

/// Keeps a connection to a controller: connect, serve, back off, again.
pub fn connect(state: &Shared, bridge: &str, kind: Kind, target: Target, timing: Timing) -> Task {
    let (state, bridge) = (state.clone(), bridge.to_string());
    let row = kind.target().unwrap_or_default().to_string();
    Task::spawn(async move {
        let first = || Duration::from_secs(1).min(timing.now().max_backoff);
        // After the longest pause attempts go on, without a word.
        let (mut pause, mut quiet) = (first(), false);
        loop {
            let since = Instant::now();
            let error = attempt(&state, &bridge, kind.clone(), &target, &timing, pause).await;
            let max_backoff = timing.now().max_backoff;
            let mut failed = false;
            if let Err(e) = error {
                let text = error_text(&e);
                failed = true;
                // What is wrong with this side's files is in the log already.
                if !quiet && !tls::is_unusable(&e) {
                    vlog::warn!(MODULE, "{bridge}<->{row}: connection failed ({text})");
                }
                state.borrow_mut().controller_failed(&bridge, &row, &text);
            }
            // A connection that lasted starts again with the shortest pause.
            if !failed || since.elapsed() > max_backoff {
                (pause, quiet) = (first(), false);
            }
            if failed && !quiet && pause >= max_backoff {
                quiet = true;
                vlog::info!(
                    MODULE,
                    "{bridge}<->{row}: continuing to retry connections in the background but \
                     suppressing further logging"
                );
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(max_backoff);
        }
    })
}

/// Connects, within `wait_max`, and serves until the connection ends.
async fn attempt(
    state: &Shared,
    bridge: &str,
    kind: Kind,
    target: &Target,
    timing: &Timing,
    wait_max: Duration,
) -> io::Result<()> {
    let wait_max = wait_max.max(Duration::from_secs(1));
    let late = || io::Error::from_raw_os_error(libc::ETIMEDOUT);
    // A connection that the switch began has no place that others want.
    let eviction = EvictionQueue::default();
    match target {
        Target::Tcp(addr) => {
            let connecting = tokio::time::timeout(wait_max, addr.connect());
            let stream = connecting.await.map_err(|_| late())??;
            let _ = stream.set_nodelay(true);
            serve_paced(state, bridge, kind, timing.clone(), (stream, &eviction)).await;
        }
        Target::Unix(path) => {
            let connecting = tokio::time::timeout(wait_max, UnixStream::connect(path));
            let stream = connecting.await.map_err(|_| late())??;
            serve_paced(state, bridge, kind, timing.clone(), (stream, &eviction)).await;
        }
        Target::Tls(addr) => {
            let tls = state.borrow().of.tls.clone();
            let connecting = tokio::time::timeout(wait_max, tls.connect(addr.clone()));
            let stream = connecting.await.map_err(|_| late())??;
            serve_paced(state, bridge, kind, timing.clone(), (stream, &eviction)).await;
        }
    }
    Ok(())
}
