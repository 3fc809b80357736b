//! Single things that a front-end does, and what becomes of them.

use super::world::*;
use super::*;

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

/// Checksums and segments may be left to the switch where it offers that, and nowhere else.
#[test]
fn offloads_are_taken_where_they_are_offered() {
    let _alone = alone();
    for offloads in [false, true] {
        let _port = open_with("offloads", Mode::Server, offloads);
        let mut frontend = Frontend(UnixStream::connect(path("offloads")).unwrap());
        frontend.send(GET_FEATURES, &[], &[]).unwrap();
        let offered = u64::from_le_bytes(frontend.reply().unwrap().try_into().unwrap());
        assert_eq!(offered & OFFLOADS, if offloads { OFFLOADS } else { 0 });
        frontend.send(SET_FEATURES, &words(&[VERSION_1 | OFFLOADS]), &[]).unwrap();
        assert_eq!(frontend.settle().is_ok(), offloads);
    }
}

/// A connection that sends half a message, or none, keeps no place of a server's socket: when all
/// places are taken, the oldest connection that is not served ends.
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
