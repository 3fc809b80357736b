//! The socket of a memif device in server role. DPDK 22.11's driver trusts its clients: it ends the
//! process when a client hangs up before the greeting, reads outside of its tables and of the
//! shared memory by numbers in messages, and keeps descriptors of connections that failed. So the
//! driver listens in a private directory only, and the socket that the operator named is served
//! here: a client's messages are checked and kept until they are complete, and then sent to the
//! driver together (`session`). A client that sends invalid messages is disconnected, with a line
//! in the log.
//!
//! What is in the shared memory afterwards (descriptors of rings) is between the driver and the
//! client: a client that may connect must still be trusted that far.

mod devargs;
mod message;
mod session;
mod socket;

use crate::{Warn, device_error};
use devargs::ServerArgs;
use dpdk::{Eal, EthDev};
use message::{RingTarget, Rings};
use port::PortError;
use session::MemifPort;
use socket::{Address, Socket};
use std::collections::BTreeMap;
use std::io::{Error, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

/// Clients at one socket, connected or not, at most.
const MAX_SESSIONS: usize = 64;
/// Number of the device that keeps the driver's socket open. It never starts.
const KEEPER: u32 = u32::MAX;

/// All memif servers of the process.
pub(crate) struct Memif {
    /// The directory in which the driver listens; no other user may enter it.
    dir: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    listeners: BTreeMap<Address, Weak<Listener>>,
    next_id: u32,
    /// Keeps the driver's socket open: the driver never closes a socket on which it listened (and
    /// no other file may get its number), so there is only one.
    keeper: Option<EthDev>,
}

/// A socket that an operator named; closed when its last device is removed.
struct Listener {
    shared: Arc<Shared>,
    /// Closing it makes the threads stop.
    _running: UnixStream,
}

/// State that a listener's threads share.
struct Shared {
    address: Address,
    /// The driver's socket.
    private: PathBuf,
    entries: Mutex<BTreeMap<u32, Arc<MemifPort>>>,
    stop: UnixStream,
    sessions: AtomicUsize,
    warn: Option<Warn>,
}

/// A device that is about to be opened in server role.
pub(crate) struct Claim {
    listener: Arc<Listener>,
    id: u32,
    private_id: u32,
    /// The arguments to attach it with.
    pub devargs: String,
}

/// A device to which clients may connect, until this is dropped. It must be dropped before the
/// device: the driver frees what it knows of a client without checking whether its own thread is
/// using it.
pub(crate) struct Served {
    listener: Arc<Listener>,
    id: u32,
    /// Closing it makes the client's thread stop.
    running: Option<UnixStream>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Memif {
    /// The driver's socket is made under `dir`, which is created when the first device is opened.
    pub fn new(dir: &Path) -> Memif {
        Memif { dir: dir.join("weftd.memif"), state: Mutex::default() }
    }

    fn private(&self) -> PathBuf {
        self.dir.join("listen")
    }

    /// Listens as `devargs` say; None for other devices.
    pub fn claim(
        &self,
        eal: Eal,
        devargs: &str,
        warn: &Option<Warn>,
    ) -> Result<Option<Claim>, PortError> {
        let Some(args) = ServerArgs::read(devargs) else { return Ok(None) };
        let mut state = lock(&self.state);
        self.keep(&mut state, eal)?;
        let known = state.listeners.get(&args.address).and_then(Weak::upgrade);
        let listener = match known {
            Some(listener) => listener,
            None => {
                let failed = |e| PortError::Device(format!("memif socket {}: {e}", args.address));
                let new = Listener::start(&args.address, self.private(), warn).map_err(failed)?;
                state.listeners.retain(|_, l| l.strong_count() > 0);
                state.listeners.insert(args.address.clone(), Arc::downgrade(&new));
                new
            }
        };
        if lock(&listener.shared.entries).contains_key(&args.id) {
            let text = format!("memif socket {}: id {} is taken", args.address, args.id);
            return Err(PortError::Device(text));
        }
        state.next_id = (state.next_id + 1) % KEEPER;
        let private_id = state.next_id;
        let devargs = args.at(&self.private(), private_id);
        Ok(Some(Claim { listener, id: args.id, private_id, devargs }))
    }

    fn keep(&self, state: &mut State, eal: Eal) -> Result<(), PortError> {
        if state.keeper.is_none() {
            let failed = |e| PortError::Device(format!("{}: {e}", self.dir.display()));
            private_dir(&self.dir).map_err(failed)?;
            let _ = std::fs::remove_file(self.private());
            let devargs = format!("net_memif_keeper,role=server,id={KEEPER}");
            let devargs =
                format!("{devargs},socket={},socket-abstract=no", self.private().display());
            state.keeper = Some(EthDev::attach(eal, &devargs).map_err(device_error)?);
        }
        Ok(())
    }
}

/// Makes a directory that no other user may enter, below one that exists or can be made. If it
/// exists already, no other user may be able to enter it.
fn private_dir(dir: &Path) -> std::io::Result<()> {
    if let Some(parent) = dir.parent() {
        std::fs::create_dir_all(parent)?;
    }
    match std::fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
        other => return other,
    }
    let found = std::fs::symlink_metadata(dir)?;
    // SAFETY: no arguments.
    let own = found.uid() == unsafe { libc::geteuid() };
    if found.is_dir() && own && found.mode() & 0o077 == 0 {
        return Ok(());
    }
    Err(Error::other("is there and is not a directory that only this user may enter"))
}

impl Drop for Memif {
    fn drop(&mut self) {
        if lock(&self.state).keeper.take().is_some() {
            let _ = std::fs::remove_dir(&self.dir);
        }
    }
}

impl Claim {
    /// Accepts clients, when the device is running.
    ///
    /// # Errors
    ///
    /// No descriptor is free.
    ///
    /// # Errors
    /// No descriptor is free.
    pub fn serve(self, dev: &EthDev, n_rxq: usize, n_txq: usize) -> Result<Served, PortError> {
        let pair = UnixStream::pair();
        let (end, running) = pair.map_err(|e| PortError::Device(format!("memif: {e}")))?;
        let rings = Rings { c2s: n_rxq as u16, s2c: n_txq as u16 };
        let target = RingTarget { id: self.private_id, rings };
        let entry = MemifPort { target, pause: dev.pause(), busy: Mutex::new(true), end };
        lock(&self.listener.shared.entries).insert(self.id, Arc::new(entry));
        Ok(Served { listener: self.listener, id: self.id, running: Some(running) })
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let entry = lock(&self.listener.shared.entries).remove(&self.id);
        self.running = None;
        // The client's thread holds it until the driver has forgotten the client.
        entry.into_iter().for_each(|entry| *lock(&entry.busy) = false);
    }
}

impl Listener {
    fn start(
        address: &Address,
        private: PathBuf,
        warn: &Option<Warn>,
    ) -> std::io::Result<Arc<Listener>> {
        let socket = Socket::listen(address)?;
        let (stop, _running) = UnixStream::pair()?;
        let shared = Arc::new(Shared {
            address: address.clone(),
            private,
            entries: Mutex::default(),
            stop,
            sessions: AtomicUsize::new(0),
            warn: warn.clone(),
        });
        let listener = Arc::new(Listener { shared: shared.clone(), _running });
        thread(move || accept(&shared, &socket))?;
        Ok(listener)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Address::Path(path) = &self.shared.address {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn thread(run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name("memif".into()).spawn(run).map(drop)
}

/// Accepts clients until the listener is closed.
fn accept(shared: &Arc<Shared>, socket: &Socket) {
    loop {
        let ready = session::wait(&[shared.stop(), socket.as_fd()], Duration::MAX);
        if ready[0] {
            return;
        }
        let Ok(client) = socket.accept() else {
            // No descriptor is free.
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        if shared.sessions.fetch_add(1, Ordering::Relaxed) >= MAX_SESSIONS {
            shared.sessions.fetch_sub(1, Ordering::Relaxed);
            shared.warn("too many clients at once");
            continue;
        }
        let own = shared.clone();
        let started = thread(move || {
            session::serve(&own, &client);
            own.sessions.fetch_sub(1, Ordering::Relaxed);
        });
        if let Err(e) = started {
            shared.sessions.fetch_sub(1, Ordering::Relaxed);
            shared.warn(&e.to_string());
        }
    }
}

impl Shared {
    fn stop(&self) -> BorrowedFd<'_> {
        self.stop.as_fd()
    }

    fn entry(&self, id: u32) -> Option<Arc<MemifPort>> {
        lock(&self.entries).get(&id).cloned()
    }

    fn warn(&self, text: &str) {
        if let Some(warn) = &self.warn {
            warn(&format!("memif socket {}: {text}", self.address));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_directory_of_somebody_else_is_refused() {
        let base = std::env::temp_dir().join(format!("weft-memif-{}", std::process::id()));
        let dir = base.join("weftd.memif");
        private_dir(&dir).unwrap();
        private_dir(&dir).expect("it is our own");
        assert_eq!(std::fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
        std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o770)).unwrap();
        assert!(private_dir(&dir).is_err(), "others may enter");
        std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o700)).unwrap();
        // SAFETY: no arguments.
        if unsafe { libc::geteuid() } == 0 {
            std::os::unix::fs::chown(&dir, Some(65534), None).unwrap();
            assert!(private_dir(&dir).is_err(), "another owner");
        }
        std::fs::remove_dir(&dir).unwrap();
        symlink("/root", &dir).unwrap();
        assert!(private_dir(&dir).is_err(), "a link");
        std::fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn a_socket_is_the_groups_from_the_start() {
        let path = std::env::temp_dir().join(format!("weft-memif-{}.sock", std::process::id()));
        let _socket = Socket::listen(&Address::Path(path.clone())).unwrap();
        let mode = std::fs::metadata(&path).unwrap().mode();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(mode & 0o007, 0, "{mode:o}");
    }
}
