//! Attacks over and over beside a port that carries traffic.

use super::attacks::*;
use super::world::*;
use super::*;

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
        let faults = Faults {
            error_one_of: 500,
            hang_after: 0,
            room: 256,
            delay_us: 200,
            needs_maps: false,
            needs_pages: false,
        };
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

/// Hostile front-ends that our ports connect to, beside a guest that carries traffic.
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

/// True if there is a connection to accept.
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
