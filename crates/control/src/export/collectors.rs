//! Where datagrams go: a UDP socket for each target of a row.

use crate::vlog;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

const MODULE: &str = "collectors";
/// How often the log says that a collector cannot be sent to.
const FAILURE_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The targets of one row, and the sockets of those that are addresses.
#[derive(Default)]
pub struct Collectors {
    targets: Vec<String>,
    sockets: Vec<Collector>,
    sent: u64,
    failed: u64,
}

struct Collector {
    target: String,
    socket: UdpSocket,
    /// When the log was reported that it cannot be sent to.
    logged: Option<Instant>,
}

impl Collectors {
    /// Opens a socket for each target; what is none is in the log once. `port`: where a target has
    /// none; none: it must have one.
    pub fn open(targets: &[String], port: Option<u16>) -> Self {
        let open = |target: &String| match socket(target, port) {
            Ok(socket) => Some(Collector { target: target.clone(), socket, logged: None }),
            Err(error) => {
                vlog::warn!(MODULE, "couldn't open connection to collector {target} ({error})");
                None
            }
        };
        let sockets = targets.iter().filter_map(open).collect();
        Collectors { targets: targets.to_vec(), sockets, sent: 0, failed: 0 }
    }

    /// True if these are the targets of the collectors.
    pub fn are(&self, targets: &[String]) -> bool {
        self.targets == targets
    }

    /// True if there is no collector.
    pub fn is_empty(&self) -> bool {
        self.sockets.is_empty()
    }

    /// The address from which datagrams to the first collector go.
    pub fn own_address(&self) -> Option<IpAddr> {
        self.sockets.first()?.socket.local_addr().ok().map(|a| a.ip())
    }

    /// Datagrams sent so far, one for each collector, and those that a socket did not take.
    pub fn counts(&self) -> (u64, u64) {
        (self.sent, self.failed)
    }

    /// Sends a datagram to each collector; what a socket does not take is lost.
    pub fn send(&mut self, datagram: &[u8]) {
        for c in &mut self.sockets {
            match c.socket.send(datagram) {
                Ok(_) => self.sent += 1,
                Err(error) => {
                    self.failed += 1;
                    c.complain(&error);
                }
            }
        }
    }
}

impl Collector {
    fn complain(&mut self, error: &io::Error) {
        if self.logged.is_some_and(|at| at.elapsed() < FAILURE_LOG_INTERVAL) {
            return;
        }
        self.logged = Some(Instant::now());
        let (target, error) = (&self.target, crate::of::io::error_text(error));
        vlog::warn!(MODULE, "{target}: sending to collector failed ({error})");
    }
}

fn socket(target: &str, port: Option<u16>) -> io::Result<UdpSocket> {
    let to = address(target, port).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidInput, "not an IP address with a port")
    })?;
    let any: IpAddr = match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.set_nonblocking(true)?;
    socket.connect(to)?;
    Ok(socket)
}

/// `IP[:PORT]`; an IPv6 address with a port is in brackets.
fn address(target: &str, port: Option<u16>) -> Option<SocketAddr> {
    let bare = target.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(target);
    let with_default = || Some(SocketAddr::new(bare.parse().ok()?, port?));
    target.parse().ok().or_else(with_default)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_addresses_with_or_without_a_port() {
        let read = |t: &str| address(t, Some(6343)).map(|a| a.to_string());
        for (target, is) in [
            ("192.0.2.1:99", Some("192.0.2.1:99")),
            ("192.0.2.1", Some("192.0.2.1:6343")),
            ("[2001:db8::1]:99", Some("[2001:db8::1]:99")),
            ("[2001:db8::1]", Some("[2001:db8::1]:6343")),
            ("2001:db8::1", Some("[2001:db8::1]:6343")),
            ("xyzzy", None),
            ("192.0.2.1:99999", None),
            ("", None),
        ] {
            assert_eq!(read(target).as_deref(), is, "{target}");
        }
        assert_eq!(address("192.0.2.1", None), None);
    }

    #[test]
    fn datagrams_go_to_all_collectors_and_a_name_is_none() {
        let there = UdpSocket::bind("127.0.0.1:0").unwrap();
        let target = there.local_addr().unwrap().to_string();
        let mut c = Collectors::open(&[target.clone(), "xyzzy".into(), target], None);
        assert_eq!(c.sockets.len(), 2);
        c.send(b"text");
        let mut buffer = [0; 9];
        for _ in 0..2 {
            assert_eq!(there.recv(&mut buffer).unwrap(), 4);
        }
        assert_eq!((&buffer[..4], c.counts()), (&b"text"[..], (2, 0)));
        assert_eq!(c.own_address(), Some(Ipv4Addr::LOCALHOST.into()));
    }
}
