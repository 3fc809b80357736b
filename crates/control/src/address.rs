//! Where TCP connections go to or come in, and how their packets are marked.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, LazyLock};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;

/// Connections that wait to be accepted, as with a listener that the runtime binds.
const WAITING_MAX: u32 = 1024;

/// Names that are looked up at once. A name server that does not answer holds a thread for 10 s and
/// more, and all work of the kind has 512 of them.
const LOOKUPS_MAX: usize = 32;

static LOOKUPS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(LOOKUPS_MAX)));

/// Does what takes long for a name, when its turn has come; it goes on if no task waits for it any
/// more.
async fn in_turn<T: Send + 'static>(find: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let turn = LOOKUPS.clone().acquire_owned().await.map_err(io::Error::other)?;
    let found = tokio::task::spawn_blocking(move || {
        let found = find();
        drop(turn);
        found
    });
    found.await.map_err(io::Error::other)
}

/// `HOST:PORT`, an IPv6 address in brackets; and what is set on its sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// `HOST:PORT`.
    pub place: String,
    /// DSCP of the packets of its connections.
    pub dscp: u8,
}

impl Address {
    /// Its socket addresses.
    async fn look_up(&self) -> io::Result<Vec<SocketAddr>> {
        if let Ok(addr) = self.place.parse() {
            return Ok(vec![addr]);
        }
        let place = self.place.clone();
        in_turn(move || place.to_socket_addrs().map(Iterator::collect)).await?
    }

    /// Connects; the first packet is marked, too.
    pub async fn connect(&self) -> io::Result<TcpStream> {
        let mut error = io::ErrorKind::AddrNotAvailable.into();
        for addr in self.look_up().await? {
            match self.socket(&addr)?.connect(addr).await {
                Ok(stream) => return Ok(stream),
                Err(e) => error = e,
            }
        }
        Err(error)
    }

    /// Listens.
    pub async fn listen(&self) -> io::Result<TcpListener> {
        let mut error = io::ErrorKind::AddrNotAvailable.into();
        for addr in self.look_up().await? {
            match self.bind(addr).and_then(TcpListener::from_std) {
                Ok(listener) => return Ok(listener),
                Err(e) => error = e,
            }
        }
        Err(error)
    }

    /// Listens at once: who configured it may connect as soon as the database says that it is
    /// done. None: a name, or not yet possible; then it is tried again in the background.
    pub fn listen_now(&self) -> Option<std::net::TcpListener> {
        self.bind(self.place.parse().ok()?).ok()
    }

    fn bind(&self, addr: SocketAddr) -> io::Result<std::net::TcpListener> {
        let socket = self.socket(&addr)?;
        socket.set_reuseaddr(true)?;
        socket.bind(addr)?;
        socket.listen(WAITING_MAX)?.into_std()
    }

    /// A socket that marks its packets, and those of connections that it accepts.
    fn socket(&self, addr: &SocketAddr) -> io::Result<TcpSocket> {
        // Behind the DSCP there are two bits for congestion (RFC 2474, section 3).
        let tos = u32::from(self.dscp) << 2;
        match addr {
            SocketAddr::V4(_) => TcpSocket::new_v4().and_then(|s| s.set_tos_v4(tos).map(|()| s)),
            SocketAddr::V6(_) => TcpSocket::new_v6().and_then(|s| s.set_tclass_v6(tos).map(|()| s)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;

    /// No task waits for some of them, as when their controllers are not configured any more.
    #[test]
    fn few_names_are_looked_up_at_once() {
        static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let all: Vec<_> = (0..4 * LOOKUPS_MAX)
                .map(|n| {
                    let (answer, answered) = channel::<()>();
                    let find = move || {
                        let n = UNDER_WAY.fetch_add(1, Ordering::SeqCst) + 1;
                        let _ = answered.recv();
                        UNDER_WAY.fetch_sub(1, Ordering::SeqCst);
                        n
                    };
                    let waits = tokio::spawn(in_turn(find));
                    (n, answer, waits)
                })
                .collect();
            while UNDER_WAY.load(Ordering::SeqCst) < LOOKUPS_MAX {
                tokio::task::yield_now().await;
            }
            let (given_up, others): (Vec<_>, Vec<_>) =
                all.into_iter().partition(|(n, ..)| n % 2 == 1);
            let answers: Vec<_> = given_up
                .into_iter()
                .map(|(_, answer, waits)| {
                    waits.abort();
                    answer
                })
                .collect();
            tokio::task::yield_now().await;
            drop(answers);
            for (_, answer, waits) in others {
                drop(answer);
                assert!(waits.await.unwrap().unwrap() <= LOOKUPS_MAX);
            }
        });
    }
}
