//! Sockets: listeners (`<bridge>.mgmt`, `<bridge>.snoop`, passive controllers), active controllers
//! with backoff, and the tasks that read and write one connection.

use super::conn::{Conn, ConnId, Kind};
use super::dispatch;
use crate::state::{Shared, State};
use crate::vlog;
use openflow::Reply;
use std::cell::Cell;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

const MODULE: &str = "rconn";

/// A task that ends when this is dropped.
pub struct Task(JoinHandle<()>);

impl Task {
    /// Starts it on the control thread.
    pub fn spawn(f: impl Future<Output = ()> + 'static) -> Self {
        Task(tokio::task::spawn_local(f))
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A listening unix socket whose file goes with it.
pub struct UnixSocket {
    path: PathBuf,
    _task: Task,
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// What a listener makes of those who connect.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// An OpenFlow connection.
    OpenFlow,
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
    let listener = UnixListener::bind(path)?;
    let (state, bridge) = (state.clone(), bridge.to_string());
    let task = Task::spawn(async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => accept(&state, &bridge, service, stream),
                Err(e) => {
                    vlog::warn!(MODULE, "{bridge}: accept: {e}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    });
    Ok(UnixSocket { path: path.into(), _task: task })
}

/// Listens on TCP for a bridge (`ptcp:[PORT][:ADDR]`).
pub fn listen_tcp(state: &Shared, addr: String, bridge: &str) -> Task {
    let (state, bridge) = (state.clone(), bridge.to_string());
    Task::spawn(async move {
        let listener = loop {
            match TcpListener::bind(&addr).await {
                Ok(l) => break l,
                Err(e) => vlog::warn!(MODULE, "{bridge}: listening on {addr}: {e}"),
            }
            tokio::time::sleep(Duration::from_secs(5)).await;
        };
        loop {
            if let Ok((stream, _)) = listener.accept().await {
                let _ = stream.set_nodelay(true);
                accept(&state, &bridge, Service::OpenFlow, stream);
            }
        }
    })
}

fn accept<S: AsyncRead + AsyncWrite + 'static>(
    state: &Shared,
    bridge: &str,
    service: Service,
    stream: S,
) {
    let (state, bridge) = (state.clone(), bridge.to_string());
    match service {
        Service::OpenFlow => {
            tokio::task::spawn_local(async move {
                serve(&state, &bridge, Kind::Service, Timing::default(), stream).await;
            });
        }
        Service::Snoop => snoop(&state, &bridge, stream),
    }
}

/// Times of an active connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Longest pause between attempts (`Controller.max_backoff`).
    pub max_backoff: Duration,
    /// Silence after which the peer is asked, and then given up (`inactivity_probe`); zero: never.
    pub probe: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Timing { max_backoff: Duration::from_secs(8), probe: Duration::ZERO }
    }
}

/// Where an active controller is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// `tcp:HOST[:PORT]`
    Tcp(String),
    /// `unix:FILE`
    Unix(PathBuf),
}

/// Keeps a connection to a controller: connect, serve, back off, again.
pub fn connect(state: &Shared, bridge: &str, row: &str, target: Target, timing: Timing) -> Task {
    let (state, bridge, row) = (state.clone(), bridge.to_string(), row.to_string());
    Task::spawn(async move {
        let mut pause = Duration::from_secs(1).min(timing.max_backoff);
        loop {
            let since = Instant::now();
            let kind = Kind::Controller(row.clone());
            let result = match &target {
                Target::Tcp(addr) => match TcpStream::connect(addr).await {
                    Ok(stream) => {
                        let _ = stream.set_nodelay(true);
                        serve(&state, &bridge, kind, timing, stream).await;
                        Ok(())
                    }
                    Err(e) => Err(e),
                },
                Target::Unix(path) => match UnixStream::connect(path).await {
                    Ok(stream) => {
                        serve(&state, &bridge, kind, timing, stream).await;
                        Ok(())
                    }
                    Err(e) => Err(e),
                },
            };
            if let Err(e) = result {
                state.borrow_mut().controller_failed(&bridge, &row, &e.to_string());
                vlog::warn!(MODULE, "{bridge}<->{row}: connection failed ({e})");
            }
            let lasted = since.elapsed() > timing.max_backoff;
            pause = if lasted { Duration::from_secs(1) } else { pause * 2 }.min(timing.max_backoff);
            tokio::time::sleep(pause.max(Duration::from_millis(100))).await;
        }
    })
}

/// One connection from hello to the end.
async fn serve<S: AsyncRead + AsyncWrite + 'static>(
    state: &Shared,
    bridge: &str,
    kind: Kind,
    timing: Timing,
    stream: S,
) {
    let (reader, writer) = tokio::io::split(stream);
    let (out, queue) = mpsc::unbounded_channel();
    let backlog = Rc::new(Cell::new(0));
    let _writer = Task::spawn(write(writer, queue, backlog.clone()));
    let id = state.borrow_mut().add_conn(Conn::new(bridge.into(), kind, out, backlog.clone()));
    let guard = Leave { state: state.clone(), id };
    greet(state, id);
    read(state, id, timing, reader, &backlog).await;
    // Let the last replies (an error before closing) go out.
    for _ in 0..20 {
        if backlog.get() == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(guard);
}

/// Removes the connection when its task ends, however it ends.
struct Leave {
    state: Shared,
    id: ConnId,
}

impl Drop for Leave {
    fn drop(&mut self) {
        if let Ok(mut s) = self.state.try_borrow_mut() {
            s.remove_conn(self.id);
        }
    }
}

fn greet(state: &Shared, id: ConnId) {
    let mut s = state.borrow_mut();
    let versions = s.versions_of(id);
    let hello = openflow::codec::encode_hello(1, versions);
    if let Some(c) = s.conns.get_mut(&id) {
        c.send(hello);
    }
}

async fn write<W: AsyncWrite>(
    writer: W,
    mut queue: mpsc::UnboundedReceiver<Vec<u8>>,
    backlog: Rc<Cell<usize>>,
) {
    let mut writer = std::pin::pin!(writer);
    while let Some(mut bytes) = queue.recv().await {
        // Coalesce what is waiting: one system call for many small replies.
        while bytes.len() < 64 * 1024 {
            match queue.try_recv() {
                Ok(more) => bytes.extend_from_slice(&more),
                Err(_) => break,
            }
        }
        let n = bytes.len();
        if writer.write_all(&bytes).await.is_err() {
            return;
        }
        backlog.set(backlog.get().saturating_sub(n));
    }
}

async fn read<R: AsyncRead>(
    state: &Shared,
    id: ConnId,
    timing: Timing,
    reader: R,
    backlog: &Cell<usize>,
) {
    let mut reader = std::pin::pin!(reader);
    let mut framer = openflow::framing::Framer::new();
    let mut buf = vec![0; 64 * 1024];
    let mut probed = false;
    loop {
        let got = if timing.probe.is_zero() {
            reader.read(&mut buf).await
        } else {
            match tokio::time::timeout(timing.probe, reader.read(&mut buf)).await {
                Ok(r) => r,
                Err(_) if probed => {
                    vlog::warn!(MODULE, "no response to inactivity probe, disconnecting");
                    return;
                }
                Err(_) => {
                    probed = true;
                    if let Some(c) = state.borrow_mut().conns.get_mut(&id) {
                        c.reply(0, &Reply::EchoRequest(Vec::new()));
                    }
                    continue;
                }
            }
        };
        probed = false;
        match got {
            Ok(0) | Err(_) => return,
            Ok(n) => framer.push(&buf[..n]),
        }
        loop {
            match framer.next() {
                Some(Ok(message)) => {
                    if !dispatch::message(state, id, message).await {
                        return;
                    }
                }
                Some(Err(e)) => {
                    vlog::warn!(MODULE, "connection {id}: {e:?}, disconnecting");
                    return;
                }
                None => break,
            }
        }
        state.borrow_mut().flush_changes();
        while backlog.get() > 8 << 20 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// A `.snoop` reader: gets a copy of every message of the bridge's controllers.
fn snoop<S: AsyncRead + AsyncWrite + 'static>(state: &Shared, bridge: &str, stream: S) {
    let (reader, writer) = tokio::io::split(stream);
    let (out, queue) = mpsc::unbounded_channel();
    let backlog = Rc::new(Cell::new(0));
    state.borrow_mut().snoops.push((bridge.to_string(), out, backlog.clone()));
    tokio::task::spawn_local(async move {
        let _writer = Task::spawn(write(writer, queue, backlog));
        let mut reader = std::pin::pin!(reader);
        let mut buf = [0; 512];
        while matches!(reader.read(&mut buf).await, Ok(n) if n > 0) {}
    });
}

impl State {
    /// Copies a message to those who snoop on the bridge.
    pub fn snoop(&mut self, bridge: &str, bytes: &[u8]) {
        self.snoops.retain(|(b, out, backlog)| {
            if b != bridge {
                return true;
            }
            if backlog.get() > 1 << 20 {
                return !out.is_closed();
            }
            backlog.set(backlog.get() + bytes.len());
            out.send(bytes.to_vec()).is_ok()
        });
    }
}
