//! Copies in flight while everything else happens: messages of the front-end, guests that go,
//! engines that fail, hang and are taken away. Nothing is early, late, lost, twice or out of order;
//! buffers come back.

mod common;
#[path = "common/engine.rs"]
mod engine;

use common::*;
use engine::{Faults, MAPPED, SlowEngine};
use packet::{HeapPool, Packet, Pool};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use testkit::Noise;
use vhost::DmaMapper;
use vhost_user::{Claim, Config, Mode, Seat, SeatState, Socket, Tallied};

/// Longer than a busy machine takes for anything here.
const WAIT_TIME_MAX: Duration = Duration::from_secs(60);

const GOOD: Faults = Faults {
    error_one_of: 0,
    hang_after: 0,
    room: 200,
    delay_us: 300,
    needs_maps: false,
    needs_pages: false,
};

/// One at a time: engines and thresholds are of the process.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < WAIT_TIME_MAX, "{what}: timeout");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A port, the thread that serves it and has an engine, and what that thread saw.
struct World {
    path: PathBuf,
    port: Option<Socket<HeapPool>>,
    pool: Arc<HeapPool>,
    seat: Arc<Seat>,
    end: Arc<AtomicBool>,
    /// Frames that came back.
    came: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

/// Bytes of frame `number`.
fn bytes(number: u64) -> Vec<u8> {
    let len = 60 + number as usize * 769 % 1440;
    let mut bytes: Vec<u8> = (0..len).map(|i| (i as u64 ^ number) as u8).collect();
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// A frame as it was sent; its number.
fn number(frame: &[u8]) -> u64 {
    let number = u64::from_le_bytes(frame[..8].try_into().unwrap());
    assert!(frame == bytes(number), "frame {number} is damaged");
    number
}

fn open(name: &str, pool: &Arc<HeapPool>) -> (PathBuf, Socket<HeapPool>) {
    let path = std::env::temp_dir().join(format!("weft-copies-{}-{name}", std::process::id()));
    let config = Config {
        path: path.to_str().unwrap().into(),
        mode: Mode::Server,
        n_txq: 1,
        tx_retries: 8,
        offloads: false,
        on_change: None,
        warn: Some(Arc::new(|line| println!("log: {line}"))),
        info: None,
    };
    let claim = Claim::new(&config.path, config.mode).unwrap();
    let port = Socket::open(&config, pool.clone(), claim).unwrap();
    (path, port)
}

impl World {
    fn new(name: &str) -> World {
        let pool = Arc::new(HeapPool::new());
        let (path, port) = open(name, &pool);
        vhost_user::use_engines();
        let (end, came) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (mut rx, mut tx) = (port.rx(0).unwrap(), port.tx(0).unwrap());
        let (stop, count, frames) = (end.clone(), came.clone(), pool.clone());
        let thread = std::thread::spawn(move || {
            vhost_user::take_seat(77);
            let (mut next, mut last) = (1, 0);
            while !stop.load(Ordering::Relaxed) {
                vhost_user::begin_iteration();
                let mut back = Vec::with_capacity(64);
                rx.burst(&mut back, 64);
                for packet in &back {
                    let n = number(packet.data());
                    assert!(n > last, "{n} came back after {last}");
                    last = n;
                }
                frames.free(&back);
                count.fetch_add(back.len() as u64, Ordering::Relaxed);
                let burst: Vec<Packet> =
                    (next..next + 16).map(|n| frames.packet(&bytes(n)).unwrap()).collect();
                let taken = tx.burst(&burst);
                next += taken as u64;
                frames.free(&burst[taken..]);
                tx.notify(true);
                rx.notify(true);
                vhost_user::end_iteration();
                std::thread::yield_now();
            }
            vhost_user::leave_seat();
        });
        let seat = || vhost_user::seats().into_iter().find(|s| s.core == 77 && !s.is_gone());
        wait("the thread sits", || seat().is_some());
        let seat = seat().unwrap();
        World { path, port: Some(port), pool, seat, end, came, thread: Some(thread) }
    }

    fn give(&self, seed: u64, faults: Faults) {
        wait("the seat is free", || self.seat.is_settled());
        self.seat.give(Box::new(SlowEngine::new(seed, faults)));
        wait("it is taken", || self.seat.is_settled());
    }

    fn recall(&self) -> Tallied {
        self.seat.recall();
        wait("it comes back", || self.seat.state() == SeatState::Returned);
        drop(self.seat.take_back().unwrap());
        self.seat.tally.read()
    }

    /// What the control side does all the time.
    fn tend(&self) {
        match self.seat.state() {
            SeatState::Stuck => {
                drop(self.seat.take_back().unwrap());
                self.seat.stopped();
            }
            SeatState::Returned => drop(self.seat.take_back().unwrap()),
            _ => {}
        }
    }

    fn guest(&self, packed: bool) -> Guest {
        let mut guest = Guest::new(UnixStream::connect(&self.path).unwrap(), packed);
        guest.connect().unwrap();
        guest
    }

    /// The guest gets and sends back so many frames more.
    fn goes_on(&self, guest: &mut Guest, n: u64) {
        let (echoed, came) = (guest.echoed + n, self.came.load(Ordering::Relaxed) + n);
        let mut last = 0;
        wait("frames go there and back", || {
            self.tend();
            for n in guest.step() {
                assert!(n > last, "{n} reached the guest after {last}");
                last = n;
            }
            guest.echoed >= echoed && self.came.load(Ordering::Relaxed) >= came
        });
    }

    /// The thread ends; no buffer is left.
    fn end(mut self) {
        self.stop();
        drop(self.port.take());
        wait("buffers come back", || self.pool.in_use() == 0);
    }

    fn stop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking());
            drop(self.seat.take_back());
            vhost_user::forget_seat(&self.seat);
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What a front-end may say while its guest sends and receives.
fn message(guest: &mut Guest, kind: usize) {
    let both = |guest: &mut Guest, enabled| {
        (0..2).for_each(|r| _ = guest.frontend.send(SET_VRING_ENABLE, &pair(r, enabled), &[]));
    };
    match kind {
        0 => {
            both(guest, 0);
            guest.frontend.settle().unwrap();
            both(guest, 1);
        }
        1 => guest.table().unwrap(),
        2 => {
            for ring in 0..2 {
                let base = guest.frontend.ask(GET_VRING_BASE, &pair(ring, 0)).unwrap() >> 32;
                guest.frontend.send(SET_VRING_BASE, &pair(ring, base as u32), &[]).unwrap();
                let (kick, words) = (eventfd(), words(&[ring.into()]));
                guest.frontend.send(SET_VRING_KICK, &words, &[kick.as_raw_fd()]).unwrap();
            }
        }
        _ => {
            let call = eventfd();
            guest.frontend.send(SET_VRING_CALL, &words(&[0]), &[call.as_raw_fd()]).unwrap();
        }
    }
    guest.frontend.settle().unwrap();
}

#[test]
fn messages_and_copies_in_flight() {
    let _alone = alone();
    for packed in [false, true] {
        for threshold in [0, 700] {
            vhost_user::set_threshold(Some(threshold));
            let world = World::new(&format!("messages{packed}{threshold}"));
            world.give(5, GOOD);
            let mut guest = world.guest(packed);
            world.goes_on(&mut guest, 500);
            for i in 0..60 {
                message(&mut guest, i % 4);
                world.goes_on(&mut guest, 20);
            }
            let did = world.recall();
            assert!(did.copies > 1000 && did.completed == did.copies, "{did:?}");
            assert!((did.errors, did.redone) == (0, 0), "{did:?}");
            assert_eq!(did.cpu_bytes > 0 || did.full > 0, threshold > 0 || did.full > 0);
            // By the CPU from here on.
            world.goes_on(&mut guest, 500);
            assert_eq!(world.seat.tally.read().copies, did.copies);
            drop(guest);
            world.end();
        }
    }
}

/// No threshold is set: costs are measured while copies are made, by the CPU and by the engine.
#[test]
fn copies_at_measured_costs() {
    let _alone = alone();
    vhost_user::set_threshold(None);
    for packed in [false, true] {
        let world = World::new(&format!("costs{packed}"));
        world.give(7, GOOD);
        let mut guest = world.guest(packed);
        for i in 0..40 {
            world.goes_on(&mut guest, 200);
            message(&mut guest, i % 4);
        }
        let did = world.recall();
        assert!(did.cpu_bytes > 0 && did.completed == did.copies, "{did:?}");
        assert_eq!((did.errors, did.redone), (0, 0), "{did:?}");
        drop(guest);
        world.end();
    }
}

/// Guests go without a word at any moment; their memory is unmapped when nothing is in flight.
#[test]
fn guests_that_die() {
    let _alone = alone();
    vhost_user::set_threshold(Some(100));
    let world = World::new("die");
    let mut noise = Noise(9);
    for life in 0..80 {
        if life % 20 == 0 {
            world.give(life, Faults { delay_us: 50 << (life / 20 * 2), ..GOOD });
        }
        let mut guest = world.guest(life % 2 == 1);
        world.goes_on(&mut guest, 1 + noise.below(60) as u64);
        drop(guest);
        wait("it is gone", || !world.port.as_ref().unwrap().connected());
        if life % 20 == 19 {
            assert!(world.recall().copies > 100);
        }
    }
    world.end();
}

/// Keeps an account of what is mapped for engines.
struct Account;

impl DmaMapper for Account {
    fn map(&self, at: usize, bytes: usize) -> io::Result<()> {
        std::thread::sleep(Duration::from_millis(2));
        MAPPED.lock().unwrap().push(at..at + bytes);
        Ok(())
    }

    fn unmap(&self, at: usize, bytes: usize) -> io::Result<()> {
        // SAFETY: it is still memory of ours.
        unsafe { std::ptr::with_exposed_provenance::<u8>(at).read_volatile() };
        let mut mapped = MAPPED.lock().unwrap();
        let i = mapped.iter().position(|m| *m == (at..at + bytes)).expect("it is mapped");
        mapped.remove(i);
        Ok(())
    }
}

/// An engine on vfio-pci gets copies of memory that is mapped for it, and no others, whatever the
/// front-end does; the CPU makes the others.
#[test]
fn memory_is_mapped_for_engines_before_they_use_it() {
    let _alone = alone();
    vhost_user::set_threshold(Some(0));
    for packed in [false, true] {
        let world = World::new(&format!("maps{packed}"));
        vhost_user::map_memory(Arc::new(Account));
        world.give(3, Faults { needs_maps: true, ..GOOD });
        let mut guest = world.guest(packed);
        world.goes_on(&mut guest, 100);
        assert_eq!(world.seat.tally.read().copies, 0, "its file has no pages yet");
        guest.allocate();
        for i in 0..40 {
            message(&mut guest, i % 4);
            if i % 4 == 1 {
                let before = world.seat.tally.read().copies;
                wait("the new memory is mapped", || {
                    world.goes_on(&mut guest, 20);
                    world.seat.tally.read().copies > before
                });
            }
            world.goes_on(&mut guest, 20);
        }
        let did = world.recall();
        assert!(did.copies > 200 && did.unmapped > 0, "{did:?}");
        assert_eq!((did.errors, did.redone), (0, 0), "{did:?}");
        vhost_user::unmap_memory();
        wait("it is unmapped", || MAPPED.lock().unwrap().is_empty());
        drop(guest);
        world.end();
    }
}

/// Each copy of ten fails: the CPU makes it, and soon all copies of the port, with nothing lost.
#[test]
fn engines_that_fail() {
    let _alone = alone();
    vhost_user::set_threshold(Some(0));
    for packed in [false, true] {
        let world = World::new(&format!("fail{packed}"));
        world.give(21, Faults { error_one_of: 10, ..GOOD });
        let mut guest = world.guest(packed);
        world.goes_on(&mut guest, 1500);
        wait("no more copies are given to it", || {
            guest.step();
            let did = world.seat.tally.read();
            did.barred > 1000 && did.completed == did.copies
        });
        let did = world.seat.tally.read();
        assert!(did.errors >= 100, "{did:?}");
        world.goes_on(&mut guest, 300);
        let later = world.seat.tally.read();
        assert!(later.copies - did.copies <= GOOD.room as u64, "{later:?}");
        assert_eq!(world.seat.state(), SeatState::Working);
        world.end();
    }
}

/// A port, and what a thread needs of it.
struct Served {
    port: Socket<HeapPool>,
    ends: (vhost_user::Rx<HeapPool>, vhost_user::Tx<HeapPool>),
    guest: Guest,
    next: u64,
}

impl Served {
    fn new(name: &str, pool: &Arc<HeapPool>) -> Served {
        let (path, port) = open(name, pool);
        let ends = (port.rx(0).unwrap(), port.tx(0).unwrap());
        let mut guest = Guest::new(UnixStream::connect(path).unwrap(), false);
        guest.connect().unwrap();
        Served { port, ends, guest, next: 1 }
    }

    /// Some frames there and back.
    fn turn(&mut self, pool: &HeapPool) {
        let mut back = Vec::with_capacity(64);
        let (rx, tx) = &mut self.ends;
        rx.burst(&mut back, 64);
        pool.free(&back);
        let frames = self.next..self.next + 8;
        let burst: Vec<Packet> = frames.map(|n| pool.packet(&bytes(n)).unwrap()).collect();
        let taken = tx.burst(&burst);
        self.next += taken as u64;
        pool.free(&burst[taken..]);
        self.guest.step();
    }
}

/// A guest gives the pages of its buffers back all the time, and an engine fails where there is no
/// page: that guest's copies are made by the CPU from then on, and the others keep the engine.
#[test]
fn a_guest_whose_pages_go_loses_the_engine_alone() {
    let _alone = alone();
    vhost_user::set_threshold(Some(0));
    vhost_user::use_engines();
    vhost_user::take_seat(78);
    let seat = vhost_user::seats().into_iter().find(|s| s.core == 78 && !s.is_gone()).unwrap();
    let faults = Faults { needs_pages: true, delay_us: 20, ..GOOD };
    seat.give(Box::new(SlowEngine::new(5, faults)));
    let pool = Arc::new(HeapPool::new());
    let [mut hostile, mut other] = ["pages", "other"].map(|name| Served::new(name, &pool));
    let mut turns = |attacks: bool| {
        for _ in 0..3000 {
            vhost_user::begin_iteration();
            other.turn(&pool);
            if attacks {
                hostile.turn(&pool);
                hostile.guest.give_pages_back();
            }
            vhost_user::end_iteration();
            // The engine has its turn, too.
            std::thread::sleep(Duration::from_micros(20));
        }
        seat.tally.read()
    };
    let first = turns(true);
    println!("{first:?}");
    assert_eq!(seat.state(), SeatState::Working);
    // What the guest had under way when it was noticed.
    assert!((100..100 + 2 * GOOD.room as u64).contains(&first.errors), "{first:?}");
    assert!(first.barred > 1000, "{first:?}");
    let second = turns(true).since(&first);
    assert!(second.errors == 0 && second.copies > 1000, "{second:?}");
    vhost_user::leave_seat();
    drop(seat.take_back());
    vhost_user::forget_seat(&seat);
    drop([hostile.port, other.port]);
}

/// It hangs with copies in flight, again and again: what it had is made by the CPU once it is
/// stopped, not before.
#[test]
fn engines_that_hang() {
    let _alone = alone();
    vhost_user::set_threshold(Some(0));
    let world = World::new("hang");
    for round in 0..6 {
        let mut guest = world.guest(round % 2 == 1);
        world.give(round, Faults { hang_after: 100 + 37 * round as usize, ..GOOD });
        wait("it is noticed", || {
            guest.step();
            world.seat.state() == SeatState::Stuck
        });
        // The front-end wants something meanwhile; its rings stay until copies have ended.
        guest.frontend.send(SET_VRING_ENABLE, &pair(0, 0), &[]).unwrap();
        guest.frontend.send(SET_VRING_ENABLE, &pair(0, 1), &[]).unwrap();
        let mut engine = world.seat.take_back().unwrap();
        vhost::Engine::stop(&mut *engine);
        world.seat.stopped();
        guest.frontend.settle().unwrap();
        world.goes_on(&mut guest, 200);
        assert!(world.seat.tally.read().redone > 0);
    }
    world.end();
}

/// The thread ends with copies in flight, of an engine that works and of one that hangs.
#[test]
fn threads_that_end() {
    let _alone = alone();
    vhost_user::set_threshold(Some(0));
    for hang_after in [0, 150] {
        let world = World::new(&format!("end{hang_after}"));
        let mut guest = world.guest(false);
        world.give(3, Faults { hang_after, ..GOOD });
        wait("copies are in flight", || {
            guest.step();
            world.seat.tally.read().copies > 140
        });
        world.end();
    }
}

/// A guest is migrated: from the message on that says so the CPU copies, as an engine marks no
/// pages; then by the engine again.
#[test]
fn guests_that_are_migrated() {
    let _alone = alone();
    vhost_user::set_threshold(Some(0));
    for packed in [false, true] {
        let world = World::new(&format!("migrate{packed}"));
        world.give(13, GOOD);
        let mut guest = world.guest(packed);
        world.goes_on(&mut guest, 300);
        let log = memfd(4096);
        guest.frontend.send(SET_LOG_BASE, &words(&[4096, 0]), &[log.as_raw_fd()]).unwrap();
        assert_eq!(guest.frontend.reply().unwrap(), [0; 8]);
        for logs in [true, false] {
            let features = guest.features() | if logs { LOG_ALL } else { 0 };
            guest.frontend.send(SET_FEATURES, &words(&[features]), &[]).unwrap();
            guest.frontend.settle().unwrap();
            let before = world.seat.tally.read();
            world.goes_on(&mut guest, 300);
            let did = world.seat.tally.read().since(&before);
            assert_eq!((did.copies == 0, did.logged > 0), (logs, logs), "{did:?}");
        }
        world.end();
    }
}

/// Engines are given and taken away all the time, some of which hang meanwhile.
#[test]
fn engines_that_come_and_go() {
    let _alone = alone();
    vhost_user::set_threshold(Some(0));
    let world = World::new("come");
    let mut guest = world.guest(false);
    let mut noise = Noise(17);
    for round in 0..60 {
        let hang_after = if round % 10 == 9 { 1 + noise.below(200) } else { 0 };
        world.give(round, Faults { hang_after, ..GOOD });
        world.goes_on(&mut guest, noise.below(40) as u64);
        world.seat.recall();
        wait("it comes back", || {
            guest.step();
            world.tend();
            world.seat.state() == SeatState::Empty && world.seat.is_settled()
        });
    }
    world.goes_on(&mut guest, 100);
    world.end();
}
