//! A front-end that lies, hangs or leaves in the middle: the switch goes on, the neighbour and the
//! other guests too.

use crate::lab::*;
use crate::measure::*;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use testkit::front_end::{FREE, FrontEnd, PACKED, RING_SIZE, eventfd, request};
use testkit::{Netns, Noise, Switch, privileged};

/// What a front-end does to the switch behind a port's socket.
type Deed = fn(&Switch<'_>, FrontEnd) -> Vec<FrontEnd>;

/// After the deed the process is the same, another guest can connect, the port can be deleted soon,
/// and the victim has noticed nothing.
fn attacked(what: &str, deed: Deed) {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    vsctl(&sw, "add-port br0 vhu -- set interface vhu type=dpdkvhostuser");
    vsctl(&sw, "add-port br0 vhu2 -- set interface vhu2 type=dpdkvhostuser");
    let victim = Victim::new(&ns, &sw);
    let pid = sw.daemon_pid();
    let pinger = Pinger::start(&victim.a, addr(2));
    let held = deed(&sw, FrontEnd::connect(&sw.dir().join("vhu")).unwrap());
    answers(what, pinger);
    // It has its own questions: beside a transfer that is faster than the machine, pings are lost.
    let figures = victim.measure();
    println!("{what}: {figures:?}");
    let pinger = Pinger::start(&victim.a, addr(2));
    assert_eq!(sw.daemon_pid(), pid, "{what}: the same process");
    let mut other = FrontEnd::connect(&sw.dir().join("vhu2")).unwrap();
    other.negotiate(4 << 20).unwrap();
    other.start(None).unwrap();
    wait_for("another guest", || iface(&sw, "vhu2", "link_state") == "up");
    let start = Instant::now();
    vsctl(&sw, "del-port vhu");
    assert!(start.elapsed() < Duration::from_secs(5), "{what}: del-port {:?}", start.elapsed());
    drop(held);
    answers(what, pinger);
    assert!(figures.lost * 50 <= figures.sent, "{what}: loss");
    assert_eq!(sw.daemon_pid(), pid, "{what}: the same process");
}

/// Hardly any ping was not answered.
fn answers(what: &str, pinger: Pinger) {
    let (sent, answered) = pinger.stop();
    assert!(sent >= 10 && answered + 2 + sent / 50 >= sent, "{what}: {answered} of {sent}");
}

/// The file that is the memory is shorter than the front-end says (D7).
#[test]
fn memory_that_is_not_there() {
    attacked("short memory", |_, mut guest| {
        _ = guest.negotiate(64 << 20);
        _ = guest.start(None);
        std::thread::sleep(Duration::from_millis(300));
        vec![guest]
    });
}

/// The file is cut while rings are in it (D7).
#[test]
fn memory_that_goes_away() {
    attacked("truncated memory", |sw, mut guest| {
        guest.negotiate(4 << 20).unwrap();
        guest.start(None).unwrap();
        wait_for("the guest", || iface(sw, "vhu", "link_state") == "up");
        guest.memory().set_len(0).unwrap();
        std::thread::sleep(Duration::from_millis(500));
        vec![guest]
    });
}

/// An eventfd that blocks, and is full (D8).
#[test]
fn a_call_that_blocks() {
    attacked("full eventfd", |sw, mut guest| {
        guest.negotiate(4 << 20).unwrap();
        let calls = [(); 2].map(|()| eventfd(u64::MAX - 1).unwrap());
        let raw = calls.each_ref().map(|c| c.as_raw_fd());
        guest.start(Some(calls)).unwrap();
        wait_for("the guest", || iface(sw, "vhu", "link_state") == "up");
        for fd in raw {
            // SAFETY: clears the flag that the switch set on the open file.
            unsafe { libc::fcntl(fd, libc::F_SETFL, 0) };
        }
        (0..RING_SIZE).for_each(|i| guest.put_desc(guest.desc(1, i), FREE, 76, 0, 0));
        guest.offer(1, RING_SIZE / 2);
        std::thread::sleep(Duration::from_millis(500));
        vec![guest]
    });
}

/// Many questions, and no answer is ever read (D9).
#[test]
fn answers_that_are_not_read() {
    attacked("unread answers", |_, mut guest| {
        let socket = guest.socket();
        socket.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
        let question = [request::GET_FEATURES, 1, 0].map(u32::to_le_bytes).concat();
        for _ in 0..20_000 {
            if socket.write_all(&question).is_err() {
                break;
            }
        }
        vec![guest]
    });
}

/// A region for packets in flight of very many bytes (D6).
#[test]
fn a_huge_region_is_asked_for() {
    attacked("huge region", |sw, mut guest| {
        _ = guest.negotiate(4 << 20);
        let before = resident(sw);
        let mut payload = [1u64 << 40, 0].map(u64::to_le_bytes).concat();
        payload.extend([0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
        _ = guest.say(request::GET_INFLIGHT_FD, &payload, &[]);
        std::thread::sleep(Duration::from_millis(500));
        let grown = resident(sw).saturating_sub(before);
        assert!(grown < 100 << 10, "{grown} kB for one request");
        vec![guest]
    });
}

/// Resident kilobytes of the daemon.
pub fn resident(sw: &Switch<'_>) -> u64 {
    let pid = sw.daemon_pid().expect("it runs");
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find(|l| l.starts_with("VmRSS"));
    line.and_then(|l| l.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
}

/// Open descriptors of the daemon.
pub fn descriptors(sw: &Switch<'_>) -> usize {
    let pid = sw.daemon_pid().expect("it runs");
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// Says random things in any order, and leaves.
pub fn say_noise(guest: &mut FrontEnd, noise: &mut Noise) {
    if noise.below(4) > 0 {
        let features = if noise.below(2) > 0 { PACKED } else { 0 };
        _ = guest.negotiate_with(4 << 20, features);
        _ = guest.start(None);
    }
    for _ in 0..noise.below(12) {
        let len = [0, 4, 8, 16, 40, 200][noise.below(6)];
        let mut payload = noise.bytes(len);
        // Often a ring that there is, with small numbers.
        payload.iter_mut().for_each(|b| *b &= if len < 20 { 1 } else { 0xff });
        let kind = 1 + noise.below(42) as u32;
        let fd = guest.memory().as_raw_fd();
        let fds = if noise.below(3) == 0 { &[fd][..] } else { &[] };
        if guest.say(kind, &payload, fds).is_err() {
            break;
        }
    }
}

/// Front-ends that connect, say random things in any order and leave (D1, D5, D10, D11).
#[test]
fn noise_in_messages() {
    attacked("noise", |sw, first| {
        drop(first);
        let (mut noise, before) = (Noise(0x5eed), descriptors(sw));
        let end = Instant::now() + Duration::from_secs(4);
        let mut connections = 0;
        while Instant::now() < end {
            let Ok(mut guest) = FrontEnd::connect(&sw.dir().join("vhu")) else { continue };
            connections += 1;
            say_noise(&mut guest, &mut noise);
        }
        println!("noise: {connections} connections, {before} descriptors before");
        wait_for("descriptors are closed", || descriptors(sw) <= before + 12);
        vec![]
    });
}
