//! Listening unix sockets: ovs-vswitchd's mode from the first instant, and a bound on how many are
//! connected.

use std::fs::{File, Permissions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::{UnixListener, UnixSocket};
use tokio::sync::Notify;

/// Owner and group may connect: a client has a controller's power. As ovs-vswitchd.
const SOCKET_MODE: u32 = 0o770;
/// Connections that may wait to be accepted, as with ovs-vswitchd.
const WAITING_MAX: u32 = 64;
/// How long a connection that makes room for another may take to leave.
const LEAVE_TIME_MAX: Duration = Duration::from_millis(100);

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

/// The connections that one listener serves at once. When all places are taken, a connection that
/// comes gets that of another one from which nothing is heard, if there is one.
#[derive(Clone)]
pub struct ConnectionSlots {
    taken: Arc<AtomicUsize>,
    most: usize,
    eviction: EvictionQueue,
}

/// One connection's place; free again when dropped.
#[derive(Debug)]
pub struct ConnectionSlot {
    taken: Arc<AtomicUsize>,
    eviction: EvictionQueue,
}

/// Connections that neither say anything nor take an answer, in the order in which that began: the
/// first makes room when another one is to be served and all places are taken.
#[derive(Clone, Debug, Default)]
pub struct EvictionQueue(Arc<Notify>);

impl EvictionQueue {
    /// Waits for a client to say or take something; fails if it is to make room first.
    pub async fn unless_evicted<T>(
        &self,
        io: impl Future<Output = io::Result<T>>,
    ) -> io::Result<T> {
        tokio::select! {
            biased;
            done = io => done,
            () = self.0.notified() => Err(another_has_its_place()),
        }
    }
}

/// Why a connection ends that makes room.
fn another_has_its_place() -> io::Error {
    io::Error::new(io::ErrorKind::QuotaExceeded, "another client has its place")
}

/// Did a connection end to make room?
pub fn is_replaced(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::QuotaExceeded && e.raw_os_error().is_none()
}

impl ConnectionSlots {
    /// Places for `most` connections.
    pub fn new(most: usize) -> Self {
        ConnectionSlots { taken: Arc::default(), most, eviction: EvictionQueue::default() }
    }

    /// A place: that of another connection, if all are taken and one waits.
    pub async fn take(&self) -> Option<ConnectionSlot> {
        let free = self.free();
        if free.is_some() {
            return free;
        }
        self.eviction.0.notify_one();
        for _ in 0..LEAVE_TIME_MAX.as_millis() {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let free = self.free();
            if free.is_some() {
                return free;
            }
        }
        None
    }

    /// A place that no connection has.
    fn free(&self) -> Option<ConnectionSlot> {
        let one_more = |n: usize| (n < self.most).then_some(n + 1);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        Some(ConnectionSlot { taken: self.taken.clone(), eviction: self.eviction.clone() })
    }

    /// How many there are.
    pub fn most(&self) -> usize {
        self.most
    }
}

impl ConnectionSlot {
    /// Says when this connection must make room for another one.
    pub fn eviction(&self) -> &EvictionQueue {
        &self.eviction
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn places_are_bounded_and_come_back() {
        let slots = ConnectionSlots::new(2);
        let first = slots.take().await;
        let second = slots.take().await;
        assert!(first.is_some() && second.is_some() && slots.take().await.is_none());
        drop(first);
        assert!(slots.take().await.is_some());
    }

    #[tokio::test]
    async fn who_waits_longest_makes_room() {
        let slots = ConnectionSlots::new(3);
        let (ended, mut has_ended) = tokio::sync::mpsc::unbounded_channel();
        for i in 0..3 {
            let (slot, ended) = (slots.take().await.unwrap(), ended.clone());
            tokio::spawn(async move {
                let nothing = std::future::pending::<io::Result<()>>();
                let _ = slot.eviction().unless_evicted(nothing).await;
                let _ = ended.send(i);
            });
            tokio::task::yield_now().await;
        }
        for i in 0..3 {
            let busy = slots.take().await;
            assert!(busy.is_some());
            assert_eq!(has_ended.recv().await, Some(i));
            std::mem::forget(busy);
        }
        assert!(slots.take().await.is_none(), "no connection waits");
    }
}
