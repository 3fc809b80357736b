//! The client: connects to a server again and again, with memory of its own.

use super::memory::{SharedMemory, new_region};
use super::message::{
    ACK, CONNECT, CONNECTED, DESCRIPTOR_BYTES, DISCONNECT, HELLO, Message, RING_HEADER_BYTES,
    RingOffer, Rings,
};
use super::port::{PortState, Queues};
use super::ring::{Buffers, Ring};
use super::socket::Socket;
use super::{Args, End, WAIT_TIME_MAX, eventfd, read, rings, stay, thread, wait};
use crate::Warn;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// Between attempts to connect.
const RETRY_TIME: Duration = Duration::from_millis(200);
/// Where buffers begin, a multiple of this.
const PAGE_BYTES: u64 = 4096;

/// The thread of a port that connects; it ends, and nothing is shared any more, when this is
/// dropped.
pub(super) struct Client {
    running: Option<UnixStream>,
    ended: UnixStream,
}

/// What the thread knows.
struct Session {
    args: Args,
    rings: Rings,
    shared: Arc<PortState>,
    stop: UnixStream,
    _ended: UnixStream,
    warn: Option<Warn>,
}

/// Where things are in the one region.
struct Layout {
    log2_size: u8,
    buffer_bytes: u32,
    rings: Rings,
}

impl Client {
    /// # Errors
    /// There are no descriptors, or no thread.
    pub fn start(
        args: &Args,
        queues: Queues,
        shared: &Arc<PortState>,
        warn: &Option<Warn>,
    ) -> std::io::Result<Client> {
        let (stop, running) = UnixStream::pair()?;
        let (_ended, ended) = UnixStream::pair()?;
        let (args, shared, warn) = (args.clone(), shared.clone(), warn.clone());
        let rings = Rings { c2s: queues.tx, s2c: queues.rx };
        let session = Session { args, rings, shared, stop, _ended, warn };
        thread(move || session.run())?;
        Ok(Client { running: Some(running), ended })
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.running = None;
        wait(&[self.ended.as_fd()], Duration::MAX);
    }
}

impl Session {
    fn run(self) {
        // A warning names each reason once, until the server takes us again.
        let mut said = String::new();
        loop {
            if let Ok(server) = Socket::connect(&self.args.address) {
                match self.talk(&server) {
                    Ok(()) => {
                        let _ = server.send(&Message::disconnect("closed"), None);
                        return;
                    }
                    Err(End::Gone) => said.clear(),
                    Err(End::Refused(reason)) => {
                        let _ = server.send(&Message::disconnect(&reason), None);
                        if let Some(warn) = self.warn.as_ref().filter(|_| said != reason) {
                            warn(&format!("memif socket {}: {reason}", self.args.address));
                        }
                        said = reason;
                    }
                }
            }
            if wait(&[self.stop.as_fd()], RETRY_TIME)[0] {
                return;
            }
        }
    }

    /// Until the server goes, or we are to stop (Ok).
    fn talk(&self, server: &Socket) -> Result<(), End> {
        let layout = self.layout(&self.answer(server, HELLO)?)?;
        let os = |e: std::io::Error| End::Refused(format!("memory to share: {e}"));
        let event = Arc::new(eventfd().map_err(os)?);
        let region = [(new_region(layout.bytes()).map_err(os)?, layout.bytes())];
        let memory = Arc::new(SharedMemory::map(&region, &event)?);
        let say = |message: &Message, fd: Option<&OwnedFd>| {
            server.send(message, fd.map(AsFd::as_fd)).map_err(|_| End::Gone)?;
            self.answer(server, ACK).map(drop)
        };
        say(&Message::init(self.args.id, &self.args.secret, "Weft"), None)?;
        say(&Message::add_region(layout.bytes()), Some(&region[0].0))?;
        let mut offers = [Vec::new(), Vec::new()];
        for (c2s, n) in [(true, layout.rings.c2s), (false, layout.rings.s2c)] {
            for index in 0..n {
                let offset = layout.ring(c2s, index);
                Ring::format(&memory, offset);
                let signal = eventfd().map_err(os)?;
                say(&Message::add_ring(c2s, index, offset, layout.log2_size), Some(&signal))?;
                let place = (0, offset, layout.log2_size);
                offers[usize::from(!c2s)].push(RingOffer { place, signal });
            }
        }
        server.send(&Message::connect(CONNECT, "Weft"), None).map_err(|_| End::Gone)?;
        let name = self.answer(server, CONNECTED)?.name();
        let [c2s, s2c] = offers;
        let buffers = |c2s| {
            let layout = &layout;
            move |i: usize| layout.buffers(c2s, i as u16)
        };
        let (tx, rx) = (
            rings(&memory, c2s, false, buffers(true))?,
            rings(&memory, s2c, true, buffers(false))?,
        );
        self.shared.connect(rx, tx, &name);
        let end = stay(&self.shared, server, &[self.stop.as_fd()], &event);
        self.shared.disconnect();
        end
    }

    /// What is shared with a server that takes this.
    fn layout(&self, hello: &Message) -> Result<Layout, End> {
        let limits = hello.limits()?;
        let log2_size = self.args.log2_size.min(limits.log2_size);
        let rings = self.rings;
        if limits.rings.c2s < rings.c2s || limits.rings.s2c < rings.s2c {
            let text = format!("the server takes {:?}, and there are {rings:?}", limits.rings);
            return Err(text.into());
        }
        let layout = Layout { log2_size, buffer_bytes: self.args.buffer_bytes, rings };
        if layout.bytes() > u64::from(u32::MAX) {
            return Err("rings and buffers have more than 4 GB".to_string().into());
        }
        Ok(layout)
    }

    /// The server's next message, if it is of this kind.
    fn answer(&self, server: &Socket, kind: u16) -> Result<Message, End> {
        let ready = wait(&[server.as_fd(), self.stop.as_fd()], WAIT_TIME_MAX);
        if ready[1] {
            return Err(End::Gone);
        }
        if !ready[0] {
            return Err("the server does not answer".to_string().into());
        }
        let (message, _) = read(server)?;
        match message.kind() {
            k if k == kind => Ok(message),
            DISCONNECT => Err(format!("the server refuses: {}", message.reason()).into()),
            k => Err(format!("the server answers {k}").into()),
        }
    }
}

impl Layout {
    fn ring_bytes(&self) -> u64 {
        RING_HEADER_BYTES + (DESCRIPTOR_BYTES << self.log2_size)
    }

    /// Offset of a ring, bytes: those from client to server come first.
    fn ring(&self, c2s: bool, index: u16) -> u32 {
        (self.number(c2s, index) * self.ring_bytes()) as u32
    }

    fn number(&self, c2s: bool, index: u16) -> u64 {
        u64::from(if c2s { index } else { self.rings.c2s + index })
    }

    fn first_buffer(&self) -> u64 {
        let rings = u64::from(self.rings.c2s + self.rings.s2c);
        (rings * self.ring_bytes()).next_multiple_of(PAGE_BYTES)
    }

    /// The buffers of a ring.
    fn buffers(&self, c2s: bool, index: u16) -> Buffers {
        let of_one = u64::from(self.buffer_bytes) << self.log2_size;
        let first = self.first_buffer() + self.number(c2s, index) * of_one;
        Buffers::Own { first: first as u32, bytes: self.buffer_bytes }
    }

    /// Bytes of the region.
    fn bytes(&self) -> u64 {
        let rings = u64::from(self.rings.c2s + self.rings.s2c);
        self.first_buffer() + rings * (u64::from(self.buffer_bytes) << self.log2_size)
    }
}
