//! What machines offer and ask each other: who is there, by TCP and UDP, names, addresses, copies
//! for many.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use testkit::Netns;

/// An answer on a busy machine takes less.
const ANSWER: Duration = Duration::from_secs(2);
/// Silence after which no answer comes.
const NONE: Duration = Duration::from_millis(700);
const TURN: Duration = Duration::from_millis(20);

/// Answers by TCP and UDP, on one port, with its name and the asker's address as it sees it.
pub struct Service {
    end: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Service {
    pub fn start(ns: &Netns, name: &str, port: u16) -> Service {
        let at = (Ipv4Addr::UNSPECIFIED, port);
        let (tcp, udp) = ns.run(|| (TcpListener::bind(at), UdpSocket::bind(at)));
        let (tcp, udp) = (tcp.expect("a TCP port"), udp.expect("a UDP port"));
        tcp.set_nonblocking(true).expect("does not wait");
        udp.set_read_timeout(Some(TURN)).expect("waits for a turn");
        let end = Arc::new(AtomicBool::new(false));
        let answer = |from: SocketAddr, name: &str| format!("{name} {}", from.ip());
        let (ended, own) = (end.clone(), name.to_string());
        let by_tcp = move || {
            while !ended.load(Ordering::Relaxed) {
                match tcp.accept() {
                    Ok((mut s, from)) => drop(s.write_all(answer(from, &own).as_bytes())),
                    Err(_) => std::thread::sleep(TURN),
                }
            }
        };
        let (ended, own) = (end.clone(), name.to_string());
        let by_udp = move || {
            let mut buffer = [0; 64];
            while !ended.load(Ordering::Relaxed) {
                if let Ok((_, from)) = udp.recv_from(&mut buffer) {
                    let _ = udp.send_to(answer(from, &own).as_bytes(), from);
                }
            }
        };
        Service { end, threads: vec![std::thread::spawn(by_tcp), std::thread::spawn(by_udp)] }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|t| drop(t.join()));
    }
}

/// Who answers at `to` (`ADDRESS:PORT`), and whom he sees; asked again until one does.
pub fn ask(from: &Netns, proto: &str, to: &str) -> Result<String, String> {
    asked(from, proto, to, Instant::now() + 4 * ANSWER, ANSWER)
}

/// There is no answer from `to`.
pub fn is_silent(from: &Netns, proto: &str, to: &str) -> bool {
    asked(from, proto, to, Instant::now(), NONE).is_err()
}

fn asked(
    from: &Netns,
    proto: &str,
    to: &str,
    end: Instant,
    wait_max: Duration,
) -> Result<String, String> {
    let to: SocketAddr = to.parse().expect("ADDRESS:PORT");
    loop {
        let said = from.run(|| match proto {
            "tcp" => by_tcp(to, wait_max),
            _ => by_udp(to, wait_max),
        });
        match said {
            Ok(text) if !text.is_empty() => return Ok(text),
            said if Instant::now() >= end => return Err(format!("{proto} {to}: {said:?}")),
            _ => std::thread::sleep(TURN),
        }
    }
}

fn by_tcp(to: SocketAddr, wait_max: Duration) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&to, wait_max)?;
    stream.set_read_timeout(Some(wait_max))?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

fn by_udp(to: SocketAddr, wait_max: Duration) -> std::io::Result<String> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.set_read_timeout(Some(wait_max))?;
    socket.connect(to)?;
    socket.send(b"who?")?;
    let mut buffer = [0; 64];
    let n = socket.recv(&mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..n]).into())
}

/// The address of a name, as the server at `server` has it (RFC 1035).
pub fn resolve(from: &Netns, server: [u8; 4], name: &str) -> Option<Ipv4Addr> {
    let mut query = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        query.push(label.len() as u8);
        query.extend(label.bytes());
    }
    query.extend([0, 0, 1, 0, 1]);
    from.run(|| {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
        socket.set_read_timeout(Some(ANSWER)).ok()?;
        socket.connect(SocketAddrV4::new(server.into(), 53)).ok()?;
        let mut buffer = [0; 512];
        (0..3).find_map(|_| {
            socket.send(&query).ok()?;
            let n = socket.recv(&mut buffer).ok()?;
            // The address is the end of the only answer.
            let address: [u8; 4] = buffer[..n].last_chunk().copied()?;
            (n > query.len()).then(|| address.into())
        })
    })
}

/// A member of a group: what is sent to the group and `port` can be received.
pub fn join(ns: &Netns, group: Ipv4Addr, own: Ipv4Addr, port: u16) -> UdpSocket {
    let socket = ns.run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))).expect("a port");
    ns.run(|| socket.join_multicast_v4(&group, &own)).expect("joins");
    socket.set_read_timeout(Some(NONE)).expect("a timeout");
    socket
}

/// Sends datagrams, one each millisecond.
pub fn send(from: &Netns, to: (Ipv4Addr, u16), n: usize) {
    from.run(|| {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a socket");
        for _ in 0..n {
            let _ = socket.send_to(b"for all", to);
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}
