//! A port's socket: listens or connects, and gives each connection a thread of its own, so that a
//! front-end that hangs, floods or never reads delays no other port.

use crate::budget::CONNECTION_UNITS;
use crate::counters::Counters;
use crate::memory;
use crate::queue::{Rx, Tx};
use crate::session;
use crate::shared::{Info, Inform, OnChange, Shared, Warn};
use crate::stream::{self, End, Stream};
use crate::violation::Violation;
use packet::Pool;
use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak, mpsc};
use std::time::{Duration, Instant};

/// Longest path of a UNIX socket, without the NUL.
const PATH_BYTES_MAX: usize = 107;
/// Most connections of one socket at a time: one is served; another may be that of a restarted
/// guest whose old connection is not yet known to be dead.
const CONNECTIONS_MAX: usize = 4;
/// Bytes of the stack of a connection's thread, which has nothing large on it.
const STACK_BYTES: usize = 256 << 10;
/// First and longest pause between two attempts to connect. DPDK's library tries each second.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_LONGEST: Duration = Duration::from_secs(1);
/// Longest wait for the threads of a socket to end: unmapping a large guest takes a while. The
/// threads end later in any case.
const END_SECONDS_MAX: Duration = Duration::from_secs(5);

/// Which side creates the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The guest creates the socket; we connect, and connect again after each disconnection.
    Client,
    /// We create the socket, and unlink it at the end.
    Server,
}

/// Settings of a socket.
#[derive(Clone)]
pub struct Config {
    /// Path of the socket.
    pub path: String,
    /// Which side creates the socket.
    pub mode: Mode,
    /// Number of send handles.
    pub n_txq: usize,
    /// Attempts to send after the first while the guest's queue is full and the guest takes
    /// packets.
    pub tx_retries: u32,
    /// The guest may leave checksums and segments of TCP to the switch ([`crate::OFFLOADS`]), and
    /// segments are sent to it merged if it takes them so.
    pub offloads: bool,
    /// Called when a guest, or one of its queues, appears or disappears.
    pub on_change: Option<OnChange>,
    /// Destination of warnings.
    pub warn: Option<Warn>,
    /// Destination of log lines that are not warnings: those that DPDK's library and ovs-vswitchd
    /// log about a socket and its guest.
    pub info: Option<Inform>,
}

/// The path of a socket, reserved for a port of this process until this is dropped.
pub struct Claim(String);

static CLAIMS: Mutex<Option<HashSet<String>>> = Mutex::new(None);

fn with_claims<T>(f: impl FnOnce(&mut HashSet<String>) -> T) -> T {
    f(CLAIMS.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default())
}

impl Claim {
    /// Claims a path and checks that it can be one of a socket.
    ///
    /// # Errors
    /// The path cannot be one of a socket, or another port uses it. As a server: something else is
    /// there.
    pub fn new(path: &str, mode: Mode) -> Result<Claim, String> {
        let error = |reason: &str| Err(format!("vhost-user socket '{path}': {reason}"));
        if path.len() > PATH_BYTES_MAX {
            return error("the path is longer than 107 bytes");
        }
        if path.contains('\0') {
            return error("contains a NUL byte");
        }
        if !with_claims(|claims| claims.insert(path.into())) {
            return error("another port uses it already");
        }
        let claim = Claim(path.into());
        if mode == Mode::Server
            && let Err(reason) = remove_stale(Path::new(path))
        {
            return error(&reason);
        }
        Ok(claim)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        with_claims(|claims| claims.remove(&self.0));
    }
}

/// Removes a socket on which no process listens any more. Any other kind of file at this path is an
/// error.
fn remove_stale(path: &Path) -> Result<(), String> {
    let Ok(meta) = path.symlink_metadata() else { return Ok(()) };
    if !meta.file_type().is_socket() {
        return Err("something that is not a socket is there".into());
    }
    if connect(path).is_ok() {
        return Err("another process listens on it".into());
    }
    std::fs::remove_file(path).map_err(|e| format!("cannot remove the old socket: {e}"))
}

/// Connects without waiting for the other side to accept.
fn connect(path: &Path) -> io::Result<UnixStream> {
    use std::os::unix::ffi::OsStrExt;
    // SAFETY: all zero is a valid address; the path fits, as a claim checks.
    let (mut address, bytes): (libc::sockaddr_un, _) =
        unsafe { (std::mem::zeroed(), path.as_os_str().as_bytes()) };
    address.sun_family = libc::AF_UNIX as u16;
    for (to, from) in address.sun_path[..PATH_BYTES_MAX].iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the descriptor is new and ours; the address is a local.
    unsafe {
        let fd = libc::socket(libc::AF_UNIX, kind, 0);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let socket = UnixStream::from(OwnedFd::from_raw_fd(fd));
        let length = size_of::<libc::sockaddr_un>() as u32;
        match libc::connect(fd, (&raw const address).cast(), length) {
            0 => Ok(socket),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// A socket; dropping it disconnects the guest. Its queues then find no guest.
pub struct Socket<P> {
    mode: Mode,
    shared: Arc<Shared>,
    pool: Arc<P>,
    /// Readable once the socket is being dropped.
    stop: Arc<OwnedFd>,
    /// Disconnected when the last thread has ended.
    threads: mpsc::Receiver<()>,
    /// Device and inode of the listening socket, so that no other file is unlinked.
    made: Option<(u64, u64)>,
    _claim: Claim,
}

impl<P: Pool + 'static> Socket<P> {
    /// Starts to connect or listen at the path that was claimed.
    ///
    /// # Errors
    /// The socket cannot be made, or the kernel has no more threads or descriptors.
    pub fn open(config: &Config, pool: Arc<P>, claim: Claim) -> Result<Socket<P>, String> {
        let error = |e: io::Error| format!("vhost-user socket '{}': {e}", config.path);
        let shared = Arc::new(Shared::new(config));
        let no_event = |_| error(io::Error::from_raw_os_error(libc::EMFILE));
        let stop = Arc::new(memory::event().map_err(no_event)?);
        let (alive, threads) = mpsc::channel();
        let mut made = None;
        let work: Box<dyn FnOnce() + Send> = match config.mode {
            Mode::Client => {
                shared.say("vhost-user client: socket created");
                let client = Client { shared: shared.clone(), stop: stop.clone() };
                Box::new(move || client.run(alive))
            }
            Mode::Server => {
                let listener = UnixListener::bind(&config.path).map_err(error)?;
                listener.set_nonblocking(true).map_err(error)?;
                shared.say("vhost-user server: socket created");
                shared.say("binding succeeded");
                made = identity(&config.path);
                let (shared, stop) = (shared.clone(), stop.clone());
                Box::new(move || {
                    Server { shared, stop, connections: Vec::new() }.run(listener, alive)
                })
            }
        };
        let thread = std::thread::Builder::new().name("vhost-socket".into());
        let thread = thread.stack_size(STACK_BYTES).spawn(work);
        let socket = Socket { mode: config.mode, shared, pool, stop, threads, made, _claim: claim };
        thread.map_err(error)?;
        Ok(socket)
    }

    /// Number of queues on which the guest sends; 1 without a guest. When it grows, more handles
    /// may be taken, and when it shrinks, those beyond it may be dropped; neither is necessary.
    pub fn n_rxq(&self) -> usize {
        self.shared.n_rxq()
    }

    /// Number of send handles.
    pub fn n_txq(&self) -> usize {
        self.shared.counted.tx.len()
    }

    /// A receive handle; None if it is in use.
    pub fn rx(&self, index: usize) -> Option<Rx<P>> {
        Rx::take(&self.shared, &self.pool, index)
    }

    /// A send handle; None if it is in use.
    pub fn tx(&self, index: usize) -> Option<Tx<P>> {
        Tx::take(&self.shared, &self.pool, index)
    }

    /// Which side creates the socket.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Whether a guest is served.
    pub fn connected(&self) -> bool {
        self.shared.connected()
    }

    /// How often a guest appeared or disappeared.
    pub fn changes(&self) -> u64 {
        self.shared.changes.load(Ordering::Relaxed)
    }

    /// Counters of receiving and of sending.
    pub fn counters(&self) -> (Counters, Counters) {
        self.shared.counters()
    }

    /// The guests' errors on their rings, with their numbers.
    pub fn ring_errors(&self) -> Vec<(vhost::RingError, u64)> {
        self.shared.ring_errors()
    }

    /// Length of the longest frame to the guest, and from it, that the CPU copies for less than an
    /// engine, as last measured; 0: not yet measured.
    pub fn copy_floors(&self) -> [u32; 2] {
        self.shared.counted.floors.each_ref().map(|floor| floor.load(Ordering::Relaxed))
    }

    /// Violations of front-ends on this socket, with their numbers.
    pub fn violations(&self) -> Vec<(Violation, u64)> {
        self.shared.counted.violations.all()
    }

    /// Sets the administrative state: when down, nothing is received and sent packets are dropped.
    pub fn set_up(&self, up: bool) {
        self.shared.up.store(up, Ordering::Relaxed);
    }

    /// Administrative state.
    pub fn is_up(&self) -> bool {
        self.shared.up.load(Ordering::Relaxed)
    }

    /// See [`Config::tx_retries`].
    pub fn set_tx_retries(&self, most: u32) {
        self.shared.retries_max.store(most, Ordering::Relaxed);
    }

    /// Information about the guest; None without one.
    pub fn info(&self) -> Option<Info> {
        self.shared.info()
    }
}

fn identity(path: &str) -> Option<(u64, u64)> {
    let meta = std::fs::symlink_metadata(path).ok()?;
    Some((meta.dev(), meta.ino()))
}

impl<P> Drop for Socket<P> {
    fn drop(&mut self) {
        if self.made.is_some() && identity(&self.shared.path) == self.made {
            let _ = std::fs::remove_file(&self.shared.path);
        }
        let one = 1u64;
        // SAFETY: writes eight bytes of a local to our own eventfd.
        unsafe { libc::write(self.stop.as_raw_fd(), (&raw const one).cast(), 8) };
        // An error means that the threads ended, as they never send.
        if self.threads.recv_timeout(END_SECONDS_MAX) == Err(mpsc::RecvTimeoutError::Timeout)
            && let Some(warn) = self.shared.warn()
        {
            warn(&format!(
                "vhost-user socket '{}': its guest is still being freed",
                self.shared.path
            ));
        }
    }
}

/// State of the thread that connects and serves the one connection.
struct Client {
    shared: Arc<Shared>,
    stop: Arc<OwnedFd>,
}

impl Client {
    fn run(self, _alive: mpsc::Sender<()>) {
        let (mut pause, mut retries) = (RETRY_FIRST, false);
        loop {
            match connect(Path::new(&self.shared.path)) {
                Ok(socket) => {
                    let since = Instant::now();
                    retries = false;
                    if self.serve(socket) == End::Stopped {
                        return;
                    }
                    if since.elapsed() > RETRY_LONGEST {
                        pause = RETRY_FIRST;
                    }
                }
                Err(error) if !retries => {
                    retries = true;
                    self.shared.say(&format!("failed to connect: {error}"));
                    self.shared.say("reconnecting...");
                }
                Err(_) => {}
            }
            let until = Instant::now() + pause;
            if stream::wait(-1, 0, -1, self.stop.as_fd(), Some(until)) == Err(End::Stopped) {
                return;
            }
            pause = (2 * pause).min(RETRY_LONGEST);
        }
    }

    fn serve(&self, socket: UnixStream) -> End {
        let Ok(stream) = Stream::new(Arc::new(socket), self.stop.as_fd()) else {
            return End::Closed;
        };
        if let Some(rest) = self.shared.spend(CONNECTION_UNITS)
            && stream.rest(Instant::now() + rest).is_err()
        {
            return End::Stopped;
        }
        session::serve(&self.shared, &stream, |_| ())
    }
}

/// A connection of a server, as the accepting thread keeps it.
struct Connection {
    /// The socket, to end the connection with as long as it is open.
    socket: Weak<UnixStream>,
    is_served: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<()>,
}

/// State of the accepting thread.
struct Server {
    shared: Arc<Shared>,
    stop: Arc<OwnedFd>,
    /// Connections, oldest first.
    connections: Vec<Connection>,
}

impl Server {
    fn run(mut self, listener: UnixListener, alive: mpsc::Sender<()>) {
        loop {
            let ready =
                stream::wait(listener.as_raw_fd(), libc::POLLIN, -1, self.stop.as_fd(), None);
            if ready.is_err() {
                return;
            }
            self.connections.retain(|connection| !connection.thread.is_finished());
            let accepted = listener.accept();
            // Also spent if there is no descriptor left for the connection.
            let rest = self.shared.spend(CONNECTION_UNITS);
            if let Ok((socket, _)) = accepted {
                self.make_room();
                self.start(socket, &alive);
            }
            if let Some(rest) = rest {
                let until = Some(Instant::now() + rest);
                if stream::wait(-1, 0, -1, self.stop.as_fd(), until).is_err() {
                    return;
                }
            }
        }
    }

    /// Ends the oldest connection that is not served, if there are [`CONNECTIONS_MAX`].
    fn make_room(&mut self) {
        if self.connections.len() < CONNECTIONS_MAX {
            return;
        }
        let is_served = |c: &Connection| c.is_served.load(Ordering::Relaxed);
        let oldest = self.connections.iter().position(|c| !is_served(c)).unwrap_or(0);
        let connection = self.connections.remove(oldest);
        if let Some(socket) = connection.socket.upgrade() {
            let _ = socket.shutdown(std::net::Shutdown::Both);
        }
        self.shared.violation(Violation::Connections, None);
        // Returns at once unless the connection has mapped much memory, and at the latest after the
        // time that a socket's end may take.
        let _ = connection.thread.join();
    }

    /// Starts a thread for a connection; if that fails the connection is closed.
    fn start(&mut self, socket: UnixStream, alive: &mpsc::Sender<()>) {
        let socket = Arc::new(socket);
        let handle = Arc::downgrade(&socket);
        let (shared, stop, alive) = (self.shared.clone(), self.stop.clone(), alive.clone());
        let is_served = Arc::new(AtomicBool::new(false));
        let mark = is_served.clone();
        let work = move || {
            let _alive = alive;
            if let Ok(stream) = Stream::new(socket, stop.as_fd()) {
                session::serve(&shared, &stream, |served| mark.store(served, Ordering::Relaxed));
            }
        };
        let thread = std::thread::Builder::new().name("vhost-guest".into());
        if let Ok(thread) = thread.stack_size(STACK_BYTES).spawn(work) {
            self.connections.push(Connection { socket: handle, is_served, thread });
        }
    }
}
