//! Front-ends that do all they may not, beside a port whose guest carries traffic: nothing of it is
//! to be noticed there.
//!
//! What they do comes from three seeds in turn. `WEFT_HOSTILE_SECONDS` says how long each of the
//! tests lasts that attack over and over (`hostile_clients_*`, `hostile_servers_*`); a summary is
//! printed.

mod common;
#[path = "common/engine.rs"]
mod engine;

use common::*;
use engine::{Faults, SlowEngine};
use packet::{HeapPool, Packet, Pool};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use testkit::Noise;
use vhost_user::{Claim, Config, Mode, Rx, Seat, SeatState, Socket, Tx, Violation};

/// Longer than a busy machine takes for anything here.
const WAIT_TIME_MAX: Duration = Duration::from_secs(60);

/// The core that the polling thread says it has.
const SEAT: usize = 1;

type Port = Socket<HeapPool>;

/// The packets of all ports, as DPDK's are.
static POOL: LazyLock<Arc<HeapPool>> = LazyLock::new(Arc::default);

fn dir() -> PathBuf {
    let dir = std::env::temp_dir().join(format!("weft-vhost-user-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// One test at a time, as descriptors and memory are counted; what it left in the directory is
/// removed.
struct Alone(Option<MutexGuard<'static, ()>>);

fn alone() -> Alone {
    static ONE: Mutex<()> = Mutex::new(());
    Alone(Some(ONE.lock().unwrap_or_else(PoisonError::into_inner)))
}

impl Drop for Alone {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(dir());
        self.0 = None;
    }
}

fn path(name: &str) -> String {
    dir().join(name).to_str().unwrap().to_string()
}

fn open(name: &str, mode: Mode) -> Port {
    let config = Config {
        path: path(name),
        mode,
        n_txq: 1,
        tx_retries: 8,
        on_change: None,
        warn: Some(Arc::new(|line| println!("log: {line}"))),
        info: None,
    };
    let claim = Claim::new(&config.path, mode).unwrap();
    Socket::open(&config, POOL.clone(), claim).unwrap()
}

fn wait(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < WAIT_TIME_MAX, "{what}: timeout");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn seconds() -> Option<Duration> {
    let seconds = std::env::var("WEFT_HOSTILE_SECONDS").ok()?;
    Some(Duration::from_secs(seconds.parse().expect("a number of seconds")))
}

/// The thread that polls ports, as a PMD thread does, and a guest that sends back what it gets.
struct World {
    end: Arc<AtomicBool>,
    echoed: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

fn frame(pool: &HeapPool, number: u64) -> Packet {
    let mut bytes = [0u8; 60];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    pool.packet(&bytes).unwrap()
}

/// Sends some frames and takes what is there; returns how many came.
fn poll(rx: &mut Rx<HeapPool>, tx: &mut Tx<HeapPool>, n: u64) -> u64 {
    let pool = &POOL;
    let frames: Vec<Packet> = (0..n).map(|i| frame(pool, i)).collect();
    tx.prepare(0, frames.len());
    let taken = tx.burst(&frames);
    pool.free(&frames[taken..]);
    rx.prepare(0);
    rx.prepare(1);
    let mut back = Vec::with_capacity(64);
    let came = rx.burst(&mut back, 64);
    pool.free(&back);
    tx.notify(true);
    rx.notify(true);
    came as u64
}

/// Gives the seat an engine, and another one when that was too slow for it, as the control side
/// does.
fn keep_engines(seat: Arc<Seat>, faults: Faults, end: Arc<AtomicBool>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        while !end.load(Ordering::Relaxed) || seat.state() == SeatState::Stuck {
            match seat.state() {
                SeatState::Stuck => {
                    drop(seat.take_back());
                    seat.stopped();
                }
                SeatState::Failing => drop(seat.take_back()),
                SeatState::Empty if seat.is_settled() && !seat.is_gone() => {
                    seat.give(Box::new(SlowEngine::new(31, faults)));
                }
                _ => {}
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    })
}

impl World {
    /// Polls the neighbour and the ports that are attacked.
    fn start(neighbour: &Port, guest: Guest, attacked: &[Port]) -> World {
        World::start_with(neighbour, guest, attacked, None)
    }

    /// The same, with an engine that copies to and from both guests.
    fn start_with(
        neighbour: &Port,
        mut guest: Guest,
        attacked: &[Port],
        engine: Option<Faults>,
    ) -> World {
        let (end, echoed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (mut rx, mut tx) = (neighbour.rx(0).unwrap(), neighbour.tx(0).unwrap());
        let mut bad: Vec<_> =
            attacked.iter().map(|port| (port.rx(0).unwrap(), port.tx(0).unwrap())).collect();
        let (stop, count) = (end.clone(), echoed.clone());
        let poller = std::thread::spawn(move || {
            vhost_user::take_seat(SEAT);
            let seat = vhost_user::seats().pop().unwrap();
            let keeper = engine.map(|faults| {
                vhost_user::use_engines();
                vhost_user::set_threshold(Some(0));
                keep_engines(seat.clone(), faults, stop.clone())
            });
            while !stop.load(Ordering::Relaxed) {
                vhost_user::begin_turn();
                count.fetch_add(poll(&mut rx, &mut tx, 32), Ordering::Relaxed);
                bad.iter_mut().for_each(|(rx, tx)| _ = poll(rx, tx, 4));
                vhost_user::end_turn();
                std::thread::yield_now();
            }
            vhost_user::leave_seat();
            keeper.map(JoinHandle::join);
            drop(seat.take_back());
            vhost_user::forget_seat(&seat);
            println!("the engine: {:?}", seat.tally.read());
        });
        let stop = end.clone();
        let echoer = std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                if guest.step().is_empty() {
                    std::thread::yield_now();
                }
            }
        });
        World { end, echoed, threads: vec![poller, echoer] }
    }

    fn echoed(&self) -> u64 {
        self.echoed.load(Ordering::Relaxed)
    }

    /// The neighbour's guest goes on: so many frames come back from now on.
    fn goes_on(&self, n: u64) {
        let from = self.echoed();
        wait("the neighbour's frames come back", || self.echoed() >= from + n);
    }

    /// Frames per second.
    fn rate(&self, time: Duration) -> u64 {
        let (from, start) = (self.echoed(), Instant::now());
        std::thread::sleep(time);
        ((self.echoed() - from) as f64 / start.elapsed().as_secs_f64()) as u64
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A panic there fails the test by its own text.
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking());
        }
    }
}

/// Any message, with numbers and sizes that are often nearly right.
fn any_message(frontend: &Frontend, noise: &mut Noise, fds: &[RawFd]) -> std::io::Result<usize> {
    let request = noise.below(42) as u32;
    let few = |noise: &mut Noise| match noise.below(6) {
        0 => noise.next(),
        1 => u64::MAX,
        2 => 1 << noise.below(64),
        3 => USER + noise.below(BYTES as usize) as u64,
        _ => noise.below(4) as u64,
    };
    let mut list: Vec<u64> = (0..noise.below(6)).map(|_| few(noise)).collect();
    if request == SET_MEM_TABLE && noise.below(4) > 0 {
        list = vec![1, PHYSICAL, BYTES, USER, 0];
        list[1 + noise.below(4)] = few(noise);
    }
    let mut payload = words(&list);
    if noise.below(8) == 0 {
        payload.push(1);
    }
    let n = [0, 0, 1, 1, 1, 2, 8, 9, 60][noise.below(9)];
    let fds: Vec<RawFd> = (0..n).map(|_| fds[noise.below(fds.len())]).collect();
    frontend.send(request, &payload, &fds)
}

/// What one hostile front-end does on one connection, until it leaves or is thrown out.
fn attack(socket: UnixStream, noise: &mut Noise, kind: usize) -> std::io::Result<()> {
    socket.set_read_timeout(Some(WAIT_TIME_MAX))?;
    socket.set_write_timeout(Some(Duration::from_secs(2)))?;
    let packed = noise.below(2) == 1;
    let mut guest = Guest::new(socket, packed);
    let null = std::fs::File::open("/dev/null")?;
    let event = eventfd();
    match kind {
        0 => {
            let n = 1 + noise.below(300);
            guest.frontend.0.write_all(&noise.bytes(n))?;
        }
        1 => {
            let fds = [guest.file.as_raw_fd(), event.as_raw_fd(), null.as_raw_fd()];
            for _ in 0..40 {
                any_message(&guest.frontend, noise, &fds)?;
            }
        }
        // As a guest should, and then anything.
        2 => {
            guest.connect()?;
            guest.step();
            let fds = [guest.file.as_raw_fd(), event.as_raw_fd(), null.as_raw_fd()];
            for _ in 0..40 {
                any_message(&guest.frontend, noise, &fds)?;
            }
        }
        // Rings full of noise.
        3 => {
            guest.connect()?;
            guest.scribble(noise, 0, 0x2_0000);
            std::thread::sleep(Duration::from_millis(2));
            guest.frontend.settle()?;
        }
        // The memory goes away under traffic.
        4 => {
            guest.connect()?;
            guest.step();
            guest.file.set_len(4096 * noise.below(64) as u64)?;
            std::thread::sleep(Duration::from_millis(3));
            guest.frontend.settle()?;
        }
        5 => {
            let huge = words(&[1 << 40, 0, u64::MAX]);
            guest.frontend.send(GET_INFLIGHT_FD, &huge[..20 + 4 * noise.below(2)], &[])?;
            guest.frontend.reply()?;
        }
        // Full and blocking call descriptors.
        6 => {
            guest.connect()?;
            fill(&event, u64::MAX - 1);
            for ring in 0..2 {
                guest.frontend.send(SET_VRING_CALL, &words(&[ring]), &[event.as_raw_fd()])?;
            }
            guest.frontend.settle()?;
            std::thread::sleep(Duration::from_millis(2));
            let (_reader, writer) = std::io::pipe()?;
            guest.frontend.send(SET_VRING_CALL, &words(&[0]), &[writer.as_raw_fd()])?;
            guest.frontend.settle()?;
        }
        // Leaves in the middle of a message, with descriptors.
        7 => {
            guest.connect()?;
            let mut bytes = header(SET_MEM_TABLE, 1, 40);
            bytes.extend_from_slice(&words(&[1]));
            guest
                .frontend
                .raw(&bytes[..1 + noise.below(bytes.len())], &[guest.file.as_raw_fd()])?;
        }
        // A file that is shorter than said from the beginning.
        8 => {
            guest.file.set_len(BYTES - 4096)?;
            guest.table()?;
            guest.frontend.settle()?;
        }
        // Starts again and again.
        9 => {
            guest.connect()?;
            for _ in 0..50 {
                guest.table()?;
                guest.frontend.send(GET_VRING_BASE, &pair(noise.below(2) as u32, 0), &[])?;
                guest.frontend.reply()?;
                guest.ring(noise.below(2) as u32)?;
            }
            guest.frontend.settle()?;
        }
        _ => {
            let all: Vec<RawFd> = vec![null.as_raw_fd(); 60];
            guest.frontend.send(SET_MEM_TABLE, &words(&[8]), &all)?;
            guest.frontend.settle()?;
        }
    }
    Ok(())
}

const KINDS: usize = 11;

/// What a front-end that does nothing wrong does on one connection.
fn behave(socket: UnixStream, packed: bool) -> std::io::Result<()> {
    let mut guest = Guest::new(socket, packed);
    guest.connect()?;
    guest.step();
    guest.frontend.settle()
}

/// Violations that these front-ends are known to commit.
const EXPECTED: [Violation; 7] = [
    Violation::Version,
    Violation::Request,
    Violation::Descriptors,
    Violation::ShortFile,
    Violation::LostMemory,
    Violation::Inflight,
    Violation::Call,
];

fn neighbour(name: &str, packed: bool) -> (Port, Guest) {
    let port = open(name, Mode::Server);
    let mut guest = Guest::new(UnixStream::connect(path(name)).unwrap(), packed);
    guest.connect().unwrap();
    wait("the neighbour's guest is served", || port.connected());
    (port, guest)
}

/// Connections of one round: to begin with the neighbour is alone, then others behave, then they
/// are hostile.
#[derive(Clone, Copy)]
struct Round {
    behaved: usize,
    hostile: usize,
}

/// Rounds of a test for which the environment names no time.
const ROUNDS: usize = 3;

/// The neighbour's frames per second in each round.
#[derive(Default)]
struct Rates {
    alone: Vec<f64>,
    behaved: Vec<f64>,
    hostile: Vec<f64>,
}

fn median(list: impl Iterator<Item = f64>) -> f64 {
    let mut list: Vec<f64> = list.collect();
    list.sort_by(f64::total_cmp);
    list[list.len() / 2]
}

impl Rates {
    /// Medians over the rounds: frames per second alone, and which part of it is left beside
    /// others.
    fn summary(&self) -> String {
        let share = |of: &[f64], to: &[f64]| 100.0 * median(of.iter().zip(to).map(|(a, b)| a / b));
        format!(
            "neighbour {:.0} frames/s alone; beside hostile ones {:.0} % of that, {:.0} % of beside others",
            median(self.alone.iter().copied()),
            share(&self.hostile, &self.alone),
            share(&self.hostile, &self.behaved),
        )
    }
}

/// Front-ends that attack ports, over and over.
struct Siege<'a> {
    world: &'a World,
    bad: &'a [Port],
    round: Round,
    /// The next connection to one of the ports.
    connect: &'a mut dyn FnMut() -> UnixStream,
    /// What descriptors are counted after: no front-end is served.
    settled: &'a dyn Fn() -> bool,
    /// Descriptors that may come later than that.
    late: usize,
}

impl Siege<'_> {
    /// Frames per second of the neighbour while so many connections do something.
    fn beside(&mut self, n: usize, mut what: impl FnMut(usize, UnixStream)) -> f64 {
        let (from, start) = (self.world.echoed(), Instant::now());
        (0..n).for_each(|i| what(i, (self.connect)()));
        self.world.goes_on(32);
        (self.world.echoed() - from) as f64 / start.elapsed().as_secs_f64()
    }

    fn settle(&self) {
        wait("the last one is gone", || (self.settled)());
        self.world.goes_on(1000);
    }

    /// Descriptors and memory are back afterwards, and the neighbour went on.
    fn run(&mut self, what: &str) {
        let mut noises = [11, 77, 5].map(Noise);
        let mut attack = |i: usize, socket| {
            // It may be thrown out at any point.
            let _ = attack(socket, &mut noises[i / KINDS % 3], i % KINDS);
        };
        // What is allocated once.
        self.beside(self.round.hostile.min(2 * KINDS), &mut attack);
        self.settle();
        let (fds, kilobytes) = (descriptors(), resident());
        let (start, mut rates) = (Instant::now(), Rates::default());
        let goes_on = |rounds| seconds().map_or(rounds < ROUNDS, |time| start.elapsed() < time);
        while goes_on(rates.alone.len()) {
            rates.alone.push(self.world.rate(Duration::from_millis(300)) as f64);
            let behaved = self.beside(self.round.behaved, |i, socket| {
                let _ = behave(socket, i % 2 == 1);
            });
            rates.behaved.push(behaved);
            rates.hostile.push(self.beside(self.round.hostile, &mut attack));
        }
        self.settle();
        wait("no descriptor is left behind", || descriptors() <= fds + self.late);
        let grown = resident().saturating_sub(kilobytes);
        println!(
            "{what}: {} hostile connections in {:.0} s; {}; descriptors {fds} -> {}; resident +{grown} kB; {:?}",
            rates.hostile.len() * self.round.hostile,
            start.elapsed().as_secs_f64(),
            rates.summary(),
            descriptors(),
            counted(self.bad),
        );
        assert!(grown < 64 << 10, "{grown} kB more");
    }
}

/// Violations that were counted on these ports, summed up.
fn counted(ports: &[Port]) -> Vec<(Violation, u64)> {
    let mut all: Vec<(Violation, u64)> = Vec::new();
    for (what, n) in ports.iter().flat_map(Port::violations).filter(|(_, n)| *n > 0) {
        match all.iter_mut().find(|(v, _)| *v == what) {
            Some((_, sum)) => *sum += n,
            None => all.push((what, n)),
        }
    }
    all
}

/// What was expected was counted on the attacked ports, and nothing on the neighbour's.
fn blamed(bad: &[Port], good: &Port) {
    let counted = counted(bad);
    for what in EXPECTED {
        assert!(counted.iter().any(|(v, _)| *v == what), "{what:?} in {counted:?}");
    }
    assert!(good.connected() && good.violations().iter().all(|(_, n)| *n == 0));
}

/// A guest that behaves is served.
fn serves(socket: UnixStream, packed: bool) {
    let mut guest = Guest::new(socket, packed);
    guest.connect().unwrap();
    wait("a guest is served", || {
        guest.step();
        guest.echoed > 100
    });
}

/// Attacks a port on which we listen.
fn attack_server(packed: bool, engine: Option<Faults>) {
    let (good, guest) = neighbour(&format!("good{packed}"), packed);
    let name = format!("bad{packed}");
    let bad = [open(&name, Mode::Server)];
    let hostile = if engine.is_some() { 4 * KINDS } else { 10 * KINDS };
    let what = format!("server, packed {packed}, engine {}", engine.is_some());
    let world = World::start_with(&good, guest, &bad, engine);
    let mut connect = || UnixStream::connect(path(&name)).unwrap();
    Siege {
        world: &world,
        bad: &bad,
        round: Round { behaved: 10, hostile },
        connect: &mut connect,
        settled: &|| !bad[0].connected(),
        late: 0,
    }
    .run(&what);
    blamed(&bad, &good);
    serves(connect(), packed);
}

#[test]
fn hostile_clients_of_a_server_split() {
    let _alone = alone();
    attack_server(false, None);
}

/// Copies are in flight while front-ends lie, and guests' memory goes.
#[test]
fn hostile_clients_and_copies_in_flight() {
    let _alone = alone();
    for packed in [false, true] {
        let faults = Faults { error_one_of: 500, hang_after: 0, room: 256, delay_us: 200 };
        attack_server(packed, Some(faults));
    }
}

#[test]
fn hostile_clients_of_a_server_packed() {
    let _alone = alone();
    attack_server(true, None);
}

/// Ports that connect to hostile front-ends: each comes again once a second at most.
const CLIENT_PORTS: usize = 8;
/// Descriptors that a connection of ours opens once it is made.
const LATE_DESCRIPTORS: usize = 2;

/// The same by front-ends that we connect to.
fn attack_clients(packed: bool) {
    let (good, guest) = neighbour(&format!("good-{packed}"), packed);
    let names: Vec<String> = (0..CLIENT_PORTS).map(|i| format!("client-{packed}-{i}")).collect();
    let listeners: Vec<UnixListener> =
        names.iter().map(|name| UnixListener::bind(path(name)).unwrap()).collect();
    let bad: Vec<Port> = names.iter().map(|name| open(name, Mode::Client)).collect();
    let world = World::start(&good, guest, &bad);
    let mut turn = 0;
    let mut connect = || {
        turn += 1;
        listeners[turn % CLIENT_PORTS].accept().unwrap().0
    };
    Siege {
        world: &world,
        bad: &bad,
        round: Round { behaved: CLIENT_PORTS, hostile: 3 * KINDS },
        connect: &mut connect,
        // All have connected again, and none is accepted.
        settled: &|| listeners.iter().all(waits) && bad.iter().all(|port| !port.connected()),
        late: LATE_DESCRIPTORS * CLIENT_PORTS,
    }
    .run(&format!("client, packed {packed}"));
    blamed(&bad, &good);
    serves(connect(), packed);
}

/// Is there a connection to accept?
fn waits(listener: &UnixListener) -> bool {
    let mut poll = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, which lives.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 }
}

#[test]
fn hostile_servers_of_clients_split() {
    let _alone = alone();
    attack_clients(false);
}

#[test]
fn hostile_servers_of_clients_packed() {
    let _alone = alone();
    attack_clients(true);
}

/// A front-end that floods and never reads a reply burns its own connection's time; the port goes
/// at once.
#[test]
fn a_front_end_that_never_reads_delays_nothing() {
    let _alone = alone();
    let (good, guest) = neighbour("good-flood", false);
    let bad = open("flood", Mode::Server);
    let world = World::start(&good, guest, std::slice::from_ref(&bad));
    let mut silent: Vec<Frontend> = Vec::new();
    for _ in 0..3 {
        let frontend = Frontend(UnixStream::connect(path("flood")).unwrap());
        frontend.0.set_nonblocking(true).unwrap();
        silent.push(frontend);
    }
    let mut sent = 0u64;
    let question = header(GET_FEATURES, 1, 0);
    for _ in 0..200 {
        for frontend in &silent {
            while frontend.raw(&question, &[]).is_ok_and(|n| n == question.len()) {
                sent += 1;
            }
        }
        world.goes_on(32);
    }
    assert!(good.connected());
    // The same socket serves who behaves, and the port goes without waiting for who does not.
    let mut guest = Guest::new(UnixStream::connect(path("flood")).unwrap(), false);
    guest.connect().unwrap();
    wait("a guest is served beside", || bad.connected());
    drop(world);
    let start = Instant::now();
    drop(bad);
    assert!(start.elapsed() < Duration::from_secs(5), "a bound of the socket's own");
    for frontend in &mut silent {
        frontend.0.set_nonblocking(false).unwrap();
        let mut rest = Vec::new();
        let _ = frontend.0.read_to_end(&mut rest);
    }
    assert!(sent > 50, "{sent}");
}

/// Neither half a message nor silence holds a server's places: the oldest that is not served goes.
#[test]
fn idle_connections_make_room() {
    let _alone = alone();
    let port = open("idle", Mode::Server);
    let connect = || UnixStream::connect(path("idle")).unwrap();
    let idle: Vec<UnixStream> = (0..20).map(|_| connect()).collect();
    let mut guest = Guest::new(connect(), false);
    guest.connect().unwrap();
    wait("the guest is served", || port.connected());
    let more: Vec<UnixStream> = (0..20).map(|_| connect()).collect();
    guest.frontend.settle().unwrap();
    let closed = |socket: &UnixStream| {
        socket.set_nonblocking(true).unwrap();
        matches!((&*socket).read(&mut [0]), Ok(0))
    };
    wait("the older ones were closed", || {
        idle.iter().chain(&more).filter(|socket| closed(socket)).count() >= 36
    });
    wait("each was counted", || port.violations().contains(&(Violation::Connections, 37)));
    assert!(port.connected());
}

/// A second connection is served when the first one ends, and not before.
#[test]
fn a_second_guest_has_its_turn() {
    let _alone = alone();
    let port = open("turn", Mode::Server);
    let connect = || Guest::new(UnixStream::connect(path("turn")).unwrap(), false);
    let (mut first, mut second) = (connect(), connect());
    first.connect().unwrap();
    second.connect().unwrap();
    let (mut rx, mut tx) = (port.rx(0).unwrap(), port.tx(0).unwrap());
    wait("the first one is served", || {
        poll(&mut rx, &mut tx, 4);
        first.step();
        first.echoed > 10
    });
    assert!(second.step().is_empty());
    drop(first);
    wait("the second one is served", || {
        poll(&mut rx, &mut tx, 4);
        second.step();
        second.echoed > 10
    });
    assert_eq!(port.changes(), 3);
}

/// The switch ends without a word and another one comes: frames go on, though a front-end says of
/// packed rings only what was true when the driver started.
#[test]
fn rings_go_on_after_a_crash() {
    let _alone = alone();
    for packed in [false, true] {
        let mut port = Some(open("crash", Mode::Server));
        let connect = || UnixStream::connect(path("crash")).unwrap();
        let mut guest = Guest::new(connect(), packed);
        let mut noise = Noise(3);
        for life in 0..12u64 {
            guest.connect().unwrap();
            let socket = port.as_ref().unwrap();
            let (mut rx, mut tx) = (socket.rx(0).unwrap(), socket.tx(0).unwrap());
            let from = guest.echoed;
            let (mut came, n) = (0, 200 + noise.below(400) as u64);
            wait(&format!("life {life}, packed {packed}"), || {
                came += poll(&mut rx, &mut tx, 1 + noise.below(8) as u64);
                guest.step();
                guest.echoed > from + n && came > n
            });
            // Some frames are under way.
            (0..noise.below(4)).for_each(|_| _ = guest.step());
            drop((rx, tx));
            port = None;
            port.replace(open("crash", Mode::Server));
            guest.frontend = Frontend(connect());
        }
    }
}

/// Every page that is written while a guest is migrated is marked.
#[test]
fn dirty_pages_are_logged() {
    let _alone = alone();
    for packed in [false, true] {
        let port = open("log", Mode::Server);
        let mut guest = Guest::new(UnixStream::connect(path("log")).unwrap(), packed);
        guest.connect().unwrap();
        let (mut rx, mut tx) = (port.rx(0).unwrap(), port.tx(0).unwrap());
        let pool = &POOL;
        let pages = ((PHYSICAL + BYTES) / 4096) as usize;
        let log = memfd(4096);
        let place = words(&[4096, 0]);
        guest.frontend.send(SET_LOG_BASE, &place, &[log.as_raw_fd()]).unwrap();
        assert_eq!(guest.frontend.reply().unwrap(), [0; 8]);
        let features = guest.features() | LOG_ALL;
        guest.frontend.send(SET_FEATURES, &words(&[features]), &[]).unwrap();
        guest.frontend.settle().unwrap();
        let before = guest.bytes(0, BYTES as usize);
        let frames: Vec<Packet> = (0..20).map(|i| frame(pool, 1 + i)).collect();
        wait("all are sent", || tx.burst(&frames) == frames.len());
        let after = guest.bytes(0, BYTES as usize);
        let mut bits = vec![0u8; 4096];
        use std::os::unix::fs::FileExt;
        log.read_exact_at(&mut bits, 0).unwrap();
        let marked = |page: usize| bits[page / 8] >> (page % 8) & 1 == 1;
        let first = (PHYSICAL / 4096) as usize;
        let mut changed = 0;
        for page in first..pages {
            let range = (page - first) * 4096..(page - first + 1) * 4096;
            if before[range.clone()] != after[range] {
                changed += 1;
                assert!(marked(page), "page {page:#x}, packed {packed}");
            }
        }
        assert!(changed >= 11, "{changed} pages: ten of buffers and a ring's");
        let count = (0..8 * 4096).filter(|page| marked(*page)).count();
        assert!(count <= changed + 4, "{count} of {changed}");
        // The driver's own frames, used: their ring is written as well.
        wait("they come back", || {
            guest.step();
            let mut back = Vec::with_capacity(64);
            let came = rx.burst(&mut back, 64);
            pool.free(&back);
            came > 0
        });
        log.read_exact_at(&mut bits, 0).unwrap();
        let [desc, _, used] = parts(1);
        let page = ((PHYSICAL + if packed { desc } else { used }) / 4096) as usize;
        assert!(bits[page / 8] >> (page % 8) & 1 == 1);
        // And back: nothing is marked any more.
        guest.frontend.send(SET_FEATURES, &words(&[guest.features()]), &[]).unwrap();
        guest.frontend.settle().unwrap();
        assert_eq!(port.info().unwrap().features, guest.features());
    }
}

/// A guest that came from another host is announced once.
#[test]
fn an_arrival_is_announced() {
    let _alone = alone();
    let port = open("rarp", Mode::Server);
    let mut guest = Guest::new(UnixStream::connect(path("rarp")).unwrap(), false);
    guest.connect().unwrap();
    let mac = [2, 0, 0, 0, 0, 9, 0, 0];
    guest.frontend.send(SEND_RARP, &mac, &[]).unwrap();
    guest.frontend.send(NET_SET_MTU, &words(&[1400]), &[]).unwrap();
    guest.frontend.settle().unwrap();
    let (mut rx, pool) = (port.rx(0).unwrap(), &POOL);
    let mut back = Vec::with_capacity(64);
    assert_eq!(rx.burst(&mut back, 64), 1);
    assert_eq!(back[0].data()[6..14], [2, 0, 0, 0, 0, 9, 0x80, 0x35]);
    pool.free(&back);
    back.clear();
    assert_eq!(rx.burst(&mut back, 64), 0);
    assert_eq!(port.info().unwrap().mtu, Some(1400));
}

/// What a front-end says that may not, on a connection of its own, and the counter where that ends.
#[test]
fn each_violation_ends_in_its_counter() {
    let _alone = alone();
    let port = open("each", Mode::Server);
    let count = |what| port.violations().iter().find(|(v, _)| *v == what).unwrap().1;
    let short = memfd(4096);
    let table = |list: [u64; 4]| words(&[&[1][..], &list].concat());
    let address = |ring: u64, at: u64| words(&[ring, at, at + 0x6000, at + 0x4000, 0]);
    let file = [short.as_raw_fd()];
    for (request, payload, fds, what) in [
        (99, vec![], &[][..], Violation::Request),
        (SET_FEATURES, vec![0; 4], &[], Violation::Size),
        (SET_FEATURES, words(&[1 << 11]), &[], Violation::Features),
        (SET_FEATURES, words(&[VERSION_1 | PACKED]), &[], Violation::Order),
        (SET_PROTOCOL_FEATURES, words(&[1 << 5]), &[], Violation::Features),
        (SET_MEM_TABLE, table(region(0, 8192)), &file, Violation::ShortFile),
        (SET_MEM_TABLE, table([u64::MAX, 4096, USER, 0]), &file, Violation::Region),
        (SET_MEM_TABLE, table(region(0, 4096)), &[], Violation::Descriptors),
        (SET_VRING_NUM, pair(0, 100), &[], Violation::RingSize),
        (SET_VRING_NUM, pair(0, 32_769), &[], Violation::RingSize),
        (SET_VRING_NUM, pair(128, 256), &[], Violation::Ring),
        (SET_VRING_ADDR, address(0, USER + BYTES), &[], Violation::RingAddress),
        (SET_VRING_ADDR, address(0, USER + 4), &[], Violation::RingAddress),
        (SET_VRING_BASE, pair(0, 1 << 16), &[], Violation::Value),
        (SET_VRING_KICK, words(&[1 << 9]), &[], Violation::Value),
        (SET_VRING_CALL, words(&[0]), &file, Violation::Call),
        (SET_VRING_ENABLE, pair(0, 2), &[], Violation::Value),
        (NET_SET_MTU, words(&[67]), &[], Violation::Value),
        (SET_LOG_BASE, words(&[8192, 0]), &file, Violation::ShortFile),
        (SET_LOG_BASE, words(&[1 << 40, 0]), &file, Violation::Log),
        (GET_INFLIGHT_FD, vec![0xff; 20], &[], Violation::Inflight),
    ] {
        let before = count(what);
        let mut guest = Guest::new(UnixStream::connect(path("each")).unwrap(), false);
        guest.connect().unwrap();
        guest.frontend.send(request, &payload, fds).unwrap();
        let ended = guest.frontend.settle();
        assert!(ended.is_err(), "{request} {payload:?}");
        wait("it is counted", || count(what) == before + 1);
        wait("the guest is gone", || !port.connected());
    }
}
