//! Kernel ports against the real kernel, each test in a network namespace of its own.
//! They need root.

mod common;

use common::*;
use packet::{HeapPool, Packet, Pool};
use port::{
    Abilities, Link, LinkEvent, LinkMonitor, Medium, Port, PortConfig, Snapshot, UnderlayMonitor,
};
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::checksum::{pseudo_v4, pseudo_v6};
use wire::{Ethernet, Ipv4, Ipv6, Tcp, Udp};

#[test]
fn absent_device_and_bad_names() {
    if !namespace() {
        return;
    }
    let pool: Arc<dyn Pool> = Arc::new(HeapPool::new());
    let error = |name: &str, kind: &str| {
        port::open(&config(name, kind), pool.clone()).err().expect("an error").to_string()
    };
    assert_eq!(error("nope", "system"), "could not open network device nope (No such device)");
    assert_eq!(error("nope", ""), "could not open network device nope (No such device)");
    assert_eq!(error("lo", "internal"), "could not open network device lo (Invalid argument)");
    let refused = "could not add network device lo to ofproto (Invalid argument)";
    assert_eq!(error("lo", "system"), refused);
    assert!(error("x", "gre").contains("unknown type gre"));
}

/// A device has the first letters of a longer name.
#[test]
fn long_names_of_the_switchs_own_devices() {
    if !namespace() {
        return;
    }
    let pool: Arc<dyn Pool> = Arc::new(HeapPool::new());
    let (first, second) = ("a-name-that-is-too-long", "a-name-that-is-longer");
    let mut port = port::open(&config(first, "internal"), pool.clone()).unwrap();
    assert_eq!(port.name(), first);
    ip("link set a-name-that-is- up");
    assert!(port.link().up);
    assert!(port.reconfigure(&config(first, "internal")).unwrap());
    let error = port::open(&config(second, "tap"), pool).err().expect("an error").to_string();
    assert_eq!(error, format!("could not open network device {second} (Device or resource busy)"));
}

#[test]
fn veth_thousand_frames_each_way() {
    if !namespace() {
        return;
    }
    veth();
    let (mut a, mut b) = (open("v0", "system"), open("v1", ""));
    thousand(&mut a, &mut b);
    thousand(&mut b, &mut a);
    let (ca, cb) = (a.port.counters(), b.port.counters());
    assert_eq!((ca["tx_packets"], ca["tx_dropped"]), (1000, 0));
    assert_eq!(cb["rx_dropped"], 0);
    assert!(cb["rx_packets"] >= 1000 && cb["rx_bytes"] >= ca["tx_bytes"]);
    a.close();
    b.close();
}

/// Sends 1,000 frames of all lengths at a low rate and expects exactly these.
fn thousand(from: &mut Open, to: &mut Open) {
    let sent: Vec<_> = (0..1000).map(|n| numbered(n, 60 + n as usize % 1440)).collect();
    let mut got = Vec::new();
    for frames in sent.chunks(25) {
        from.send(frames);
        got.extend(to.receive(25, is_numbered));
    }
    assert_eq!(got.len(), 1000);
    assert!(got == sent, "frames changed or out of order");
}

#[test]
fn own_frames_do_not_come_back() {
    if !namespace() {
        return;
    }
    veth();
    let mut a = open("v0", "system");
    a.send(&[numbered(1, 60)]);
    assert_eq!(a.receive(1, is_numbered), Vec::<Vec<u8>>::new());
    a.close();
}

#[test]
fn vlan_tags_survive_both_ways() {
    if !namespace() {
        return;
    }
    veth();
    let (mut a, mut b) = (open("v0", "system"), open("v1", "system"));
    let tagged = |tags: &[[u8; 4]]| {
        let mut f = numbered(7, 100);
        let rest = f.split_off(12);
        tags.iter().for_each(|t| f.extend(t));
        f.extend(rest);
        f
    };
    let frames = vec![
        tagged(&[[0x81, 0, 0xe0, 10]]),
        tagged(&[[0x81, 0, 0, 0]]),
        tagged(&[[0x88, 0xa8, 0, 5], [0x81, 0, 0, 6]]),
        tagged(&[[0x81, 0, 0, 5], [0x81, 0, 0, 6]]),
    ];
    a.send(&frames);
    assert_eq!(b.receive(4, |f| wire::l3(f).is_some_and(|l| l.ethertype == 0x88b5)), frames);
    b.send(&frames);
    assert_eq!(a.receive(4, |f| wire::l3(f).is_some_and(|l| l.ethertype == 0x88b5)), frames);
    a.close();
    b.close();
}

/// True if the transport checksum of this IP packet is right.
fn l4_ok(f: &[u8]) -> bool {
    let l3 = wire::l3(f).unwrap();
    match l3.ethertype {
        wire::ETH_IPV4 => {
            let ip = Ipv4::new(&f[l3.at..]).unwrap();
            let sum = pseudo_v4(ip.src(), ip.dst(), ip.proto(), ip.payload().len());
            ip.checksum_ok() && sum.bytes(ip.payload()).finish() == 0
        }
        _ => {
            let ip = Ipv6::new(&f[l3.at..]).unwrap();
            let sum = pseudo_v6(&ip.src(), &ip.dst(), ip.next(), ip.payload().len());
            sum.bytes(ip.payload()).finish() == 0
        }
    }
}

fn is_proto(f: &[u8], proto: u8) -> bool {
    wire::l3(f).is_some_and(|l| match l.ethertype {
        wire::ETH_IPV4 => Ipv4::new(&f[l.at..]).is_some_and(|ip| ip.proto() == proto),
        wire::ETH_IPV6 => Ipv6::new(&f[l.at..]).is_some_and(|ip| ip.next() == proto),
        _ => false,
    })
}

#[test]
fn partial_checksums_are_completed() {
    if !namespace() {
        return;
    }
    veth();
    ip("addr add 10.9.0.1/24 dev v1");
    ip("neigh add 10.9.0.2 lladdr 02:00:00:00:00:09 dev v1");
    ip("addr add fd09::1/64 dev v1 nodad");
    ip("neigh add fd09::2 lladdr 02:00:00:00:00:09 dev v1");
    let mut a = open("v0", "system");
    for (from, to) in [("10.9.0.1:0", "10.9.0.2:99"), ("[fd09::1]:0", "[fd09::2]:99")] {
        let s = UdpSocket::bind(from).unwrap();
        for n in [1usize, 2, 999, 1400] {
            s.send_to(&vec![0xab; n], to).unwrap();
        }
        let got = a.receive(4, |f| is_proto(f, wire::IP_UDP));
        assert_eq!(got.len(), 4, "from {from}");
        for f in &got {
            assert!(l4_ok(f), "wrong checksum from {from}");
            let l3 = wire::l3(f).unwrap();
            let at = l3.at + if l3.ethertype == wire::ETH_IPV6 { 40 } else { 20 };
            assert_ne!(Udp::new(&f[at..]).unwrap().checksum(), 0);
        }
    }
    a.close();
}

/// A sender that leaves the checksum of a tagged frame to the adapter: the kernel takes the tag out
/// on the way to us, which moves all positions.
#[test]
fn partial_checksum_behind_a_tag() {
    if !namespace() {
        return;
    }
    veth();
    let mut a = open("v0", "system");
    let mut f = [&[2; 12][..], &[0x81, 0, 0, 5, 8, 0]].concat();
    f.resize(18 + 20 + 8 + 31, 0x33);
    let mut ip = Ipv4::init(&mut f[18..], 20).unwrap();
    ip.set_total_len(59);
    ip.set_frag(0);
    ip.set_proto(wire::IP_UDP);
    ip.fill_checksum();
    let pseudo = pseudo_v4(ip.src(), ip.dst(), wire::IP_UDP, 39);
    let mut udp = Udp::new(&mut f[38..]).unwrap();
    udp.set_length(39);
    udp.set_checksum(pseudo.fold());
    let raw = RawSender::offloading("v1");
    let mut header = vec![1u8, 0, 0, 0, 0, 0];
    header.extend(38u16.to_ne_bytes());
    header.extend(6u16.to_ne_bytes());
    raw.send(&[&header, &f[..]].concat());
    let got = a.receive(1, |f| is_proto(f, wire::IP_UDP)).pop().expect("the frame");
    assert_eq!(wire::vlan_at(&got, 12).map(|t| t.vid()), Some(5));
    assert!(l4_ok(&got));
    a.close();
}

/// A TCP connection whose other end is made of raw frames: SYN, SYN+ACK with a large window, then
/// the kernel sends a burst, which it leaves to the adapter to segment.
#[test]
fn large_segments_are_cut() {
    if !namespace() {
        return;
    }
    veth();
    ip("addr add 10.9.0.1/24 dev v1");
    ip("neigh add 10.9.0.2 lladdr 02:00:00:00:00:09 dev v1");
    let mut a = open("v0", "system");
    let (done, sender) = connect_and_send(60_000);
    let syn = a.receive(1, |f| is_proto(f, wire::IP_TCP)).pop().expect("a SYN");
    assert!(l4_ok(&syn));
    a.send(&[syn_ack(&syn)]);
    let mut payload = 0;
    let mut got = 0;
    while payload < 14_000 {
        let frames = a.receive(1, |f| is_proto(f, wire::IP_TCP));
        assert!(!frames.is_empty(), "only {payload} bytes came");
        for f in &frames {
            assert!(f.len() <= 1514, "a frame of {} bytes", f.len());
            assert!(l4_ok(f));
            let ip = Ipv4::new(&f[14..]).unwrap();
            payload += ip.payload().len() - Tcp::new(ip.payload()).unwrap().header_len();
            got += 1;
        }
    }
    assert!(got >= 10);
    let c = a.port.counters();
    assert_eq!(c["rx_dropped"], 0, "{c:?}");
    drop(done);
    sender.join().unwrap();
    a.close();
}

/// In a thread (which shares our namespace): connects to 10.9.0.2:80 and writes.
fn connect_and_send(n: usize) -> (std::sync::mpsc::Sender<()>, std::thread::JoinHandle<()>) {
    use std::io::Write;
    let (tx, rx) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let addr = "10.9.0.2:80".parse().unwrap();
        let mut s = std::net::TcpStream::connect_timeout(&addr, Duration::from_secs(2)).unwrap();
        s.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
        let _ = s.write(&vec![0xcd; n]);
        let _ = rx.recv();
    });
    (tx, thread)
}

fn syn_ack(syn: &[u8]) -> Vec<u8> {
    let e = Ethernet::new(syn).unwrap();
    let ip_in = Ipv4::new(&syn[14..]).unwrap();
    let tcp_in = Tcp::new(ip_in.payload()).unwrap();
    let mut f = [&e.src()[..], &e.dst()[..], &[8, 0]].concat();
    f.resize(14 + 20 + 24, 0);
    let mut ip = Ipv4::init(&mut f[14..], 20).unwrap();
    ip.set_total_len(44);
    ip.set_ttl(64);
    ip.set_proto(wire::IP_TCP);
    ip.set_src(ip_in.dst());
    ip.set_dst(ip_in.src());
    ip.fill_checksum();
    let pseudo = pseudo_v4(ip_in.dst(), ip_in.src(), wire::IP_TCP, 24);
    let l4 = &mut f[34..];
    l4[12] = 0x60;
    l4[20..].copy_from_slice(&[2, 4, 0x05, 0xb4]); // maximum segment size 1460
    let mut tcp = Tcp::new(&mut *l4).unwrap();
    tcp.set_src(tcp_in.dst());
    tcp.set_dst(tcp_in.src());
    tcp.set_ack(tcp_in.seq().wrapping_add(1));
    tcp.set_ctl(0x6012);
    tcp.set_window(65535);
    let sum = pseudo.bytes(tcp.bytes()).finish();
    tcp.set_checksum(sum);
    f
}

/// A pool that has nothing to give.
struct Empty;

impl Pool for Empty {
    fn alloc(&self, _out: &mut Vec<Packet>, _n: usize) -> bool {
        false
    }
    fn free(&self, packets: &[Packet]) {
        assert!(packets.is_empty());
    }
    fn room(&self) -> usize {
        2048
    }
}

#[test]
fn without_buffers_frames_are_dropped_by_name() {
    if !namespace() {
        return;
    }
    veth();
    for (name, kind, far) in [("v0", "system", "v1"), ("tp0", "tap", "tp0")] {
        let mut port = port::open(&config(name, kind), Arc::new(Empty)).unwrap();
        port.set_admin_up(true).unwrap();
        let mut rx = port.take_rx(0).unwrap();
        let raw = RawSender::new(far);
        (0..10).for_each(|n| raw.send(&numbered(n, 60)));
        let end = Instant::now() + Duration::from_secs(2);
        let dropped = |p: &mut dyn Port| p.counters().get("rx_drop_no_buffer").copied();
        while dropped(&mut *port).unwrap_or(0) < 10 {
            assert!(Instant::now() < end, "{:?}", port.counters());
            assert_eq!(rx.rx(&mut Vec::new(), 32), 0);
        }
        assert_eq!(wait(rx.fd().unwrap(), 0), 0, "nothing waits any more");
    }
}

#[test]
fn what_the_kernel_could_not_queue_is_a_named_drop() {
    if !namespace() {
        return;
    }
    veth();
    let mut v0 = open("v0", "system");
    let raw = RawSender::new("v1");
    let end = Instant::now() + Duration::from_secs(20);
    let dropped = |o: &mut Open| o.port.counters().get("rx_drop_rx_full").copied().unwrap_or(0);
    while dropped(&mut v0) == 0 {
        assert!(Instant::now() < end, "{:?}", v0.port.counters());
        (0..1000).for_each(|n| raw.send(&numbered(n, 1400)));
    }
    let all = v0.port.counters();
    assert!(all["rx_dropped"] >= all["rx_drop_rx_full"]);
    v0.close();
}

#[test]
fn offloads_that_do_not_fit_the_frame_are_named_drops() {
    if !namespace() {
        return;
    }
    veth();
    let mut v0 = open("v0", "system");
    let raw = RawSender::offloading("v1");
    // "Complete the SCTP checksum", where no whole SCTP header is left.
    let frame = numbered(1, 60);
    let mut with_header = vec![1u8, 0, 0, 0, 0, 0];
    with_header.extend((frame.len() as u16 - 10).to_ne_bytes());
    with_header.extend(8u16.to_ne_bytes());
    with_header.extend(&frame);
    raw.send(&with_header);
    with_header[0] = 0;
    raw.send(&with_header);
    assert_eq!(v0.receive(1, is_numbered).len(), 1, "the next one is none the worse");
    assert_eq!(v0.port.counters().get("rx_drop_bad_offload"), Some(&1));
    v0.close();
}

#[test]
fn tap_carries_frames_both_ways() {
    if !namespace() {
        return;
    }
    for kind in ["tap", "internal"] {
        let mac = [2, 0, 0, 0xaa, 0xbb, 0xcc];
        let want = PortConfig { mac: Some(mac), mtu_request: Some(1400), ..config("br0", kind) };
        let mut t = open_with(&want);
        assert_eq!((t.port.mac(), t.port.mtu(), t.port.kind()), (mac, 1400, kind));
        assert_eq!(t.port.status()["driver_name"], "tun");
        assert!(!t.port.link().admin_up, "left down");
        t.port.set_admin_up(true).unwrap();
        let link = t.port.link();
        assert!(link.admin_up && link.up);
        let raw = RawSender::new("br0");
        let mut got = Vec::new();
        for n in 0..1000 {
            raw.send(&numbered(n, 60 + n as usize));
            got.extend(t.receive(1, is_numbered));
        }
        assert_eq!(got.len(), 1000);
        assert_eq!(got[999], numbered(999, 1059));
        to_tap(&mut t);
        let c = t.port.counters();
        assert_eq!((c["tx_packets"], c["tx_dropped"], c["rx_dropped"]), (1000, 0, 0));
        assert!(c["rx_packets"] >= 1000);
        t.close();
        goes("br0");
    }
}

/// Waits until the device has gone with its port: a child that another test is about to start has
/// our descriptors until its exec.
fn goes(device: &str) {
    let start = Instant::now();
    let show = || Command::new("ip").args(["link", "show", device]).output().unwrap();
    while show().status.success() {
        assert!(start.elapsed() < Duration::from_secs(20), "{device} goes with the port");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A thousand frames into the device; the other side is a system port on it.
fn to_tap(t: &mut Open) {
    let mut other = open("br0", "system");
    for start in (0..1000).step_by(20) {
        let frames: Vec<_> = (start..start + 20).map(|n| numbered(n, 64)).collect();
        t.send(&frames);
        assert_eq!(other.receive(20, is_numbered), frames);
    }
    other.close();
}

#[test]
fn tap_that_is_down_drops_by_name() {
    if !namespace() {
        return;
    }
    let mut t = open("tp0", "tap");
    t.send(&[numbered(1, 60), numbered(2, 60)]);
    let c = t.port.counters();
    assert_eq!((c["tx_drop_tx_down"], c["tx_dropped"], c["tx_packets"]), (2, 2, 0));
    t.close();
}

#[test]
fn persistence_is_asked_for() {
    if !namespace() {
        return;
    }
    let mut t = open("br7", "internal");
    t.port.set_persistent(true).unwrap();
    t.close();
    ip("addr add 10.7.0.1/24 dev br7");
    let t = open("br7", "internal");
    let addrs = Command::new("ip").args(["addr", "show", "br7"]).output().unwrap();
    assert!(String::from_utf8_lossy(&addrs.stdout).contains("10.7.0.1"), "kept its address");
    t.close();
    goes("br7");
}

#[test]
fn device_deleted_under_us() {
    if !namespace() {
        return;
    }
    veth();
    let (mut sys, mut tap) = (open("v0", "system"), open("tp0", "tap"));
    let mut bystander = open("tp1", "tap");
    bystander.port.set_admin_up(true).unwrap();
    tap.port.set_admin_up(true).unwrap();
    for o in [&mut sys, &mut tap] {
        o.port.health().unwrap();
    }
    ip("link del v0");
    ip("link del tp0");
    for o in [&mut sys, &mut tap] {
        let error = o.port.health().unwrap_err().to_string();
        assert!(error.starts_with("could not open network device"), "{error}");
        assert_eq!((o.port.link().admin_up, o.port.link().up), (false, false));
        o.receive(1, |_| true);
        assert_eq!(wait(o.rx.fd().unwrap(), 50), 0, "the descriptor is silent");
        o.send(&[numbered(1, 60)]);
        let c = o.port.counters();
        assert_eq!((c["tx_drop_tx_down"], c["tx_packets"]), (1, 0), "{c:?}");
    }
    bystander.port.health().unwrap();
    RawSender::new("tp1").send(&numbered(3, 60));
    assert_eq!(bystander.receive(1, is_numbered), [numbered(3, 60)]);
    ip("link add v0 type veth peer name v1");
    let again = open("v0", "system");
    assert_ne!(again.port.ifindex(), sys.port.ifindex());
    for o in [sys, tap, bystander, again] {
        o.close();
    }
}

#[test]
fn down_and_up_again() {
    if !namespace() {
        return;
    }
    veth();
    let (mut a, mut b) = (open("v0", "system"), open("v1", "system"));
    a.port.set_admin_up(false).unwrap();
    a.send(&[numbered(1, 60)]);
    assert_eq!(a.port.counters()["tx_drop_tx_down"], 1);
    a.port.set_admin_up(true).unwrap();
    let end = Instant::now() + Duration::from_secs(2);
    while !(a.port.link().up && b.port.link().up) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(10));
    }
    a.send(&[numbered(2, 60)]);
    assert_eq!(b.receive(1, is_numbered), [numbered(2, 60)]);
    b.send(&[numbered(3, 60)]);
    assert_eq!(a.receive(1, is_numbered), [numbered(3, 60)]);
    assert!(a.port.link().resets > 0);
    a.close();
    b.close();
}

#[test]
fn link_facts_and_reconfigure() {
    if !namespace() {
        return;
    }
    veth();
    let mut a = open("v0", "system");
    let Link { admin_up, up, mbps, full_duplex, abilities, .. } = a.port.link();
    assert_eq!((admin_up, up, mbps, full_duplex), (true, true, 10_000, Some(true)));
    assert_eq!(abilities, Abilities { medium: Some(Medium::Copper), ..Abilities::default() });
    assert_eq!(a.port.status()["driver_name"], "veth");
    let new = PortConfig { mtu_request: Some(3000), mac: Some([2; 6]), ..config("v0", "") };
    assert!(a.port.reconfigure(&new).unwrap());
    assert_eq!((a.port.mtu(), a.port.mac()), (3000, [2; 6]));
    let bad = PortConfig { mtu_request: Some(7), ..config("v0", "") };
    let error = a.port.reconfigure(&bad).unwrap_err().to_string();
    assert!(error.starts_with("v0: setting MTU 7"), "{error}");
    assert_eq!(a.port.mtu(), 3000);
    assert!(!a.port.reconfigure(&config("v0", "tap")).unwrap());
    a.close();
}

#[test]
fn link_events() {
    if !namespace() {
        return;
    }
    let mut monitor = LinkMonitor::new().unwrap();
    assert_eq!(monitor.events(), (vec![], false));
    veth();
    let up = |e: &LinkEvent| matches!(e, LinkEvent::Changed(s) if s.name == "v0" && s.up);
    await_event(&mut monitor, up);
    ip("link del v0");
    let gone = |e: &LinkEvent| matches!(e, LinkEvent::Gone { name, .. } if name == "v0");
    await_event(&mut monitor, gone);
}

#[test]
fn a_look_at_link_events_is_no_longer_than_some_of_them() {
    if !namespace() {
        return;
    }
    veth();
    let mut monitor = LinkMonitor::new().unwrap();
    let file = std::env::temp_dir().join(format!("weft-links-{}", std::process::id()));
    let flaps = ["link set v0 mtu 1400\n", "link set v0 mtu 1300\n"].concat();
    std::fs::write(&file, flaps.repeat(400)).unwrap();
    ip(&format!("-batch {}", file.display()));
    std::fs::remove_file(&file).unwrap();
    let (first, more) = monitor.events();
    assert!(first.len() <= 512 && more, "{} {more}", first.len());
    let (rest, more) = monitor.events();
    let lost = |all: &[LinkEvent]| all.contains(&LinkEvent::Lost);
    assert!(first.len() + rest.len() >= 800 || lost(&first) || lost(&rest));
    assert!(!more || !monitor.events().1);
}

/// More changes than the queue of events holds, while none is read: later ones are heard of.
#[test]
fn changes_of_routes_are_heard_of_after_too_many_at_once() {
    if !namespace() {
        return;
    }
    veth();
    ip("addr add 192.0.2.1/24 dev v0");
    let mut monitor = UnderlayMonitor::open().unwrap();
    let (add, del) = ("route add 198.51.100.1 dev v0\n", "route del 198.51.100.1 dev v0\n");
    let file = std::env::temp_dir().join(format!("weft-routes-{}", std::process::id()));
    std::fs::write(&file, [add, del].concat().repeat(8000)).unwrap();
    ip(&format!("-batch {}", file.display()));
    std::fs::remove_file(&file).unwrap();
    assert!(monitor.drain(), "all is read");
    assert_eq!(wait(monitor.as_raw_fd(), 50), 0);
    ip("route add 198.51.100.2 dev v0");
    assert_ne!(wait(monitor.as_raw_fd(), 1000), 0, "a change is heard of");
    assert!(monitor.drain());
}

#[test]
fn neighbours_that_are_new_or_changed_are_found() {
    if !namespace() {
        return;
    }
    veth();
    let neighbour = |n: u8, mac: u8| {
        let ip = format!("neigh replace 192.0.2.{n} dev v0 nud permanent");
        format!("{ip} lladdr 02:00:00:00:00:{mac:02x}")
    };
    (1..9).for_each(|n| ip(&neighbour(n, n)));
    let old = Snapshot::take().unwrap();
    [(3, 0x33), (9, 9)].iter().for_each(|(n, mac)| ip(&neighbour(*n, *mac)));
    ip("neigh del 192.0.2.5 dev v0");
    let now = Snapshot::take().unwrap();
    let mut found: Vec<_> = now.neighbours_since(&old).into_iter().map(|n| (n.ip, n.mac)).collect();
    found.sort();
    let is = |n: u8, mac: u8| (IpAddr::from([192, 0, 2, n]), [2, 0, 0, 0, 0, mac]);
    assert_eq!(found, [is(3, 0x33), is(9, 9)]);
    assert_eq!(now.neighbours_since(&now), []);
}

/// Reads events, waiting on the descriptor, until one for which `want` holds.
fn await_event(monitor: &mut LinkMonitor, want: impl Fn(&LinkEvent) -> bool) {
    let (mut seen, end) = (Vec::new(), Instant::now() + Duration::from_secs(3));
    while !seen.iter().any(&want) {
        assert!(Instant::now() < end, "not among {seen:?}");
        wait(monitor.as_raw_fd(), 100);
        seen.extend(monitor.events().0);
    }
}

#[test]
fn dummy_counts_and_frees() {
    let mut d = open("d0", "dummy");
    d.send(&[numbered(1, 60), numbered(2, 100)]);
    let c = d.port.counters();
    assert_eq!((c["tx_packets"], c["tx_bytes"], c["rx_packets"]), (2, 160, 0));
    assert_ne!(d.port.mac(), open("d1", "dummy").port.mac());
    d.close();
}
