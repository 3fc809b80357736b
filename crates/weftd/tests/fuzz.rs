//! Noise into every socket that the daemon listens on or connects to (memif's: `port-dpdk`'s tests)
//! and into every kind of port: it stays up, and whoever else is connected notices nothing. For the
//! database's see `database.rs`.

mod lab;

use lab::*;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use testkit::{Netns, Noise, Raw, Switch, privileged, strategy};

/// Plain noise, or something with an OpenFlow header in front; now and then after a hello.
fn openflow(noise: &mut Noise) -> Vec<u8> {
    let version = [1u8, 4, 5, 6][noise.below(4)];
    let mut all = Vec::new();
    if noise.below(8) > 0 {
        all.extend([version, 0, 0, 8, 0, 0, 0, 1]);
    }
    for _ in 0..1 + noise.below(4) {
        let body_len = noise.below(120);
        let mut body = noise.bytes(body_len);
        if noise.below(2) == 0 {
            // Many fields are small numbers.
            body.iter_mut().for_each(|b| *b &= 0x1f);
        }
        let claimed = if noise.below(6) == 0 { noise.next() as u16 } else { 8 + body_len as u16 };
        all.extend([version, noise.below(36) as u8]);
        all.extend(claimed.to_be_bytes());
        all.extend([0, 0, 0, 2]);
        all.extend(body);
    }
    if noise.below(4) == 0 { noise.bytes(300) } else { all }
}

/// JSON that is nearly right.
fn json(noise: &mut Noise) -> Vec<u8> {
    let good = [
        r#"{"id":1,"method":"version","params":[]}"#,
        r#"{"id":null,"method":"ofproto/trace","params":["br0","in_port=1"]}"#,
        r#"{"id":2,"method":"fdb/show","params":["br0",[1,{"a":[[[[]]]]}]]}"#,
    ];
    let mut text = good[noise.below(3)].as_bytes().to_vec();
    for _ in 0..noise.below(4) {
        let at = noise.below(text.len());
        text[at] = noise.next() as u8;
    }
    text.truncate(noise.below(text.len() + 1));
    if noise.below(3) == 0 { noise.bytes(200) } else { text }
}

/// A vhost-user message: request, flags, length, payload.
fn vhost(noise: &mut Noise) -> Vec<u8> {
    let len = noise.below(64);
    let mut all = (noise.below(45) as u32).to_le_bytes().to_vec();
    all.extend(1u32.to_le_bytes());
    let claimed = if noise.below(5) == 0 { noise.next() as u32 } else { len as u32 };
    all.extend(claimed.to_le_bytes());
    all.extend(noise.bytes(len));
    if noise.below(4) == 0 { noise.bytes(64) } else { all }
}

/// Writes, reads a little of what comes, hangs up.
fn poke(mut stream: impl Read + Write, noise: &[u8]) {
    let _ = stream.write_all(noise);
    let _ = stream.flush();
    let _ = stream.read(&mut [0; 512]);
}

fn poke_unix(path: &Path, noise: &[u8]) {
    let stream = UnixStream::connect(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    stream.set_read_timeout(Some(Duration::from_millis(2))).unwrap();
    stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    poke(stream, noise);
}

/// Answers whoever connects with noise, until the test ends; how often it did.
fn liar(path: &Path, make: fn(&mut Noise) -> Vec<u8>) -> Arc<AtomicU32> {
    let (listener, lied) = (UnixListener::bind(path).unwrap(), Arc::new(AtomicU32::new(0)));
    let count = lied.clone();
    std::thread::spawn(move || {
        let mut noise = Noise(0x0123_4567_89ab_cdef);
        for stream in listener.incoming().flatten() {
            stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            (0..3).for_each(|_| poke(&stream, &make(&mut noise)));
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    lied
}

#[test]
fn sockets() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    // Noise may be a valid message by chance and change flows: those of the other bridge stay.
    let (a, _b) = (host(&ns, 1), host(&ns, 2));
    add_bridge(&sw, "br1");
    vsctl(&sw, "add-port br1 v1 -- add-port br1 v2");
    vsctl(&sw, "add-port br0 vhu -- set interface vhu type=dpdkvhostuser");
    let dir = sw.dir().to_path_buf();
    // Where the daemon connects by itself, a peer waits that lies.
    let (controller, guest) = (dir.join("controller"), dir.join("guest"));
    let lies = [liar(&controller, openflow), liar(&guest, vhost)];
    vsctl(
        &sw,
        &format!(
            "set-controller br0 ptcp:16653:127.0.0.1 unix:{} -- add-port br0 vhc -- set interface \
             vhc type=dpdkvhostuserclient options:vhost-server-path={}",
            controller.display(),
            guest.display()
        ),
    );
    let ring = Ring { packed: false, queues: 1, server: false, ..Ring::default() };
    let _guest = Guest::start(&sw.dir().join("vhu"), ring, "macswap");
    wait_for("the guest", || iface(&sw, "vhu", "link_state") == "up");
    ping(&a, 2);
    let pid = sw.daemon_pid().unwrap();
    let mut monitor = sw.command("ovs-ofctl");
    monitor.args(["monitor", "br0", "65534"]).stdout(std::process::Stdio::null());
    let mut monitor = monitor.spawn().unwrap();
    let pinger = Pinger::start(&a, addr(2));
    let mut noise = Noise::default();
    for _ in 0..150 {
        poke_unix(&dir.join("br0.mgmt"), &openflow(&mut noise));
        poke_unix(&dir.join("br0.snoop"), &openflow(&mut noise));
        poke_unix(&dir.join(format!("ovs-vswitchd.{pid}.ctl")), &json(&mut noise));
        poke_unix(&dir.join("vhu"), &vhost(&mut noise));
        let tcp = ns.run(|| TcpStream::connect("127.0.0.1:16653")).unwrap();
        tcp.set_read_timeout(Some(Duration::from_millis(2))).unwrap();
        poke(tcp, &openflow(&mut noise));
    }
    for lied in lies {
        wait_for("the daemon to listen to lies", || lied.load(Ordering::Relaxed) > 2);
    }
    let (sent, answered) = pinger.stop();
    assert!(sent > 20 && answered + 1 >= sent, "{answered} of {sent}");
    assert_eq!(sw.daemon_pid(), Some(pid), "the same process");
    assert!(monitor.try_wait().unwrap().is_none(), "another connection was closed");
    monitor.kill().unwrap();
    monitor.wait().unwrap();
    ping(&a, 2);
    assert_eq!(iface(&sw, "vhu", "status:status"), "connected", "the guest stays");
    assert!(ofctl(&sw, "show tcp:127.0.0.1:16653").contains("(vhu)"));
    appctl(&sw, "version");
}

/// Frames that parsers must survive, the same ones each time. A value of this strategy is larger
/// than a test's stack takes.
fn frames(n: usize) -> Vec<Vec<u8>> {
    let make = move || {
        let (mut runner, hostile) = (TestRunner::deterministic(), strategy::hostile().boxed());
        let frames = (0..n).map(|_| hostile.new_tree(&mut runner).unwrap().current());
        frames.filter(|f| f.len() >= 14).collect()
    };
    std::thread::Builder::new().stack_size(64 << 20).spawn(make).unwrap().join().unwrap()
}

/// Sends what the kernel lets through; how many.
fn spray(raw: &Raw, frames: &[Vec<u8>]) -> usize {
    frames.iter().filter(|f| raw.send(f).is_ok()).count()
}

/// A capture of these frames.
fn capture(path: &Path, frames: &[Vec<u8>]) {
    let mut b = Vec::new();
    let words = |b: &mut Vec<u8>, words: &[u32]| {
        words.iter().for_each(|w| b.extend(w.to_le_bytes()));
    };
    words(&mut b, &[0xa1b2_c3d4, 0x0004_0002, 0, 0, 65535, 1]);
    for f in frames {
        words(&mut b, &[0, 0, f.len() as u32, f.len() as u32]);
        b.extend(f);
    }
    std::fs::write(path, b).unwrap();
}

/// Frames received by all ports.
fn received(sw: &Switch) -> u64 {
    coverage(sw, "netdev_received")
}

#[test]
fn ports() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    let (a, _b, evil) = (host_on(&ns, &sw, 1), host_on(&ns, &sw, 2), host(&ns, 3));
    vsctl(&sw, "add-port br0 v3 -- set interface v3 ofport_request=3");
    vsctl(&sw, "add-port br0 t4 -- set interface t4 type=tap ofport_request=4");
    ns.ip("link set t4 up").unwrap();
    ns.ip("link set br0 up").unwrap();
    ns.ip("link add k0 type veth peer name k1").unwrap();
    ns.ip("link set k0 up").unwrap();
    ns.ip("link set k1 up").unwrap();
    vsctl(
        &sw,
        "add-port br0 afp -- set interface afp type=dpdk ofport_request=5 \
        options:dpdk-devargs=net_af_packet3,iface=k0",
    );
    vsctl(&sw, "add-port br0 vhu -- set interface vhu type=dpdkvhostuser ofport_request=6");
    vsctl(&sw, "add-port br0 i7 -- set interface i7 type=internal ofport_request=7");
    ns.ip("link set i7 up").unwrap();
    let dir = sw.dir().display().to_string();
    let memif = |n: u8, role: &str| {
        format!("net_memif{n},role={role},socket={dir}/memif,socket-abstract=no")
    };
    let noise = frames(2400);
    capture(&sw.dir().join("in.pcap"), &noise);
    for (n, name, devargs) in [
        (8, "dtap", "net_tap8,iface=dtap-dev".to_string()),
        (9, "memif0", memif(0, "server")),
        (10, "memif1", memif(1, "client")),
        (11, "ring", "net_ring0".into()),
    ] {
        vsctl(
            &sw,
            &format!(
                "add-port br0 {name} -- set interface {name} type=dpdk ofport_request={n} \
                 options:dpdk-devargs={devargs}"
            ),
        );
    }
    ns.ip("link set dtap-dev up").unwrap();
    add_bridge(&sw, "br1");
    vsctl(
        &sw,
        "add-port br0 pa -- set interface pa type=patch ofport_request=12 options:peer=pb \
         -- add-port br1 pb -- set interface pb type=patch options:peer=pa",
    );
    // Before the guest is there: it sends back what it gets, which a learning switch must believe.
    ping(&a, 2);
    let ring = Ring { packed: true, queues: 1, server: false, ..Ring::default() };
    let _guest = Guest::start(&sw.dir().join("vhu"), ring, "io");
    wait_for("the guest", || iface(&sw, "vhu", "link_state") == "up");
    let idle = buffers(&sw);
    let pid = sw.daemon_pid();
    // Everything a packet can go through; hosts 1 and 2 among themselves as before.
    let flows = "priority=9,in_port=1,actions=2\npriority=9,in_port=2,actions=1\n\
        priority=5,ip,in_port=3,actions=dec_ttl,mod_nw_src:1.2.3.4,push_vlan:0x8100,\
            set_field:4100->vlan_vid,4,5,6,strip_vlan,LOCAL\n\
        priority=5,udp6,in_port=4,actions=move:NXM_NX_IPV6_SRC[]->NXM_NX_IPV6_DST[],\
            mod_tp_dst:7,resubmit(,1)\n\
        priority=5,tcp,in_port=5,actions=mod_tp_src:9,mod_nw_tos:252,CONTROLLER:60,6\n\
        priority=5,vlan_tci=0x1000/0x1000,in_port=6,actions=pop_vlan,4,5,LOCAL\n\
        priority=8,ip,in_port=9,actions=dec_ttl,mod_nw_tos:4,11\npriority=8,in_port=10,actions=12\n\
        priority=8,vlan_tci=0x1000/0x1000,in_port=11,actions=pop_vlan,4,7,8\n\
        priority=8,in_port=12,actions=9,10\n\
        priority=7,in_port=9,actions=drop\npriority=7,in_port=11,actions=drop\n\
        priority=4,mpls,actions=pop_mpls:0x0800,resubmit(,1)\n\
        priority=4,arp,actions=set_field:9->arp_op,ALL\n\
        priority=6,mpls,in_port=4,actions=decap(),decap(packet_type(ns=0,type=0)),resubmit(,1)\n\
        priority=6,ip,in_port=6,actions=decap(),encap(mpls),encap(mpls_mc),encap(ethernet),5\n\
        priority=6,ipv6,in_port=5,actions=encap(mpls),encap(ethernet),4,decap(),\
            decap(packet_type(ns=0,type=0)),6,resubmit(,1)\n\
        priority=1,actions=push_mpls:0x8847,FLOOD\n\
        table=1,actions=resubmit(,2),FLOOD\ntable=2,icmp6,actions=dec_ttl,IN_PORT\n";
    sw.ofctl_stdin(&["-O", "OpenFlow13", "add-flows", "br0", "-"], flows).unwrap();
    let ends = [
        Raw::open(&evil, "eth0").unwrap(),
        Raw::open(&ns, "t4").unwrap(),
        Raw::open(&ns, "k1").unwrap(),
        Raw::open(&ns, "br0").unwrap(),
        Raw::open(&ns, "i7").unwrap(),
        Raw::open(&ns, "dtap-dev").unwrap(),
    ];
    let before = received(&sw);
    let pinger = Pinger::start(&a, addr(2));
    let mut sent = 0;
    vsctl(
        &sw,
        &format!(
            "add-port br0 pcap -- set interface pcap type=dpdk ofport_request=13 \
             options:dpdk-devargs=net_pcap0,rx_pcap={dir}/in.pcap,tx_pcap=/dev/null"
        ),
    );
    for (i, piece) in noise.chunks(100).enumerate() {
        sent += spray(&ends[i % ends.len()], piece);
    }
    assert!(sent > 1500, "{sent}");
    wait_for("the noise is received", || received(&sw) - before >= sent as u64 / 2);
    // Noise is slow, as every frame is a miss; what is under way at the end is not answered.
    std::thread::sleep(Duration::from_secs(3));
    let (asked, answered) = pinger.stop();
    assert!(asked > 50 && answered + 20 >= asked, "{answered} of {asked}");
    assert_eq!(sw.daemon_pid(), pid, "the same process");
    ping(&a, 2);
    ofctl(&sw, "del-flows br0");
    wait_for("no buffer leaked", || buffers(&sw) <= idle);
}
