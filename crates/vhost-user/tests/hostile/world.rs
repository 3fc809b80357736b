//! The thread that polls ports, and what it polls beside the hostile ones.

use super::*;

/// The thread that polls ports, as a PMD thread does, and a guest that sends back what it gets.
pub(super) struct World {
    end: Arc<AtomicBool>,
    echoed: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

pub(super) fn frame(pool: &HeapPool, number: u64) -> Packet {
    let mut bytes = [0u8; 60];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    pool.packet(&bytes).unwrap()
}

/// Sends some frames and takes what is there; returns how many came.
pub(super) fn poll(rx: &mut Rx<HeapPool>, tx: &mut Tx<HeapPool>, n: u64) -> u64 {
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
pub(super) fn keep_engines(
    seat: Arc<Seat>,
    faults: Faults,
    end: Arc<AtomicBool>,
) -> JoinHandle<()> {
    std::thread::spawn(move || {
        while !end.load(Ordering::Relaxed) || seat.state() == SeatState::Stuck {
            match seat.state() {
                SeatState::Stuck => {
                    drop(seat.take_back());
                    seat.stopped();
                }
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
    pub(super) fn start(neighbour: &Port, guest: Guest, attacked: &[Port]) -> World {
        World::start_with(neighbour, guest, attacked, None)
    }

    /// The same, with an engine that copies to and from both guests.
    pub(super) fn start_with(
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
                vhost_user::begin_iteration();
                count.fetch_add(poll(&mut rx, &mut tx, 32), Ordering::Relaxed);
                bad.iter_mut().for_each(|(rx, tx)| _ = poll(rx, tx, 4));
                vhost_user::end_iteration();
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

    pub(super) fn echoed(&self) -> u64 {
        self.echoed.load(Ordering::Relaxed)
    }

    /// The neighbour's guest goes on: so many frames come back from now on.
    pub(super) fn goes_on(&self, n: u64) {
        let from = self.echoed();
        wait("the neighbour's frames come back", || self.echoed() >= from + n);
    }

    /// Frames per second.
    pub(super) fn rate(&self, time: Duration) -> u64 {
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

pub(super) fn neighbour(name: &str, packed: bool) -> (Port, Guest) {
    let port = open(name, Mode::Server);
    let mut guest = Guest::new(UnixStream::connect(path(name)).unwrap(), packed);
    guest.connect().unwrap();
    wait("the neighbour's guest is served", || port.connected());
    (port, guest)
}
