//! Traffic that runs beside a test.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use testkit::Netns;

/// An endless `ping`, 100 a second, that says in the end how many were sent and answered.
pub struct Pinger {
    ping: Child,
    heard: Arc<Mutex<Heard>>,
}

/// What `ping` has said.
#[derive(Default, Clone, Copy)]
struct Heard {
    answers: u64,
    /// Number of the last ping that was answered.
    last: u64,
    /// Pings altogether, which it says when it ends.
    sent: Option<u64>,
}

/// Answers that a pinger waits for when it is stopped: those to pings of before come first.
const MORE_ANSWERS: u64 = 10;

impl Pinger {
    /// Starts it.
    pub fn start(from: &Netns, to: IpAddr) -> Pinger {
        let mut c = from.command("ping");
        c.args(["-i", "0.01", "-n", &to.to_string()]);
        let mut ping = c.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("ping");
        let heard = Arc::new(Mutex::new(Heard::default()));
        let (lines, into) = (BufReader::new(ping.stdout.take().expect("piped")), heard.clone());
        std::thread::spawn(move || {
            for line in lines.lines().map_while(Result::ok) {
                into.lock().unwrap().hear(&line);
            }
        });
        Pinger { ping, heard }
    }

    /// Stops it: sent and answered. Pings that are under way are neither: a core that was taken
    /// away may be all that keeps them. If no more are answered, they count as sent.
    pub fn stop(self) -> (u64, u64) {
        let before = self.heard().answers;
        if becomes(|| self.heard().answers >= before + MORE_ANSWERS) {
            let now = self.heard();
            return (now.last, now.answers);
        }
        self.stop_at_once()
    }

    /// Stops it: sent, those under way among them, and answered.
    pub fn stop_at_once(self) -> (u64, u64) {
        // SAFETY: no memory; the process is our child and not waited for yet.
        unsafe { libc::kill(self.ping.id() as i32, libc::SIGINT) };
        assert!(becomes(|| self.heard().sent.is_some()), "ping says nothing");
        let end = self.heard();
        (end.sent.unwrap_or(end.last), end.answers)
    }

    fn heard(&self) -> Heard {
        *self.heard.lock().unwrap()
    }
}

/// True if it holds within the longest silence.
fn becomes(holds: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !holds() && start.elapsed() < SILENCE {
        std::thread::sleep(Duration::from_millis(5));
    }
    holds()
}

impl Heard {
    /// "64 bytes from 10.0.0.2: icmp_seq=7 ttl=64 time=0.1 ms", and in the end "120 packets
    /// transmitted, 119 received, ...".
    fn hear(&mut self, line: &str) {
        if let Some((sent, _)) = line.split_once(" packets transmitted") {
            self.sent = sent.parse().ok();
        }
        if !line.contains(" bytes from ") || line.contains("(DUP!)") {
            return;
        }
        let Some((_, rest)) = line.split_once("icmp_seq=") else { return };
        let Some(number) = rest.split(' ').next().and_then(|n| n.parse::<u16>().ok()) else {
            return;
        };
        self.answers += 1;
        // Numbers have 16 bits; one that was overtaken is not the last.
        let further = number.wrapping_sub(self.last as u16);
        self.last += u64::from(further) * u64::from(further < 1 << 15);
    }
}

impl Drop for Pinger {
    fn drop(&mut self) {
        let _ = self.ping.kill();
        let _ = self.ping.wait();
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
