//! One connection of a client: its messages are checked and kept until they are complete, then sent
//! to DPDK's own server, whose answers are passed back.

use super::Shared;
use super::message::{ACK, CONNECTED, DISCONNECT, HELLO, Message, Next, Offer, Refusal, SIZE};
use super::socket::{Address, Received, Socket};
use dpdk::EthPause;
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Time for all that a client has to send before it is connected, and for each answer of DPDK.
const WAIT_TIME_MAX: Duration = Duration::from_secs(5);

/// A port that clients can connect to.
pub(crate) struct MemifPort {
    pub target: super::message::RingTarget,
    pub pause: EthPause,
    /// Locked while a client is connected. True: clients are accepted.
    pub busy: Mutex<bool>,
    /// Reaches its end when the port closes.
    pub end: UnixStream,
}

/// How a connection ended, unless it was closed here.
enum End {
    /// The client disconnected, or the thread has to stop.
    Gone,
    /// The client is disconnected with a reason.
    Refused(Refusal),
}

impl From<Refusal> for End {
    fn from(reason: Refusal) -> Self {
        End::Refused(reason)
    }
}

/// Serves a client until it disconnects.
pub(crate) fn serve(shared: &Shared, client: &Socket) {
    if let Err(End::Refused(reason)) = talk(shared, client) {
        let _ = client.send(&Message::disconnect(&reason), None);
        shared.warn(&format!("a client was sent away: {reason}"));
    }
}

fn talk(shared: &Shared, client: &Socket) -> Result<(), End> {
    let say = |message: &Message| client.send(message, None).map_err(|_| End::Gone);
    say(&Message::hello())?;
    let (mut offer, end) = (Offer::default(), Instant::now() + WAIT_TIME_MAX);
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if !wait(&[client.as_fd(), shared.stop()], left)[0] {
            return Err(if left.is_zero() {
                "it said too little for long".to_string().into()
            } else {
                End::Gone
            });
        }
        let (message, fds) = read(client)?;
        match offer.take(message, fds, |id| shared.entry(id).map(|e| e.target))? {
            Next::Ack => say(&Message::new(ACK))?,
            Next::Nothing => {}
            Next::Gone => return Err(End::Gone),
            Next::Connect => break,
        }
    }
    let id = offer.target.map_or(0, |(id, _)| id);
    let entry: Arc<MemifPort> = shared.entry(id).ok_or_else(|| format!("ID {id} not found"))?;
    // A client that returns at once finds its old connection still closing.
    let busy = (0..50).find_map(|i| {
        std::thread::sleep(Duration::from_millis(if i > 0 { 10 } else { 0 }));
        entry.busy.try_lock().ok()
    });
    let busy = busy.ok_or_else(|| "Already connected".to_string())?;
    if !*busy {
        return Err(format!("ID {id} not found").into());
    }
    let server = Socket::connect(&Address::Path(shared.private.clone())).map_err(|_| End::Gone)?;
    let result = connect(&server, offer).and_then(|(connected, signals)| {
        say(&connected)?;
        relay(&[shared.stop(), entry.end.as_fd()], client, &server, &signals)
    });
    leave(&entry, &server);
    result
}

/// Reads the next message.
fn read(from: &Socket) -> Result<(Message, Vec<OwnedFd>), End> {
    let Received { bytes, fds, cut } = match from.receive() {
        Ok(received) if !received.bytes.is_empty() => received,
        _ => return Err(End::Gone),
    };
    if cut {
        return Err("a message with too many descriptors".to_string().into());
    }
    let message = Message::from_bytes(&bytes).ok_or(match bytes.len() > SIZE {
        true => format!("a message of more than {SIZE} bytes"),
        false => format!("a message of {} bytes", bytes.len()),
    })?;
    Ok((message, fds))
}

/// An eventfd that DPDK writes or reads, and the client's eventfd.
type Signal = (OwnedFd, OwnedFd);

/// Sends everything that the client sent to DPDK's server; returns its CONNECTED, and the signals
/// to pass on. DPDK gets eventfds of this process: a worker must not wait for one that a client
/// made.
fn connect(server: &Socket, offer: Offer) -> Result<(Message, Vec<Signal>), End> {
    answer(server, HELLO)?;
    let (last, mut signals) = (offer.said.len() - 1, Vec::new());
    for (i, (message, fd)) in offer.said.into_iter().enumerate() {
        let is_ring = message.kind() == super::message::ADD_RING;
        let ours = if is_ring { Some(eventfd().ok_or(End::Gone)?) } else { None };
        let passed = ours.as_ref().or(fd.as_ref()).map(|fd| fd.as_fd());
        server.send(&message, passed).map_err(|_| End::Gone)?;
        if let (true, Some(ours), Some(theirs)) = (Offer::is_s2c_ring(&message), ours, fd) {
            signals.push((ours, theirs));
        }
        if i == last {
            break;
        }
        answer(server, ACK)?;
    }
    Ok((answer(server, CONNECTED)?, signals))
}

/// Reads the next message of DPDK, which must be of this kind.
fn answer(server: &Socket, kind: u16) -> Result<Message, End> {
    if !wait(&[server.as_fd()], WAIT_TIME_MAX)[0] {
        return Err("DPDK does not answer".to_string().into());
    }
    let (message, _) = read(server)?;
    match message.kind() {
        k if k == kind => Ok(message),
        DISCONNECT => Err(message.reason().into()),
        k => Err(format!("DPDK answers {k}").into()),
    }
}

/// Passes signals on until one end closes, or the listener or the port ends.
fn relay(
    ends: &[BorrowedFd; 2],
    client: &Socket,
    server: &Socket,
    signals: &[Signal],
) -> Result<(), End> {
    let mut fds = vec![client.as_fd(), server.as_fd(), ends[0], ends[1]];
    fds.extend(signals.iter().map(|(ours, _)| ours.as_fd()));
    loop {
        let ready = wait(&fds, Duration::MAX);
        if ready[1] {
            // The driver disconnects.
            let reason = read(server).map_or("closed".into(), |(message, _)| message.reason());
            let _ = client.send(&Message::disconnect(&reason), None);
            return Ok(());
        }
        if ready[0] {
            let (message, _) = read(client)?;
            match message.kind() {
                DISCONNECT => return Ok(()),
                ACK => {}
                kind => return Err(format!("message {kind} of a client that is connected").into()),
            }
        }
        if ready[2] || ready[3] {
            let _ = client.send(&Message::disconnect("closed"), None);
            return Ok(());
        }
        signals.iter().zip(&ready[4..]).filter(|(_, ready)| **ready).for_each(|(s, _)| pass(s));
    }
}

/// Disconnects from DPDK, which unmaps the client's memory as soon as it sees the end, while a
/// worker may be reading it: so no burst may be under way before it is done.
fn leave(entry: &MemifPort, server: &Socket) {
    entry.pause.pause();
    server.finish();
    // DPDK sends nothing more; its end comes when everything is closed.
    while wait(&[server.as_fd()], WAIT_TIME_MAX)[0] && read(server).is_ok() {}
    entry.pause.resume();
}

/// Passes an interrupt on. A client whose counter is full has not read it for a long time.
fn pass((ours, theirs): &Signal) {
    let mut count = [0u8; 8];
    // SAFETY: eight bytes are what an eventfd reads and writes.
    unsafe { libc::read(ours.as_raw_fd(), count.as_mut_ptr().cast(), 8) };
    if poll(&[theirs.as_fd()], libc::POLLOUT, Duration::ZERO)[0] {
        let one = 1u64.to_ne_bytes();
        // SAFETY: as above.
        unsafe { libc::write(theirs.as_raw_fd(), one.as_ptr().cast(), 8) };
    }
}

fn eventfd() -> Option<OwnedFd> {
    // SAFETY: makes a descriptor, which is ours.
    unsafe {
        let fd: RawFd = libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC);
        (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))
    }
}

/// Waits until one of the descriptors is readable or closed; returns which ones.
pub(crate) fn wait(fds: &[BorrowedFd], most: Duration) -> Vec<bool> {
    poll(fds, libc::POLLIN, most)
}

fn poll(fds: &[BorrowedFd], events: i16, most: Duration) -> Vec<bool> {
    let item = |fd: &BorrowedFd| libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
    let mut items: Vec<libc::pollfd> = fds.iter().map(item).collect();
    let timeout = i32::try_from(most.as_millis()).unwrap_or(-1);
    loop {
        // SAFETY: as many items as the length says.
        let n = unsafe { libc::poll(items.as_mut_ptr(), items.len() as libc::nfds_t, timeout) };
        if n >= 0 || std::io::Error::last_os_error().kind() != ErrorKind::Interrupted {
            return items.iter().map(|i| n > 0 && i.revents != 0).collect();
        }
    }
}
