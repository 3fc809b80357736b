//! The victim, and what it notices.

use crate::lab::*;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use testkit::{Netns, Raw, Switch, privileged};

/// How long latency, then throughput, are looked at in each run.
const LATENCY: Duration = Duration::from_millis(1500);
const THROUGHPUT: Duration = Duration::from_millis(800);
/// How long throughput is looked at, at most, on a machine that takes cores away.
const THROUGHPUT_WAIT_MAX: Duration = Duration::from_secs(10);
/// Between two questions.
const QUESTION: Duration = Duration::from_millis(5);
/// An answer that comes later is lost.
const LATE: Duration = Duration::from_secs(2);

/// A switch whose bridge br0 has one host, the one that attacks.
pub fn attacked(run: impl FnOnce(&Netns, &Switch<'_>, &Netns)) {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    run(&ns, &sw, &host_on(&ns, &sw, 3));
}

/// What was measured in one run.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    pub sent: u32,
    pub lost: u32,
    pub p50: Duration,
    pub p99: Duration,
    pub mbits: f64,
    /// The slowest `ovs-appctl version` and `ovs-vsctl add-port`.
    pub version: Duration,
    pub add_port: Duration,
}

/// What may become of the victim: shares of its throughput, multiples of its latency.
struct Limits {
    /// How often each run is made.
    runs: usize,
    lost_share: f64,
    throughput: f64,
    latency: (u32, Duration),
    control: (u32, Duration),
}

fn limits() -> Limits {
    match std::env::var_os("WEFT_STRICT").is_some_and(|v| v == "1") {
        true => Limits {
            runs: 5,
            lost_share: 0.0,
            throughput: 0.9,
            latency: (2, Duration::from_millis(1)),
            control: (0, Duration::from_millis(500)),
        },
        false => Limits {
            runs: 2,
            lost_share: 0.02,
            throughput: 0.25,
            latency: (8, Duration::from_millis(60)),
            control: (4, Duration::from_secs(3)),
        },
    }
}

/// Two hosts on a bridge of their own: 10.0.0.1 and 10.0.0.2.
pub struct Victim<'a> {
    pub sw: &'a Switch<'a>,
    pub a: Netns,
    pub b: Netns,
}

impl<'a> Victim<'a> {
    /// Adds bridge `victim` with its two hosts.
    pub fn new(ns: &Netns, sw: &'a Switch<'a>) -> Victim<'a> {
        add_bridge(sw, "victim");
        let (a, b) = (host(ns, 1), host(ns, 2));
        vsctl(sw, "add-port victim v1 -- add-port victim v2");
        Victim::of(sw, a, b)
    }

    /// With hosts 1 and 2 that are on bridge `victim` already.
    pub fn of(sw: &'a Switch<'a>, a: Netns, b: Netns) -> Victim<'a> {
        ping(&a, 2);
        Victim { sw, a, b }
    }

    /// Looks for some seconds.
    pub fn measure(&self) -> Figures {
        let end = AtomicBool::new(false);
        std::thread::scope(|s| {
            let asker = s.spawn(|| self.questions(&end));
            let start = Instant::now();
            let (mut version, mut add_port) = (Duration::ZERO, Duration::ZERO);
            loop {
                version = version.max(self.timed(&["ovs-appctl", "--timeout=20", "version"]));
                add_port = add_port.max(self.add_port());
                if start.elapsed() > LATENCY {
                    break;
                }
            }
            end.store(true, Ordering::Relaxed);
            let (sent, mut times) = asker.join().expect("the asker");
            times.sort();
            let at = |percent: usize| times.get(times.len() * percent / 100).copied();
            Figures {
                sent,
                lost: sent - times.len() as u32,
                p50: at(50).unwrap_or(LATE),
                p99: at(99).unwrap_or(LATE),
                mbits: self.throughput(),
                version,
                add_port,
            }
        })
    }

    fn add_port(&self) -> Duration {
        let add =
            "ovs-vsctl --timeout=20 add-port victim extra -- set interface extra type=internal";
        let took = self.timed(&add.split(' ').collect::<Vec<_>>());
        self.timed(&["ovs-vsctl", "--timeout=20", "--if-exists", "del-port", "extra"]);
        took
    }

    /// How long a tool takes; one that fails took forever.
    fn timed(&self, words: &[&str]) -> Duration {
        let start = Instant::now();
        let done = self.sw.command(words[0]).args(&words[1..]).output();
        match done.is_ok_and(|o| o.status.success()) {
            true => start.elapsed(),
            false => Duration::from_secs(60),
        }
    }

    /// Asks until `end` is set: how often, and how long the answers took.
    fn questions(&self, end: &AtomicBool) -> (u32, Vec<Duration>) {
        let server = self.b.run(|| UdpSocket::bind((addr(2), 0))).expect("a socket");
        let to = server.local_addr().expect("an address");
        let over = AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| answer(&server, &over));
            let socket = self.a.run(|| UdpSocket::bind((addr(1), 0))).expect("a socket");
            let asked = ask(&socket, to, end);
            over.store(true, Ordering::Relaxed);
            asked
        })
    }

    /// Megabits a second of one TCP connection; 0 when there is none. Time in which the worker that
    /// serves the victim's ports waited for a core does not count: one that has much to do waits
    /// longer where the machine takes cores away.
    fn throughput(&self) -> f64 {
        let listener = self.b.run(|| TcpListener::bind((addr(2), 0))).expect("a socket");
        let to = listener.local_addr().expect("an address");
        let Ok(mut stream) = self.a.run(|| TcpStream::connect_timeout(&to, LATE * 2)) else {
            return 0.0;
        };
        let (mut sink, _) = listener.accept().expect("a connection");
        stream.set_write_timeout(Some(LATE)).expect("a timeout");
        sink.set_read_timeout(Some(LATE * 2)).expect("a timeout");
        let begin = Instant::now();
        let worker = Worked::begin(self.sw, "kernel-ports");
        let goes_on = || worker.elapsed() < THROUGHPUT && begin.elapsed() < THROUGHPUT_WAIT_MAX;
        std::thread::scope(|s| {
            s.spawn(move || {
                let piece = vec![0x5a; 1 << 16];
                while goes_on() && stream.write_all(&piece).is_ok() {}
            });
            let (mut buffer, mut total) = (vec![0; 1 << 16], 0u64);
            while let Ok(n @ 1..) = sink.read(&mut buffer) {
                total += n as u64;
            }
            let had = worker.elapsed().max(begin.elapsed() / 20);
            println!("{total} bytes in {:?}, {had:?} without waits for a core", begin.elapsed());
            total as f64 * 8e-6 / had.as_secs_f64()
        })
    }
}

/// The time that passes, but for that in which a thread of the daemon's waits for a core.
struct Worked {
    begin: Instant,
    /// Where the kernel says how long the thread has waited, and how long it had at the beginning.
    schedstat: String,
    waited: Duration,
}

impl Worked {
    fn begin(sw: &Switch<'_>, name: &str) -> Worked {
        let (pid, id) = (sw.daemon_pid().expect("it runs"), thread_id(sw, name));
        let schedstat = format!("/proc/{pid}/task/{id}/schedstat");
        let waited = Worked::waited(&schedstat);
        Worked { begin: Instant::now(), schedstat, waited }
    }

    fn waited(schedstat: &str) -> Duration {
        let text = std::fs::read_to_string(schedstat).expect("the thread runs");
        let ns = text.split_whitespace().nth(1).and_then(|ns| ns.parse().ok());
        Duration::from_nanos(ns.expect("nanoseconds"))
    }

    fn elapsed(&self) -> Duration {
        self.begin.elapsed().saturating_sub(Worked::waited(&self.schedstat) - self.waited)
    }
}

/// The daemon's thread of this name.
pub fn thread_id(sw: &Switch<'_>, name: &str) -> i32 {
    let tasks = format!("/proc/{}/task", sw.daemon_pid().unwrap());
    let ids = std::fs::read_dir(&tasks).unwrap().flatten().map(|task| task.file_name());
    let comm = |id: &str| std::fs::read_to_string(format!("{tasks}/{id}/comm")).unwrap_or_default();
    let mut ids = ids.map(|id| id.to_string_lossy().into_owned());
    ids.find(|id| comm(id).trim() == name).unwrap().parse().unwrap()
}

fn answer(server: &UdpSocket, over: &AtomicBool) {
    server.set_read_timeout(Some(Duration::from_millis(20))).expect("a timeout");
    let mut buffer = [0; 64];
    while !over.load(Ordering::Relaxed) {
        if let Ok((n, from)) = server.recv_from(&mut buffer) {
            _ = server.send_to(&buffer[..n], from);
        }
    }
}

fn ask(socket: &UdpSocket, to: SocketAddr, end: &AtomicBool) -> (u32, Vec<Duration>) {
    let (start, mut sent, mut times) = (Instant::now(), Vec::new(), Vec::new());
    let mut receive = |sent: &[Instant], wait: Duration| {
        socket.set_read_timeout(Some(wait.max(Duration::from_micros(100)))).expect("a timeout");
        let mut number = [0; 4];
        if socket.recv(&mut number).is_ok() {
            times.push(sent[u32::from_ne_bytes(number) as usize].elapsed());
        }
        times.len()
    };
    while !end.load(Ordering::Relaxed) {
        let due = start + QUESTION * sent.len() as u32;
        match due.checked_duration_since(Instant::now()) {
            Some(wait) => drop(receive(&sent, wait)),
            None => {
                sent.push(Instant::now());
                _ = socket.send_to(&(sent.len() as u32 - 1).to_ne_bytes(), to);
            }
        }
    }
    let late = Instant::now() + LATE;
    while Instant::now() < late && receive(&sent, QUESTION) < sent.len() {}
    (sent.len() as u32, times)
}

/// Sends `frame(i)` so many times a second until the value is dropped.
pub struct Traffic {
    end: std::sync::Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<u64>>,
}

impl Traffic {
    /// Starts it.
    pub fn start(
        raw: Raw,
        rate: u32,
        mut frame: impl FnMut(u64) -> Vec<u8> + Send + 'static,
    ) -> Traffic {
        Traffic::run(rate, move |i| drop(raw.send(&frame(i))))
    }

    /// Does something so many times a second.
    pub fn run(rate: u32, mut each: impl FnMut(u64) + Send + 'static) -> Traffic {
        let end = std::sync::Arc::new(AtomicBool::new(false));
        let ended = end.clone();
        let thread = std::thread::spawn(move || {
            let (start, mut i) = (Instant::now(), 0u64);
            while !ended.load(Ordering::Relaxed) {
                let due = (start.elapsed().as_secs_f64() * f64::from(rate)) as u64;
                if i >= due {
                    std::thread::sleep(Duration::from_millis(1));
                }
                // What a busy machine did not get to is not caught up with all at once.
                let burst = due.saturating_sub(i).min(u64::from(rate / 100).max(1));
                (i..i + burst).for_each(&mut each);
                i = due;
            }
            i
        });
        Traffic { end, thread: Some(thread) }
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        self.thread.take().map(|t| t.join());
    }
}

/// Runs the victim beside harmless traffic and beside the attack, in turn, prints both and compares
/// them: the means of throughput, as a connection has more or less of it by chance, and of all else
/// the best of each, as a busy machine only makes it worse.
pub fn judge(
    what: &str,
    victim: &Victim<'_>,
    harmless: impl Fn() -> Vec<Traffic>,
    attack: impl Fn() -> Vec<Traffic>,
) {
    let run = |traffic: Vec<Traffic>| {
        std::thread::sleep(Duration::from_millis(200));
        let figures = victim.measure();
        drop(traffic);
        figures
    };
    let l = limits();
    let (calm, hit): (Vec<_>, Vec<_>) =
        (0..l.runs).map(|_| (run(harmless()), run(attack()))).unzip();
    let (calm, hit) = (together(&calm), together(&hit));
    println!("{what}: beside harmless traffic {calm:?}\n{what}: under attack            {hit:?}");
    let most = |(times, more): (u32, Duration), base: Duration| base * times + more;
    assert!(f64::from(hit.lost) <= l.lost_share * f64::from(hit.sent), "{what}: loss");
    assert!(hit.p99 <= most(l.latency, calm.p99), "{what}: latency");
    assert!(hit.mbits >= l.throughput * calm.mbits, "{what}: throughput");
    assert!(hit.version <= most(l.control, calm.version), "{what}: ovs-appctl version");
    assert!(hit.add_port <= most(l.control, calm.add_port), "{what}: ovs-vsctl add-port");
}

/// One run's figures for several.
fn together(runs: &[Figures]) -> Figures {
    let best = runs.iter().copied().reduce(better).expect("a run");
    let mbits = runs.iter().map(|run| run.mbits).sum::<f64>() / runs.len() as f64;
    Figures { mbits, ..best }
}

/// The best of each.
fn better(a: Figures, b: Figures) -> Figures {
    let (lost, sent) = if a.lost <= b.lost { (a.lost, a.sent) } else { (b.lost, b.sent) };
    Figures {
        sent,
        lost,
        p50: a.p50.min(b.p50),
        p99: a.p99.min(b.p99),
        mbits: a.mbits.max(b.mbits),
        version: a.version.min(b.version),
        add_port: a.add_port.min(b.add_port),
    }
}
