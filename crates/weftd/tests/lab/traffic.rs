//! Traffic that runs beside a test.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use testkit::Netns;

/// An endless `ping`, 100 a second, that says in the end how many were sent and answered.
pub struct Pinger(Child);

impl Pinger {
    /// Starts it.
    pub fn start(from: &Netns, to: IpAddr) -> Pinger {
        let mut c = from.command("ping");
        c.args(["-i", "0.01", "-n", "-q", &to.to_string()]);
        Pinger(c.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("ping"))
    }

    /// Stops it: sent and answered.
    pub fn stop(mut self) -> (u64, u64) {
        // SAFETY: no memory; the process is our child and not waited for yet.
        unsafe { libc::kill(self.0.id() as i32, libc::SIGINT) };
        let mut text = String::new();
        let _ = self.0.stdout.take().expect("piped").read_to_string(&mut text);
        let words: Vec<&str> = text.split_whitespace().collect();
        let number = |after: &str| {
            let i = words.windows(2).position(|w| w[1].trim_end_matches(',') == after);
            i.and_then(|i| words[i].parse().ok())
        };
        // "120 packets transmitted, 119 received, ..."
        match (number("packets"), number("received")) {
            (Some(sent), Some(answered)) => (sent, answered),
            _ => panic!("ping said: {text}"),
        }
    }
}

impl Drop for Pinger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Longest silence in a transfer.
const SILENCE: Duration = Duration::from_secs(20);

/// Sends bytes by TCP from one host to another for as long as `during` runs; how many arrived, each
/// as it was sent.
pub fn transfer(from: &Netns, to: (&Netns, IpAddr), during: impl FnOnce()) -> u64 {
    let listener = to.0.run(|| TcpListener::bind(SocketAddr::new(to.1, 0))).expect("listen");
    let address = listener.local_addr().expect("an address");
    let end = AtomicBool::new(false);
    std::thread::scope(|s| {
        let sender = s.spawn(|| send(from, address, &end));
        let receiver = s.spawn(|| receive(&listener.accept().expect("accept").0));
        // Also when it panics.
        let ended = Ends(&end);
        during();
        drop(ended);
        let sent = sender.join().expect("the sender");
        assert_eq!(receiver.join().expect("the receiver"), sent, "every byte arrives");
        sent
    })
}

struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn send(from: &Netns, address: SocketAddr, end: &AtomicBool) -> u64 {
    let mut stream = from.run(|| TcpStream::connect_timeout(&address, SILENCE)).expect("connects");
    stream.set_write_timeout(Some(SILENCE)).expect("a timeout");
    let (mut sent, mut piece) = (0u64, vec![0u8; 1 << 15]);
    while !end.load(Ordering::Relaxed) {
        for (i, b) in piece.iter_mut().enumerate() {
            *b = pattern(sent + i as u64);
        }
        stream.write_all(&piece).expect("the transfer goes on");
        sent += piece.len() as u64;
    }
    sent
}

fn receive(mut stream: &TcpStream) -> u64 {
    stream.set_read_timeout(Some(SILENCE)).expect("a timeout");
    let (mut buffer, mut total) = (vec![0u8; 1 << 16], 0u64);
    loop {
        let n = stream.read(&mut buffer).expect("the transfer goes on");
        if n == 0 {
            return total;
        }
        for (i, b) in buffer[..n].iter().enumerate() {
            assert_eq!(*b, pattern(total + i as u64), "a byte changed on its way");
        }
        total += n as u64;
    }
}

fn pattern(at: u64) -> u8 {
    (at ^ at >> 8 ^ at >> 16) as u8
}
