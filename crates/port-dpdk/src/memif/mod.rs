//! memif devices: packets in memory that two processes share (the memif protocol, version 2.0;
//! DPDK's guide to its memif driver). Their arguments are those of DPDK's `net_memif`, but sockets
//! and rings are served here: DPDK's driver trusts its peer, which ends the process with a message
//! that is malformed, and reads or writes outside of the shared memory with a descriptor that is
//! wild (docs/decisions/0016-memif-is-served-by-us.md).
//!
//! Each connection has a thread of its own (`server`, `client`), which checks what the peer says
//! (`message`), maps its memory (`memory`) and hands rings (`ring`) to the queues of the port
//! (`port`). A peer that does something wrong is sent away, with a line in the log.

mod client;
mod devargs;
mod memory;
mod message;
mod port;
mod ring;
#[cfg(test)]
mod ring_tests;
mod server;
mod socket;

pub(crate) use devargs::Args;
pub(crate) use port::MemifPort;
pub(crate) use server::Memif;

use memory::SharedMemory;
use ring::{Buffers, Ring};
use socket::{Received, Socket};
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Longest time for all that a client has to say before it is connected, and for each answer of a
/// server.
const WAIT_TIME_MAX: Duration = Duration::from_secs(5);

/// A peer that is connected has no reason to say anything: its next message is read so long after
/// one.
const MESSAGE_TIME: Duration = Duration::from_millis(1);

/// How a connection ended other than by our own will.
enum End {
    /// The peer went, or we are to stop.
    Gone,
    /// It is sent away with a reason.
    Refused(message::Refusal),
}

impl From<message::Refusal> for End {
    fn from(reason: message::Refusal) -> Self {
        End::Refused(reason)
    }
}

/// The next message.
fn read(from: &Socket) -> Result<(message::Message, Vec<OwnedFd>), End> {
    let Received { bytes, fds, cut } = match from.receive() {
        Ok(received) if !received.bytes.is_empty() => received,
        _ => return Err(End::Gone),
    };
    if cut {
        return Err("a message with too many descriptors".to_string().into());
    }
    let message =
        message::Message::from_bytes(&bytes).ok_or(match bytes.len() > message::SIZE {
            true => format!("a message of more than {} bytes", message::SIZE),
            false => format!("a message of {} bytes", bytes.len()),
        })?;
    Ok((message, fds))
}

/// Until the peer goes, one of `ends` does, a worker finds a ring broken, or memory goes away
/// (`event`).
fn stay(
    shared: &port::PortState,
    peer: &Socket,
    ends: &[BorrowedFd],
    event: &OwnedFd,
) -> Result<(), End> {
    let mut fds = vec![peer.as_fd(), shared.broken_event.as_fd(), event.as_fd()];
    fds.extend(ends);
    loop {
        let ready = wait(&fds, Duration::MAX);
        if ready[0] {
            let (message, _) = read(peer)?;
            match message.kind() {
                message::DISCONNECT => return Err(End::Gone),
                message::ACK => std::thread::sleep(MESSAGE_TIME),
                kind => return Err(format!("message {kind} of a peer that is connected").into()),
            }
        }
        if ready[1] {
            let what = shared.broken().map_or("a broken ring", |error| error.text());
            return Err(what.to_string().into());
        }
        if ready[2] {
            return Err("a region's file was made shorter".to_string().into());
        }
        if ready[3..].contains(&true) {
            return Ok(());
        }
    }
}

/// The rings at these places, for the queues in their order.
fn rings(
    memory: &Arc<SharedMemory>,
    offers: Vec<message::RingOffer>,
    receives: bool,
    buffers: impl Fn(usize) -> Buffers,
) -> Result<Vec<Ring>, message::Refusal> {
    let ring = |(i, offer): (usize, message::RingOffer)| {
        let ring = Ring::new(memory, offer.place, buffers(i), offer.signal, receives);
        ring.map_err(|error| error.text().to_string())
    };
    offers.into_iter().enumerate().map(ring).collect()
}

/// A new event that did not happen yet.
fn eventfd() -> std::io::Result<OwnedFd> {
    // SAFETY: makes a descriptor, which is ours.
    unsafe {
        match libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) {
            fd if fd >= 0 => Ok(OwnedFd::from_raw_fd(fd)),
            _ => Err(std::io::Error::last_os_error()),
        }
    }
}

/// The event happened.
fn set(event: &OwnedFd) {
    let one = 1u64;
    // SAFETY: eight bytes that live here; the descriptor does not block.
    unsafe { libc::write(event.as_raw_fd(), (&raw const one).cast(), 8) };
}

/// Forgets that the event happened.
fn clear(event: &OwnedFd) {
    let mut count = 0u64;
    // SAFETY: as in `set`.
    unsafe { libc::read(event.as_raw_fd(), (&raw mut count).cast(), 8) };
}

fn thread(run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name("memif".into()).spawn(run).map(drop)
}

/// Waits until one of them can be read or is gone; which ones.
fn wait(fds: &[BorrowedFd], most: Duration) -> Vec<bool> {
    let item =
        |fd: &BorrowedFd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
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
