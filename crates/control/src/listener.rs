//! Listening unix sockets: ovs-vswitchd's mode from the first instant, and a bound on how many are
//! connected.

use std::fs::{File, Permissions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::net::{UnixListener, UnixSocket};

/// Owner and group may connect: who connects has a controller's power. As ovs-vswitchd.
const SOCKET_MODE: u32 = 0o770;
/// Connections that may wait to be accepted, as with ovs-vswitchd.
const WAITING_MAX: u32 = 64;

/// Listens on `path`, where no file may be. The file never has more permissions than
/// [`SOCKET_MODE`]: the socket has them before it gets a name. (A umask around `bind` would be the
/// whole process's.)
pub fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    let socket = UnixSocket::new_stream()?;
    let file = File::from(socket.as_fd().try_clone_to_owned()?);
    file.set_permissions(Permissions::from_mode(SOCKET_MODE))?;
    socket.bind(path)?;
    socket.listen(WAITING_MAX)
}

/// The connections that one listener serves at once.
#[derive(Clone)]
pub struct Seats {
    taken: Arc<AtomicUsize>,
    most: usize,
}

/// One connection's place; free again when dropped.
pub struct Seat(Arc<AtomicUsize>);

impl Seats {
    /// Places for so many connections.
    pub fn new(most: usize) -> Self {
        Seats { taken: Arc::default(), most }
    }

    /// A place, if one is free.
    pub fn take(&self) -> Option<Seat> {
        let one_more = |n: usize| (n < self.most).then_some(n + 1);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        Some(Seat(self.taken.clone()))
    }

    /// How many there are.
    pub fn most(&self) -> usize {
        self.most
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_bounded_and_come_back() {
        let seats = Seats::new(2);
        let first = seats.take();
        let second = seats.take();
        assert!(first.is_some() && second.is_some() && seats.take().is_none());
        drop(first);
        assert!(seats.take().is_some());
    }
}
