//! Guests beside each other: 32 at once, queues that move between threads under traffic, and one
//! that comes and goes while others work.

mod lab;

use lab::*;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use testkit::{Frame, Net, Netns, Raw, Switch, privileged, veth};

const FAR: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// Frames under way at once.
const WINDOW: usize = 64;
/// Longest wait for frames that are under way.
const SOON: Duration = Duration::from_secs(5);

/// A cable of the switch's: device `name` is port `number`, this is its other end.
fn cable(sw: &Switch, ns: &Netns, host: &Netns, name: &str, number: u16) -> Raw {
    let far = format!("far-{name}");
    veth((ns, name), (host, &far)).unwrap();
    ns.ipv6_off(name).unwrap();
    host.ipv6_off(&far).unwrap();
    vsctl(sw, &format!("add-port br0 {name} -- set interface {name} ofport_request={number}"));
    Raw::open(host, &far).unwrap()
}

/// Ports `vhu0`... from number 100 on; their sockets.
fn guest_ports(sw: &Switch, n: usize, library: bool) -> Vec<PathBuf> {
    let rings = if library { "library" } else { "own" };
    let (mut sockets, mut args) = (Vec::new(), Vec::new());
    for i in 0..n {
        let socket = sw.dir().join(format!("vhu{i}"));
        args.push(format!(
            "add-port br0 vhu{i} -- set interface vhu{i} type=dpdkvhostuserclient ofport_request={} \
             options:vhost-rings={rings} options:vhost-server-path={}",
            100 + i,
            socket.display()
        ));
        sockets.push(socket);
    }
    vsctl(sw, &args.join(" -- "));
    sockets
}

fn wait_for_guests(sw: &Switch, n: usize) {
    for i in 0..n {
        wait_for("the guests", || iface(sw, &format!("vhu{i}"), "link_state") == "up");
    }
}

fn mac(guest: usize) -> [u8; 6] {
    [2, 0, 0, 0, 1, guest as u8]
}

fn frame(to: [u8; 6], number: u32) -> Vec<u8> {
    let mut body = number.to_be_bytes().to_vec();
    body.resize(100, 0x55);
    Frame::new(FAR, to, Net::Raw(0x88b5, body)).bytes()
}

fn number(f: &[u8]) -> u32 {
    u32::from_be_bytes(f[14..18].try_into().unwrap())
}

fn ours(f: &[u8]) -> bool {
    f.len() > 18 && f[12..14] == [0x88, 0xb5]
}

/// Sends frames `first..first + n`, each to the guest that `to` names, with `WINDOW` under way at
/// most; what came back, as it came. Nothing may be lost.
fn exchange(far: &Raw, first: u32, n: u32, to: impl Fn(u32) -> [u8; 6]) -> Vec<Vec<u8>> {
    let mut back: Vec<Vec<u8>> = Vec::new();
    let receive = |back: &mut Vec<Vec<u8>>, sent: u32, under_way: usize| {
        let wanted = (sent as usize - back.len()).saturating_sub(under_way);
        let more = far.collect(wanted, Instant::now() + SOON, |f| ours(f) && number(f) >= first);
        assert!(more.len() >= wanted, "lost: {} of {wanted} came", more.len());
        back.extend(more);
    };
    for i in 0..n {
        far.send(&frame(to(first + i), first + i)).unwrap();
        if (i + 1) as usize - back.len() >= WINDOW {
            receive(&mut back, i + 1, WINDOW / 2);
        }
    }
    receive(&mut back, n, 0);
    back
}

fn all_at_once(packed: bool, library: bool) {
    if !privileged() {
        return;
    }
    const GUESTS: usize = 32;
    let (_turn, ns, host) = (turn(), Netns::new().unwrap(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    let far = cable(&sw, &ns, &host, "v1", 1);
    let sockets = guest_ports(&sw, GUESTS, library);
    let mut flows = String::new();
    for i in 0..GUESTS {
        let port = 100 + i;
        flows += &format!("in_port=1,dl_dst=02:00:00:00:01:{i:02x},actions={port}\n");
        flows += &format!("in_port={port},actions=mod_dl_src:02:00:00:00:02:{i:02x},1\n");
    }
    ofctl(&sw, "del-flows br0");
    sw.ofctl_stdin(&["add-flows", "br0", "-"], &flows).unwrap();
    let _guests = BareGuests::start(&sockets, packed);
    wait_for_guests(&sw, GUESTS);
    let n = 100 * GUESTS as u32;
    let back = exchange(&far, 0, n, |number| mac(number as usize % GUESTS));
    for i in 0..GUESTS as u32 {
        // Each came through its own guest, in order.
        let mine = back.iter().filter(|f| f[6..12] == [2, 0, 0, 0, 2, i as u8]);
        let numbers: Vec<u32> = mine.map(|f| number(f)).collect();
        let expected: Vec<u32> = (0..n).filter(|k| k % GUESTS as u32 == i).collect();
        assert_eq!(numbers, expected, "guest {i}");
    }
}

#[test]
fn thirty_two_split() {
    all_at_once(false, false);
}

#[test]
fn thirty_two_packed() {
    all_at_once(true, false);
}

#[test]
fn thirty_two_by_the_library() {
    all_at_once(false, true);
}

/// There through one guest and back through another, while the queues of both go from one thread to
/// the other and back.
fn moves(packed: bool, library: bool) {
    if !privileged() || std::thread::available_parallelism().map_or(1, Into::into) < 2 {
        return;
    }
    let (_turn, ns, host) = (turn(), Netns::new().unwrap(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    vsctl(&sw, "set Open_vSwitch . other_config:pmd-cpu-mask=0x3");
    let far = cable(&sw, &ns, &host, "v1", 1);
    let sockets = guest_ports(&sw, 2, library);
    ofctl(&sw, "del-flows br0");
    for flow in ["in_port=1,actions=100", "in_port=100,actions=101", "in_port=101,actions=1"] {
        ofctl(&sw, &format!("add-flow br0 {flow}"));
    }
    let _guests = BareGuests::start(&sockets, packed);
    wait_for_guests(&sw, 2);
    let end = AtomicBool::new(false);
    let on = |port: &str, core: usize| {
        let text = appctl(&sw, &format!("dpif-netdev/pmd-rxq-show -pmd {core}"));
        text.contains(&format!("port: {port} "))
    };
    std::thread::scope(|s| {
        let mover = s.spawn(|| {
            let _end = Ends(&end);
            for i in 0..12 {
                let (port, core) = (["vhu0", "vhu1"][i % 2], i / 2 % 2);
                let affinity = format!("other_config:pmd-rxq-affinity=\"0:{core}\"");
                sw.vsctl(&["set", "interface", port, &affinity]).unwrap();
                wait_for("the queue's move", || on(port, core));
            }
        });
        let mut next = 0;
        while !end.load(Ordering::Relaxed) {
            let back = exchange(&far, next, 500, |_| mac(0));
            let numbers: Vec<u32> = back.iter().map(|f| number(f)).collect();
            assert_eq!(numbers, (next..next + 500).collect::<Vec<_>>(), "lost, or out of order");
            next += 500;
        }
        mover.join().unwrap();
        eprintln!("guests: {next} frames around 12 moves");
        assert!(next > 0);
    });
}

#[test]
fn queues_move_without_loss_or_reordering() {
    moves(false, false);
}

#[test]
fn packed_queues_move_without_loss_or_reordering() {
    moves(true, false);
}

#[test]
fn the_librarys_queues_move_without_loss_or_reordering() {
    moves(false, true);
}

/// Tells others that something is over, also when it panics.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One is killed and comes again, with frames for it all the time; the other notices nothing.
#[test]
fn a_guest_that_dies_harms_no_other() {
    if !privileged() {
        return;
    }
    let (_turn, ns, host) = (turn(), Netns::new().unwrap(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    let (far, flood) = (cable(&sw, &ns, &host, "v1", 1), cable(&sw, &ns, &host, "v2", 2));
    let sockets = guest_ports(&sw, 2, false);
    ofctl(&sw, "del-flows br0");
    for flow in ["1,actions=100", "100,actions=1", "2,actions=101", "101,actions=2"] {
        ofctl(&sw, &format!("add-flow br0 in_port={flow}"));
    }
    let _steady = BareGuests::start(&sockets[..1], false);
    wait_for_guests(&sw, 1);
    let idle = buffers(&sw);
    let end = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            while !end.load(Ordering::Relaxed) {
                for n in 0..32 {
                    flood.send(&frame(mac(1), n)).unwrap();
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let _end = Ends(&end);
        let mut next = 0;
        for life in 0..4 {
            let guest = BareGuests::start(&sockets[1..], life % 2 == 1);
            wait_for("answers of the one that comes and goes", || {
                exchange(&far, next, 50, |_| mac(0));
                next += 50;
                flood.collect(1, Instant::now() + QUIET, ours).len() == 1
            });
            drop(guest);
            std::fs::remove_file(&sockets[1]).unwrap();
            flood.collect(usize::MAX, Instant::now() + QUIET, ours);
            let back = exchange(&far, next, 500, |_| mac(0));
            assert!(back.iter().map(|f| number(f)).eq(next..next + 500), "life {life}");
            next += 500;
        }
    });
    wait_for("no buffer is kept", || buffers(&sw) <= idle);
    wait_for("drops on its own port", || statistic(&sw, "vhu1", "tx_dropped") > Some(0));
    assert_eq!(statistic(&sw, "vhu0", "tx_dropped"), Some(0));
}
