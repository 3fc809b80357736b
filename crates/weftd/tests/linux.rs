//! A real Linux guest (Debian's kernel under qemu) over vhost-user: its driver, its TCP, and the
//! kernel's own VXLAN device as its peer.

mod lab;

use lab::*;
use serde_json::json;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use testkit::{Netns, Raw, Switch, privileged, veth};

const VNI: u32 = 42;
/// Room for the outer headers on a cable of 1,500 bytes.
const MTU: u32 = 1450;
/// Bytes of the 4 MiB that iperf3 sent: it counts what arrived before the sender was done.
const ENOUGH: u64 = 3 << 20;
const GUEST: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

/// `br-int` with the guest's port `vhu` and a VXLAN port to the kernel of `peer`, over `br-phy`:
/// 10.1.1.1 is ours, .2 the peer's. Behind the tunnel the peer is 10.0.0.2, the guest 10.0.0.1.
fn with_peer(f: impl FnOnce(&Switch, &Netns)) {
    if !privileged() {
        return;
    }
    let (_turn, ns, peer) = (turn(), Netns::new().unwrap(), Netns::new().unwrap());
    veth((&ns, "nic0"), (&peer, "eth0")).unwrap();
    let sw = start(&ns);
    add_bridge(&sw, "br-phy");
    vsctl(&sw, "add-port br-phy nic0");
    add_bridge(&sw, "br-int");
    vsctl(
        &sw,
        &format!(
            "add-port br-int vx -- set interface vx type=vxlan options:key={VNI} options:remote_ip=10.1.1.2"
        ),
    );
    for (ns, dev, n) in [(&ns, "br-phy", 1), (&peer, "eth0", 2)] {
        ns.ip(&format!("addr add 10.1.1.{n}/24 dev {dev}")).unwrap();
        ns.ip(&format!("link set {dev} up")).unwrap();
    }
    let device = format!("vxlan id {VNI} local 10.1.1.2 remote 10.1.1.1 dstport 4789");
    peer.ip(&format!("link add vx type {device}")).unwrap();
    peer.ip("addr add 10.0.0.2/24 dev vx").unwrap();
    peer.ip(&format!("link set vx mtu {MTU} up")).unwrap();
    f(&sw, &peer);
}

/// Adds a guest's port; its socket.
fn add_port(sw: &Switch, name: &str) -> PathBuf {
    let socket = sw.dir().join(name);
    let kind = format!("dpdkvhostuserclient options:vhost-server-path={}", socket.display());
    vsctl(sw, &format!("add-port br-int {name} -- set interface {name} type={kind}"));
    socket
}

/// The plainest guest behind a port.
fn machine(socket: &Path) -> Machine<'_> {
    Machine { socket, mac: 1, queues: 1, device: "", incoming: None }
}

/// Gives the guest's device its address and waits until the peer answers.
fn bring_up(guest: &mut Linux) {
    guest.run(&format!("ip link set eth0 mtu {MTU} up && ip addr add 10.0.0.1/24 dev eth0"));
    guest.run("for i in 1 2 3 4 5; do ping -c 1 -W 2 10.0.0.2 && exit 0; done; exit 1");
}

/// iperf3's server in the peer; goes when dropped.
struct Server(Child);

impl Server {
    fn start(peer: &Netns) -> Server {
        let mut c = peer.command("iperf3");
        c.arg("-s").stdout(Stdio::null()).stderr(Stdio::null());
        let server = Server(c.spawn().expect("iperf3"));
        wait_for("iperf3's server", || peer.exec(&["ss", "-tln"]).unwrap().contains(":5201"));
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs iperf3 in the guest; bytes that arrived. Again if the server is not done with the client
/// before.
fn iperf(guest: &mut Linux, how: &str) -> u64 {
    let mut report = serde_json::Value::Null;
    wait_for("iperf3's server", || {
        let (Ok(text) | Err(text)) = guest.try_run(&format!("iperf3 -c 10.0.0.2 -J {how}"));
        report = serde_json::from_str(&text).expect(&text);
        !report["error"].as_str().is_some_and(|e| e.contains("busy"))
    });
    let bytes = report["end"]["sum_received"]["bytes"].as_u64();
    bytes.unwrap_or_else(|| panic!("{report}"))
}

#[test]
fn tcp_through_a_tunnel_to_the_kernel() {
    with_peer(|sw, peer| {
        let socket = add_port(sw, "vhu");
        let mut guest = Linux::start(machine(&socket));
        bring_up(&mut guest);
        peer.ping(GUEST, WAIT_TIME_MAX).unwrap();
        let wire = Raw::open(peer, "eth0").unwrap();
        let _server = Server::start(peer);
        let to_peer = iperf(&mut guest, "-n 4M");
        let outer = wire.collect(50, Instant::now() + Duration::from_secs(1), |f| f.len() > 1000);
        let to_guest = iperf(&mut guest, "-n 4M -R");
        eprintln!("linux: {to_peer} and {to_guest} bytes");
        assert!(to_peer >= ENOUGH && to_guest >= ENOUGH, "{to_peer} {to_guest}");
        let fields = ["vxlan.vni", "ip.checksum.status", "tcp.checksum.status", "tcp.dstport"];
        for line in dissect(&outer, &fields) {
            assert_eq!(line, "42\t1,1\t1\t5201");
        }
        assert!(outer.len() > 20, "{}", outer.len());
    });
}

#[test]
fn memory_is_plugged_in_under_traffic() {
    with_peer(|sw, peer| {
        let socket = add_port(sw, "vhu");
        let (queues, device) = (2, "packed=on");
        let mut guest = Linux::start(Machine { queues, device, ..machine(&socket) });
        bring_up(&mut guest);
        let _server = Server::start(peer);
        wait_for("both queues", || {
            appctl(sw, "dpif-netdev/pmd-rxq-show").matches("port: vhu ").count() == 2
        });
        guest.run("iperf3 -c 10.0.0.2 -t 5 > /tmp/during 2>&1; echo $? > /tmp/ended &");
        let kind = "memory-backend-memfd";
        let memory = json!({"qom-type": kind, "id": "more", "size": 256 << 20, "share": true});
        guest.qmp("object-add", memory);
        guest.qmp("device_add", json!({"driver": "pc-dimm", "id": "dimm", "memdev": "more"}));
        // Online, it is where the kernel takes its buffers first.
        let total = "awk '/MemTotal/ { print $2 }' /proc/meminfo";
        let kib = |guest: &mut Linux| guest.run(total).trim().parse::<usize>().unwrap();
        wait_for("the memory", || kib(&mut guest) > (MEMORY + 100) << 10);
        wait_for("the end of the transfer", || guest.try_run("test -s /tmp/ended").is_ok());
        let text = guest.run("cat /tmp/during /tmp/ended");
        assert!(text.trim_end().ends_with("\n0"), "{text}");
        assert!(iperf(&mut guest, "-n 4M") >= ENOUGH);
        assert!(iperf(&mut guest, "-n 4M -R") >= ENOUGH);
        let ring_errors = iface(sw, "vhu", "statistics");
        assert!(!ring_errors.contains("guest_"), "{ring_errors}");
    });
}

/// True if the guest's front-end has asked for dirty pages to be logged.
fn logs_pages(sw: &Switch, port: &str) -> bool {
    let text = iface(sw, port, "status:features");
    let features = u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap();
    features & 1 << 26 != 0
}

#[test]
fn a_guest_moves_to_another_port() {
    with_peer(|sw, peer| {
        let (from, to) = (add_port(sw, "vhu0"), add_port(sw, "vhu1"));
        let mut old = Linux::start(machine(&from));
        bring_up(&mut old);
        old.run("echo here > /tmp/mark");
        assert_eq!(iface(sw, "vhu0", "status:rings"), "own");
        let state = sw.dir().join("state");
        let mut new = Linux::launch(Machine { incoming: Some(&state), ..machine(&to) });
        let pings = Pinger::start(peer, GUEST);
        old.qmp("migrate-set-parameters", json!({"max-bandwidth": 8 << 20}));
        old.qmp("migrate", json!({"uri": format!("unix:{}", state.display())}));
        // Our own rings log the pages that they write to (VHOST_F_LOG_ALL).
        wait_for("logged pages", || logs_pages(sw, "vhu0"));
        assert_eq!(iface(sw, "vhu0", "status:rings"), "own");
        peer.ping(GUEST, WAIT_TIME_MAX).unwrap();
        old.qmp("migrate-set-parameters", json!({"max-bandwidth": 1 << 30}));
        wait_for("the move", || old.qmp("query-migrate", json!({}))["status"] == "completed");
        old.kill();
        assert_eq!(new.run("cat /tmp/mark"), "here\n");
        peer.ping(GUEST, WAIT_TIME_MAX).unwrap();
        wait_for("our own rings", || iface(sw, "vhu1", "status:rings") == "own");
        let _server = Server::start(peer);
        assert!(iperf(&mut new, "-n 4M") >= ENOUGH);
        assert!(iperf(&mut new, "-n 4M -R") >= ENOUGH);
        let (sent, answered) = pings.stop();
        eprintln!("linux: {answered} of {sent} pings answered around the move");
        assert!(answered > 0);
    });
}
