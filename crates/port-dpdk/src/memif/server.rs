//! The server: the sockets that operators named, and one thread for each client.

use super::memory::SharedMemory;
use super::message::{ACK, CONNECTED, Message, Next, Offer, RingTarget, Rings};
use super::port::{PortState, Queues, lock};
use super::ring::{Buffers, Ring};
use super::socket::{Address, Socket};
use super::{Args, End, WAIT_TIME_MAX, read, stay, thread, wait};
use crate::Warn;
use ::port::PortError;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// Clients at one socket that are not connected yet; of more, the one that came first goes. (Those
/// that are connected are no more than the ports.)
const CONNECTING_CLIENTS_MAX: usize = 64;

/// Messages that a client may send until it is connected: rings, regions, and as many answers.
const MESSAGES_MAX: usize = 1024;
/// A socket takes the next client so long after it took one: a thread is started for each.
const ACCEPT_TIME: Duration = Duration::from_millis(1);
/// Warnings of a socket are at least so far apart; what comes between is counted.
const LOG_INTERVAL: Duration = Duration::from_secs(1);
/// A port takes the next client so long after the last one went: each makes the control thread
/// look at the port, and memory is mapped for it.
const REST_TIME: Duration = Duration::from_millis(10);

/// All memif servers of the process.
#[derive(Default)]
pub(crate) struct Memif {
    listeners: Mutex<BTreeMap<Address, Weak<Listener>>>,
}

/// A socket that an operator named; closed when the last device behind it goes.
struct Listener {
    clients: Arc<Clients>,
    /// Its end tells the threads to stop.
    _running: UnixStream,
}

/// What a listener's threads know.
struct Clients {
    address: Address,
    ports: Mutex<BTreeMap<u32, Arc<ServedPort>>>,
    stop: UnixStream,
    connecting: Mutex<Connecting>,
    warn: Option<Warn>,
    /// When the last warning was, and how many were left out since.
    logged: Mutex<(Option<Instant>, u64)>,
}

/// Clients that are not connected yet, by the order in which they came. Its end tells a client's
/// thread that another client has its place.
#[derive(Default)]
struct Connecting {
    places: BTreeMap<u64, UnixStream>,
    last: u64,
}

/// The place of a client that is not connected yet.
struct Place {
    clients: Arc<Clients>,
    number: u64,
    /// Is at its end when another client has the place.
    end: UnixStream,
}

impl Place {
    /// Takes a place for a client that came; another one may have to leave for it.
    fn take(clients: &Arc<Clients>) -> std::io::Result<Place> {
        let (end, other) = UnixStream::pair()?;
        let mut connecting = lock(&clients.connecting);
        if connecting.places.len() >= CONNECTING_CLIENTS_MAX {
            connecting.places.pop_first();
        }
        connecting.last += 1;
        let number = connecting.last;
        connecting.places.insert(number, other);
        Ok(Place { clients: clients.clone(), number, end })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.clients.connecting).places.remove(&self.number);
    }
}

/// A port that clients can connect to.
struct ServedPort {
    target: RingTarget,
    shared: Arc<PortState>,
    /// True if clients are let in. Locked while a client is connected.
    busy: Mutex<bool>,
    /// Is at its end when the port closes.
    end: UnixStream,
}

/// A port that clients may connect to, until this is dropped.
pub(super) struct Served {
    listener: Arc<Listener>,
    id: u32,
    /// Its end tells the client's thread to stop.
    running: Option<UnixStream>,
}

impl Memif {
    /// Lets clients connect to the port.
    ///
    /// # Errors
    /// The socket cannot be listened on, or another port has its number there.
    pub(super) fn serve(
        &self,
        args: &Args,
        queues: Queues,
        shared: &Arc<PortState>,
        warn: &Option<Warn>,
    ) -> Result<Served, PortError> {
        let failed = |e: &dyn std::fmt::Display| {
            PortError::Device(format!("memif socket {}: {e}", args.address))
        };
        let mut listeners = lock(&self.listeners);
        let listener = match listeners.get(&args.address).and_then(Weak::upgrade) {
            Some(listener) => listener,
            None => {
                let new = Listener::start(&args.address, warn).map_err(|e| failed(&e))?;
                listeners.retain(|_, l| l.strong_count() > 0);
                listeners.insert(args.address.clone(), Arc::downgrade(&new));
                new
            }
        };
        let (end, running) = UnixStream::pair().map_err(|e| failed(&e))?;
        let rings = Rings { c2s: queues.rx, s2c: queues.tx };
        let target = RingTarget { rings, secret: args.secret };
        let port = ServedPort { target, shared: shared.clone(), busy: Mutex::new(true), end };
        let mut ports = lock(&listener.clients.ports);
        if ports.contains_key(&args.id) {
            return Err(failed(&format!("id {} is taken", args.id)));
        }
        ports.insert(args.id, Arc::new(port));
        drop(ports);
        Ok(Served { listener, id: args.id, running: Some(running) })
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let port = lock(&self.listener.clients.ports).remove(&self.id);
        self.running = None;
        // The client's thread has it until no ring is in use any more.
        port.into_iter().for_each(|port| *lock(&port.busy) = false);
    }
}

impl Listener {
    fn start(address: &Address, warn: &Option<Warn>) -> std::io::Result<Arc<Listener>> {
        let socket = Socket::listen(address)?;
        let (stop, _running) = UnixStream::pair()?;
        let clients = Arc::new(Clients {
            address: address.clone(),
            ports: Mutex::default(),
            stop,
            connecting: Mutex::default(),
            warn: warn.clone(),
            logged: Mutex::default(),
        });
        let listener = Arc::new(Listener { clients: clients.clone(), _running });
        thread(move || accept(&clients, &socket))?;
        Ok(listener)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Address::Path(path) = &self.clients.address {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Takes clients until the listener is gone.
fn accept(clients: &Arc<Clients>, socket: &Socket) {
    loop {
        let ready = wait(&[clients.stop(), socket.as_fd()], Duration::MAX);
        if ready[0] {
            return;
        }
        let Ok(client) = socket.accept() else {
            // No descriptor is free.
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        let started = Place::take(clients).and_then(|place| {
            let own = clients.clone();
            thread(move || serve(&own, &client, place))
        });
        if let Err(e) = started {
            clients.warn(&e.to_string());
        }
        std::thread::sleep(ACCEPT_TIME);
    }
}

impl Clients {
    fn stop(&self) -> BorrowedFd<'_> {
        self.stop.as_fd()
    }

    fn port(&self, id: u32) -> Option<Arc<ServedPort>> {
        lock(&self.ports).get(&id).cloned()
    }

    fn warn(&self, text: &str) {
        let Some(warn) = &self.warn else { return };
        let mut logged = lock(&self.logged);
        if logged.0.is_some_and(|last| last.elapsed() < LOG_INTERVAL) {
            logged.1 += 1;
            return;
        }
        let more = match std::mem::replace(&mut *logged, (Some(Instant::now()), 0)).1 {
            0 => String::new(),
            n => format!(" ({n} warnings before it were left out)"),
        };
        warn(&format!("memif socket {}: {text}{more}", self.address));
    }
}

/// Serves a client until it goes.
fn serve(clients: &Clients, client: &Socket, place: Place) {
    match talk(clients, client, place) {
        Err(End::Gone) => {}
        Ok(()) => drop(client.send(&Message::disconnect("closed"), None)),
        Err(End::Refused(reason)) => {
            let _ = client.send(&Message::disconnect(&reason), None);
            clients.warn(&format!("a client was sent away: {reason}"));
        }
    }
}

/// Until the client goes, or we are to stop (Ok).
fn talk(clients: &Clients, client: &Socket, place: Place) -> Result<(), End> {
    let say = |message: &Message| client.send(message, None).map_err(|_| End::Gone);
    say(&Message::hello())?;
    let offer = hear(clients, client, &place)?;
    let id = offer.id.unwrap_or(0);
    let port = clients.port(id).ok_or_else(|| format!("ID {id} not found"))?;
    // A client that comes back at once finds its old connection still closing.
    let busy = (0..50).find_map(|i| {
        let pause = Duration::from_millis(if i > 0 { 10 } else { 0 });
        let evicted = wait(&[place.end.as_fd()], pause)[0];
        if evicted { None } else { port.busy.try_lock().ok() }
    });
    let busy = busy.ok_or_else(|| "Already connected".to_string())?;
    drop(place);
    if !*busy {
        return Err(format!("ID {id} not found").into());
    }
    let event = Arc::new(super::eventfd().map_err(|_| End::Gone)?);
    let name = offer.name.clone();
    let (rx, tx) = take_rings(offer, &event)?;
    port.shared.connect(rx, tx, &name);
    let connected = say(&Message::connect(CONNECTED, "Weft"));
    let end = connected
        .and_then(|()| stay(&port.shared, client, &[clients.stop(), port.end.as_fd()], &event));
    port.shared.disconnect();
    wait(&[clients.stop(), port.end.as_fd()], REST_TIME);
    end
}

/// All that the client says until it wants to be connected.
fn hear(clients: &Clients, client: &Socket, place: &Place) -> Result<Offer, End> {
    let (mut offer, end) = (Offer::default(), Instant::now() + WAIT_TIME_MAX);
    for _ in 0..MESSAGES_MAX {
        let left = end.saturating_duration_since(Instant::now());
        let ready = wait(&[client.as_fd(), clients.stop(), place.end.as_fd()], left);
        match ready[..] {
            [.., true] => return Err("another client has its place".to_string().into()),
            [true, ..] => {}
            [_, true, _] => return Err(End::Gone),
            _ => return Err("it said too little for long".to_string().into()),
        }
        let (message, fds) = read(client)?;
        match offer.take(&message, fds, |id| clients.port(id).map(|port| port.target))? {
            Next::Ack => client.send(&Message::new(ACK), None).map_err(|_| End::Gone)?,
            Next::Nothing => {}
            Next::Gone => return Err(End::Gone),
            Next::Connect => return Ok(offer),
        }
    }
    Err(format!("more than {MESSAGES_MAX} messages").into())
}

/// The client's memory is mapped; its rings, to receive from and to send to.
fn take_rings(offer: Offer, event: &Arc<OwnedFd>) -> Result<(Vec<Ring>, Vec<Ring>), End> {
    let memory = Arc::new(SharedMemory::map(&offer.regions, event)?);
    let take = |offers: Vec<Option<_>>, receives| {
        let offers = offers.into_iter().flatten().collect();
        super::rings(&memory, offers, receives, |_| Buffers::Theirs)
    };
    Ok((take(offer.c2s, true)?, take(offer.s2c, false)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_socket_is_the_groups_from_the_start() {
        let path = std::env::temp_dir().join(format!("weft-memif-{}.sock", std::process::id()));
        let _socket = Socket::listen(&Address::Path(path.clone())).unwrap();
        let mode = std::fs::metadata(&path).unwrap().mode();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(mode & 0o007, 0, "{mode:o}");
    }
}
