//! Wires between dummy ports of this process and others: connections of Unix sockets in which each
//! frame follows its length (two bytes, big-endian), as ovs-vswitchd's dummies have them. Option
//! `pstream=punix:PATH` listens; `stream=unix:PATH` connects, and tries again until it succeeds.

use crate::PortError;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Connections to one listening port, at most; further ones are closed at once.
const CONNECTIONS_MAX: usize = 16;
/// Time between two attempts to connect, and between two checks whether the port was removed.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// How long to wait for a peer that does not read; then the wire is closed.
const SEND_WAIT_MAX: Duration = Duration::from_millis(100);

/// Which end of a wire a port is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    Listens(PathBuf),
    Connects(PathBuf),
}

/// One port's end. Dropping it cuts the wire.
pub(crate) struct Wire {
    shared: Arc<Shared>,
    connects: bool,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    streams: Mutex<Vec<UnixStream>>,
    connected: AtomicBool,
    stop: AtomicBool,
}

impl Shared {
    fn streams(&self) -> MutexGuard<'_, Vec<UnixStream>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sending side of a wire.
#[derive(Clone)]
pub(crate) struct WireTx(Arc<Shared>);

impl WireTx {
    /// Sends a frame to all peers. A connection that fails is closed in both directions.
    pub fn send(&self, frame: &[u8]) {
        let Ok(len) = u16::try_from(frame.len()) else { return };
        let bytes = [&len.to_be_bytes()[..], frame].concat();
        self.0.streams().retain_mut(|s| {
            let sent = s.write_all(&bytes).is_ok();
            // Its reading half is closed too, so that the connecting end connects again.
            if !sent {
                let _ = s.shutdown(std::net::Shutdown::Both);
            }
            sent
        });
    }
}

impl Wire {
    /// Opens the wire that a port's options name. `deliver` is called with each received frame, on
    /// a thread of the wire.
    pub fn open(
        options: &std::collections::BTreeMap<String, String>,
        deliver: impl Fn(&[u8]) + Send + 'static,
    ) -> Result<Option<Wire>, PortError> {
        let Some(end) = end(options)? else { return Ok(None) };
        let os = |what: &str| {
            let what = what.to_string();
            move |source| PortError::Os { what, source }
        };
        let listener = match &end {
            End::Listens(path) => {
                // A socket that a killed daemon left behind.
                if std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket()) {
                    let _ = std::fs::remove_file(path);
                }
                let listener = UnixListener::bind(path).map_err(os("pstream"))?;
                listener.set_nonblocking(true).map_err(os("pstream"))?;
                Some(listener)
            }
            End::Connects(_) => None,
        };
        let shared = Arc::<Shared>::default();
        let connects = listener.is_none();
        let mut run = Run { end, listener, shared: shared.clone(), readers: Vec::new(), deliver };
        let thread = std::thread::Builder::new().name("dummy-wire".into());
        let thread = thread.spawn(move || run.run()).map_err(os("dummy-wire"))?;
        Ok(Some(Wire { shared, connects, thread: Some(thread) }))
    }

    /// Whether the connecting end has a connection; None: it is the listening one.
    pub fn is_connected(&self) -> Option<bool> {
        self.connects.then(|| self.shared.connected.load(Ordering::Acquire))
    }

    /// The sending side of the wire.
    pub fn tx(&self) -> WireTx {
        WireTx(self.shared.clone())
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.shared.streams().clear();
    }
}

fn end(options: &std::collections::BTreeMap<String, String>) -> Result<Option<End>, PortError> {
    let path = |name: &str, prefix: &str| match options.get(name) {
        None => Ok(None),
        Some(text) => match text.strip_prefix(prefix) {
            Some(path) => Ok(Some(PathBuf::from(path))),
            None => Err(PortError::Device(format!("{name}={text}: only {prefix}PATH is known"))),
        },
    };
    Ok(match path("pstream", "punix:")? {
        Some(path) => Some(End::Listens(path)),
        None => path("stream", "unix:")?.map(End::Connects),
    })
}

/// The thread of a wire.
struct Run<F> {
    end: End,
    listener: Option<UnixListener>,
    shared: Arc<Shared>,
    readers: Vec<Reader>,
    deliver: F,
}

impl<F: Fn(&[u8])> Run<F> {
    fn run(&mut self) {
        while !self.shared.stop.load(Ordering::Acquire) {
            self.connect();
            self.wait();
            let deliver = &self.deliver;
            self.readers.retain_mut(|r| r.read(deliver));
            self.shared.connected.store(!self.readers.is_empty(), Ordering::Release);
        }
        if let End::Listens(path) = &self.end {
            let _ = std::fs::remove_file(path);
        }
    }

    fn connect(&mut self) {
        let new = match (&self.listener, &self.end) {
            (Some(listener), _) => listener.accept().ok().map(|(stream, _)| stream),
            (None, End::Connects(path)) if self.readers.is_empty() => {
                UnixStream::connect(path).ok()
            }
            _ => None,
        };
        let Some(stream) = new.filter(|_| self.readers.len() < CONNECTIONS_MAX) else { return };
        let Ok(sender) = stream.try_clone() else { return };
        if sender.set_write_timeout(Some(SEND_WAIT_MAX)).is_ok()
            && sender.set_read_timeout(Some(Duration::from_millis(1))).is_ok()
        {
            self.shared.streams().push(sender);
            self.readers.push(Reader { stream, bytes: Vec::new() });
        }
    }

    /// Waits until there is something to read or accept, or the next check is due.
    fn wait(&self) {
        let descriptors = self.readers.iter().map(|r| r.stream.as_raw_fd());
        let listener = self.listener.iter().map(AsRawFd::as_raw_fd);
        let poll = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut all: Vec<_> = descriptors.chain(listener).map(poll).collect();
        // SAFETY: so many descriptors are behind the pointer.
        unsafe { libc::poll(all.as_mut_ptr(), all.len() as u64, LOOK_INTERVAL.as_millis() as i32) };
    }
}

/// A connection, and the beginning of the next frame.
struct Reader {
    stream: UnixStream,
    bytes: Vec<u8>,
}

impl Reader {
    /// Reads once, at most 64 kB, and delivers complete frames; false: the connection has ended.
    fn read(&mut self, deliver: &impl Fn(&[u8])) -> bool {
        let mut buffer = [0; 1 << 16];
        match self.stream.read(&mut buffer) {
            Ok(0) => return false,
            Ok(n) => self.bytes.extend_from_slice(&buffer[..n]),
            Err(e) => {
                return matches!(
                    e.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                );
            }
        }
        let mut rest = &self.bytes[..];
        while let Some((len, more)) = rest.split_first_chunk::<2>()
            && let Some((frame, after)) = more.split_at_checked(u16::from_be_bytes(*len).into())
        {
            deliver(frame);
            rest = after;
        }
        self.bytes = rest.to_vec();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::sync::mpsc::channel;

    fn options(name: &str, value: String) -> BTreeMap<String, String> {
        BTreeMap::from([(name.into(), value)])
    }

    #[test]
    fn frames_come_out_at_the_other_end_and_the_wire_can_be_laid_again() {
        let path = std::env::temp_dir().join(format!("dummy-wire-{}", std::process::id()));
        let (to_a, at_a) = channel();
        let (to_b, at_b) = channel();
        let (p, q) = (format!("punix:{}", path.display()), format!("unix:{}", path.display()));
        let b = Wire::open(&options("stream", q), move |f| to_b.send(f.to_vec()).unwrap());
        let b = b.unwrap().unwrap();
        for _ in 0..2 {
            let to_a = to_a.clone();
            let listen = options("pstream", p.clone());
            let a = Wire::open(&listen, move |f| to_a.send(f.to_vec()).unwrap());
            let a = a.unwrap().unwrap();
            let frames = [vec![1; 60], vec![2; 1500], vec![]];
            // Nothing says when the wire is there: the first frame is sent until it comes.
            while at_b.try_recv().is_err() {
                a.tx().send(&frames[0]);
                std::thread::sleep(LOOK_INTERVAL);
            }
            frames.iter().for_each(|f| b.tx().send(f));
            frames.iter().for_each(|f| assert_eq!(at_a.recv().unwrap(), *f));
        }
        drop(b);
        assert!(!path.exists(), "the listener took its socket away");
    }

    #[test]
    fn other_transports_are_refused() {
        let wrong = options("stream", "tcp:127.0.0.1:1".into());
        assert!(Wire::open(&wrong, |_| ()).is_err());
        assert!(Wire::open(&BTreeMap::new(), |_| ()).unwrap().is_none());
    }
}
