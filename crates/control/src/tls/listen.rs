//! Listening: peers that are not known yet stay with the thread for handshakes.

use super::stream::TlsStream;
use super::{Tls, handshake, handshake_thread, is_unusable};
use crate::address::Address;
use crate::listener::{ConnectionSlot, ConnectionSlots, Peer};
use crate::of::io::error_text;
use crate::vlog;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

const MODULE: &str = "stream_ssl";

/// Connections of a listener that may be in their handshake: peers that are not known do not push
/// out those that are.
const HANDSHAKES_MAX: usize = 64;
/// How long a handshake may take while all places are taken and others come.
const HANDSHAKE_TIME_MIN: Duration = Duration::from_millis(250);
/// Events that may wait for the control thread.
const EVENTS_MAX: usize = 64;
/// Time between two attempts to listen.
const BIND_PAUSE: Duration = Duration::from_secs(5);

/// What happens on a listener.
#[derive(Debug)]
pub enum ListenEvent {
    /// A peer whose certificate is good, with its place among the listener's connections.
    Connected(TlsStream, ConnectionSlot),
    /// A peer was sent away: so many connections are the most.
    Full(usize),
    /// The listener cannot listen, or this side's files cannot be used: why, as in the log.
    Failed(String),
}

/// A listener; it ends when this is dropped.
pub struct TlsListener {
    events: mpsc::Receiver<ListenEvent>,
    _work: handshake_thread::Job<()>,
}

impl TlsListener {
    /// The next event; None when there will be no other. Cancel-safe.
    pub async fn next(&mut self) -> Option<ListenEvent> {
        loop {
            let mut event = self.events.recv().await?;
            if let ListenEvent::Connected(stream, _) = &mut event
                && stream.settle().is_err()
            {
                continue;
            }
            return Some(event);
        }
    }
}

impl Tls {
    /// Listens on an address, with `bound` if that is so already; at most `most` peers have a
    /// connection at once, of which [`HANDSHAKES_MAX`] are for handshakes.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn listen(
        &self,
        address: Address,
        bound: Option<std::net::TcpListener>,
        most: usize,
    ) -> io::Result<TlsListener> {
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        let listener = Listener {
            tls: self.clone(),
            address,
            served: ConnectionSlots::new(most.saturating_sub(HANDSHAKES_MAX)),
            events: sender,
        };
        Ok(TlsListener { events, _work: handshake_thread::spawn(listener.run(bound))? })
    }
}

#[derive(Clone)]
struct Listener {
    tls: Tls,
    address: Address,
    served: ConnectionSlots,
    events: mpsc::Sender<ListenEvent>,
}

impl Listener {
    async fn run(self, bound: Option<std::net::TcpListener>) {
        let handshakes = ConnectionSlots::new(HANDSHAKES_MAX);
        let listener = match bound.and_then(|l| TcpListener::from_std(l).ok()) {
            Some(listener) => listener,
            None => self.bind().await,
        };
        loop {
            let (tcp, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                // Out of descriptors, say: leave others time to give some back.
                Err(_) => {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            match handshakes.take(Peer::Host(peer.ip())).await {
                Some(slot) => drop(tokio::spawn(self.clone().admit(tcp, peer, slot))),
                None => self.report(ListenEvent::Full(HANDSHAKES_MAX)),
            }
        }
    }

    async fn bind(&self) -> TcpListener {
        loop {
            match self.address.listen().await {
                Ok(listener) => return listener,
                Err(e) => {
                    let why = error_text(&e);
                    vlog::warn!(MODULE, "listening on {}: {why}", self.address.place);
                    self.report(ListenEvent::Failed(why));
                }
            }
            tokio::time::sleep(BIND_PAUSE).await;
        }
    }

    /// Lets a peer in whose handshake is good. It ends with the listener.
    async fn admit(self, tcp: TcpStream, peer: SocketAddr, slot: ConnectionSlot) {
        let result = tokio::select! {
            result = self.handshake(tcp, &slot) => result,
            () = self.events.closed() => return,
        };
        match result {
            Ok(stream) => match self.served.take(Peer::Host(peer.ip())).await {
                Some(place) => drop(self.events.send(ListenEvent::Connected(stream, place)).await),
                None => self.report(ListenEvent::Full(self.served.most())),
            },
            Err(e) if is_unusable(&e) => self.report(ListenEvent::Failed(e.to_string())),
            Err(e) => vlog::warn!(MODULE, "{}: {peer}: {}", self.address.place, error_text(&e)),
        }
    }

    async fn handshake(&self, tcp: TcpStream, slot: &ConnectionSlot) -> io::Result<TlsStream> {
        let context = self.tls.context()?;
        let mut work = std::pin::pin!(handshake::server(&context, tcp));
        match tokio::time::timeout(HANDSHAKE_TIME_MIN, &mut work).await {
            Ok(result) => result,
            Err(_) => {
                let eviction = slot.eviction();
                let done = eviction.unless_evicted(eviction.idle(work)).await;
                done.unwrap_or_else(|| Err(io::Error::other("another client has its place")))
            }
        }
    }

    /// Unless the control thread is behind.
    fn report(&self, event: ListenEvent) {
        let _ = self.events.try_send(event);
    }
}
