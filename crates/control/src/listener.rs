//! Listening unix sockets: ovs-vswitchd's mode from the first instant, and a bound on how many are
//! connected.

use std::collections::BTreeMap;
use std::fs::{File, Permissions};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::net::{UnixListener, UnixSocket, UnixStream};
use tokio::sync::Notify;

/// Owner and group may connect: a client has a controller's power. As ovs-vswitchd.
const SOCKET_MODE: u32 = 0o770;
/// Connections that may wait to be accepted, as with ovs-vswitchd.
const WAITING_MAX: u32 = 64;
/// One of so many places of a listener is kept for connections while others that make room for them
/// are leaving: a busy one leaves only when it has its turn.
const LEAVING_ONE_OF: usize = 8;
/// How long a connection waits if there are no such places either.
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

/// Who connected: the one whose connections are too many pays for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Peer {
    /// A process on this machine.
    Process(i32),
    /// A host.
    Host(IpAddr),
}

impl Peer {
    /// Who is at the other end of a unix socket.
    pub fn of_unix(stream: &UnixStream) -> Peer {
        Peer::Process(stream.peer_cred().ok().and_then(|cred| cred.pid()).unwrap_or(0))
    }
}

/// The connections that one listener serves at once. When all places are taken, a connection that
/// comes gets the place of one of the peer that has most: of one from which nothing is heard, the
/// longest first, or else of one that is busy, whatever it does.
#[derive(Clone)]
pub struct ConnectionSlots {
    slots: Arc<Mutex<Slots>>,
    most: usize,
}

/// The places of a listener.
#[derive(Debug, Default)]
struct Slots {
    taken: BTreeMap<u64, Taken>,
    /// Counts connections, and times at which one began to wait.
    last: u64,
}

/// A place that is taken.
#[derive(Debug)]
struct Taken {
    peer: Peer,
    leave: Arc<Leave>,
    /// Since when nothing is heard from it, by [`Slots::last`].
    waits_since: Option<u64>,
}

/// One connection's place; free again when dropped.
#[derive(Debug)]
pub struct ConnectionSlot {
    eviction: EvictionQueue,
}

/// Whether a connection must make room for another one.
#[derive(Debug, Default)]
pub struct EvictionQueue(Option<Place>);

#[derive(Debug)]
struct Place {
    slots: Arc<Mutex<Slots>>,
    id: u64,
    peer: Peer,
    leave: Arc<Leave>,
}

/// Tells a connection to make room.
#[derive(Debug, Default)]
struct Leave {
    must: AtomicBool,
    notify: Notify,
}

impl Leave {
    fn must(&self) -> bool {
        self.must.load(Ordering::Relaxed)
    }
}

fn lock(slots: &Mutex<Slots>) -> MutexGuard<'_, Slots> {
    slots.lock().unwrap_or_else(|e| e.into_inner())
}

impl EvictionQueue {
    /// Who is at the other end; None: the switch began the connection.
    pub fn peer(&self) -> Option<Peer> {
        self.0.as_ref().map(|place| place.peer)
    }

    /// True if the connection has to make room for another one.
    pub fn is_evicted(&self) -> bool {
        self.0.as_ref().is_some_and(|place| place.leave.must())
    }

    /// Returns when the connection is to make room.
    pub async fn evicted(&self) {
        match &self.0 {
            Some(place) => place.leave.notify.notified().await,
            None => std::future::pending().await,
        }
    }

    /// Waits for a peer to say or take something. Connections that wait make room before others
    /// of their peer do.
    pub async fn idle<T>(&self, io: impl Future<Output = T>) -> T {
        let Some(place) = &self.0 else { return io.await };
        lock(&place.slots).wait(place.id, true);
        let _waits = Waits(place);
        io.await
    }

    /// Does `work`; None: the connection is to make room first.
    pub async fn unless_evicted<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = work => Some(done),
            () = self.evicted() => None,
        }
    }
}

/// A connection waits while this lives.
struct Waits<'a>(&'a Place);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        lock(&self.0.slots).wait(self.0.id, false);
    }
}

impl Slots {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn wait(&mut self, id: u64, waits: bool) {
        let now = self.next();
        if let Some(taken) = self.taken.get_mut(&id) {
            taken.waits_since = waits.then_some(now);
        }
    }

    /// Ends a connection to make room, of the peer that has most of those that stay. Looks at each
    /// connection once or twice.
    fn evict(&self) {
        let mut counts = BTreeMap::<Peer, usize>::new();
        let stay = || self.taken.values().filter(|taken| !taken.leave.must());
        stay().for_each(|taken| *counts.entry(taken.peer).or_default() += 1);
        let most = counts.values().max().copied().unwrap_or(0);
        let victims = self.taken.values().filter(|t| !t.leave.must() && counts[&t.peer] == most);
        // Those that do not wait come last.
        if let Some(victim) = victims.min_by_key(|taken| taken.waits_since.unwrap_or(u64::MAX)) {
            victim.leave.must.store(true, Ordering::Relaxed);
            victim.leave.notify.notify_one();
        }
    }
}

impl ConnectionSlots {
    /// Places for `most` connections.
    pub fn new(most: usize) -> Self {
        ConnectionSlots { slots: Arc::default(), most }
    }

    /// A place for a connection of this peer: that of another one, if all are taken.
    pub async fn take(&self, peer: Peer) -> Option<ConnectionSlot> {
        let free = self.free(peer);
        if free.is_some() {
            return free;
        }
        lock(&self.slots).evict();
        for _ in 0..LEAVE_TIME_MAX.as_millis() {
            let free = self.free(peer);
            if free.is_some() {
                return free;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        None
    }

    /// A place that no connection has that stays.
    fn free(&self, peer: Peer) -> Option<ConnectionSlot> {
        let mut slots = lock(&self.slots);
        let leaving = slots.taken.values().filter(|taken| taken.leave.must()).count();
        let most = self.most + leaving.min(self.most / LEAVING_ONE_OF);
        if slots.taken.len() >= most {
            return None;
        }
        let (id, leave) = (slots.next(), Arc::<Leave>::default());
        slots.taken.insert(id, Taken { peer, leave: leave.clone(), waits_since: None });
        let place = Place { slots: self.slots.clone(), id, peer, leave };
        Some(ConnectionSlot { eviction: EvictionQueue(Some(place)) })
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

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.slots).taken.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

    const PEERS: [Peer; 2] = [Peer::Process(1), Peer::Process(2)];

    #[tokio::test]
    async fn places_are_bounded_and_come_back() {
        let slots = ConnectionSlots::new(2);
        let first = slots.take(PEERS[0]).await;
        let second = slots.take(PEERS[0]).await;
        assert!(first.is_some() && second.is_some() && slots.take(PEERS[0]).await.is_none());
        drop(first);
        assert!(slots.take(PEERS[0]).await.is_some());
    }

    /// A connection of this peer, from which nothing is heard; its number is sent when it ends.
    async fn idle(slots: &ConnectionSlots, peer: Peer, i: usize, ended: &UnboundedSender<usize>) {
        let (slot, ended) = (slots.take(peer).await.expect("a place"), ended.clone());
        tokio::spawn(async move {
            let nothing = slot.eviction().idle(std::future::pending::<()>());
            let _ = slot.eviction().unless_evicted(nothing).await;
            let _ = ended.send(i);
        });
        tokio::task::yield_now().await;
    }

    #[tokio::test]
    async fn who_waits_longest_makes_room() {
        let slots = ConnectionSlots::new(3);
        let (ended, mut has_ended) = unbounded_channel();
        for i in 0..3 {
            idle(&slots, PEERS[0], i, &ended).await;
        }
        for i in 0..3 {
            let busy = slots.take(PEERS[0]).await;
            assert!(busy.is_some());
            assert_eq!(has_ended.recv().await, Some(i));
            std::mem::forget(busy);
        }
        assert!(slots.take(PEERS[0]).await.is_none(), "no connection leaves");
    }

    #[tokio::test]
    async fn the_peer_that_has_most_makes_room() {
        let slots = ConnectionSlots::new(4);
        let (ended, mut has_ended) = unbounded_channel();
        idle(&slots, PEERS[1], 100, &ended).await;
        for i in 0..50 {
            idle(&slots, PEERS[0], i, &ended).await;
            if i >= 3 {
                assert_eq!(has_ended.recv().await, Some(i - 3), "its own oldest one");
            }
        }
        // Until both have the same, it is the first one's; then the longest wait decides.
        idle(&slots, PEERS[1], 101, &ended).await;
        assert_eq!(has_ended.recv().await, Some(47));
        idle(&slots, PEERS[1], 102, &ended).await;
        assert_eq!(has_ended.recv().await, Some(100));
    }

    #[tokio::test]
    async fn who_comes_need_not_wait_until_others_have_left() {
        let slots = ConnectionSlots::new(16);
        let mut all = Vec::new();
        for _ in 0..16 {
            all.push(slots.take(PEERS[0]).await.expect("a place"));
        }
        // None of these leaves.
        for _ in 0..2 {
            all.push(slots.take(PEERS[1]).await.expect("a place of those that leave"));
        }
        assert!(slots.take(PEERS[1]).await.is_none(), "places are bounded");
    }

    #[tokio::test]
    async fn a_busy_connection_of_the_peer_that_has_most_makes_room_too() {
        let slots = ConnectionSlots::new(2);
        let (ended, mut has_ended) = unbounded_channel();
        for i in 0..2 {
            let (slot, ended) = (slots.take(PEERS[0]).await.expect("a place"), ended.clone());
            tokio::spawn(async move {
                let work = std::future::pending::<()>();
                let _ = slot.eviction().unless_evicted(work).await;
                let _ = ended.send(i);
            });
        }
        assert!(slots.take(PEERS[1]).await.is_some());
        assert!(has_ended.recv().await.is_some());
    }
}
