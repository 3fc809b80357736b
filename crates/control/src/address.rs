//! Where TCP connections go to or come in, and how their packets are marked.

use std::io;
use std::net::SocketAddr;
use tokio::net::{TcpListener, TcpSocket, TcpStream, lookup_host};

/// Connections that wait to be accepted, as with a listener that the runtime binds.
const WAITING_MAX: u32 = 1024;

/// `HOST:PORT`, an IPv6 address in brackets; and what is set on its sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// `HOST:PORT`.
    pub place: String,
    /// DSCP of the packets of its connections.
    pub dscp: u8,
}

impl Address {
    /// Connects; the first packet is marked, too.
    pub async fn connect(&self) -> io::Result<TcpStream> {
        let mut error = io::ErrorKind::AddrNotAvailable.into();
        for addr in lookup_host(&self.place).await? {
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
        for addr in lookup_host(&self.place).await? {
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
