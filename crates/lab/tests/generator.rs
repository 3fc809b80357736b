//! What the generator emits: testpmd forwards from it into a capture, which is taken apart here.

use lab::{Flow, RuleKind, Rules};
use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A folder of one test, gone when dropped. Not in /tmp: EAL and other users' rules about it
/// differ.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("generator-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_string_lossy().into_owned()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn generator() -> PathBuf {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../lab/generator/build.sh");
    let out = Command::new(script).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    PathBuf::from(String::from_utf8_lossy(&out.stdout).trim())
}

fn testpmd(args: &str, sink: &str) -> Command {
    let mut c = Command::new("dpdk-testpmd");
    c.args(["--lcores=0@0,1@0", "--no-huge", "--no-shconf", "-m", "128", "--no-pci"]);
    c.args(["--no-telemetry", "-d"]).arg(generator());
    c.args(["--vdev", &format!("net_weftgen0,{args}"), "--vdev", sink, "--"]);
    c.args(["--nb-cores=1", "--forward-mode=io", "--total-num-mbufs=8192"]);
    c.args(["--no-lsc-interrupt", "--no-mlockall", "--no-flush-rx"]);
    c.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    c
}

fn made(stats: &str) -> u64 {
    let bytes = std::fs::read(stats).unwrap_or_default();
    bytes.get(64..72).map_or(0, |b| u64::from_ne_bytes(b.try_into().unwrap()))
}

/// Runs testpmd from a generator with these arguments to `sink` until `done`.
fn forward(args: &str, sink: &str, done: impl Fn() -> bool) {
    let mut child = testpmd(args, sink).spawn().unwrap();
    let began = Instant::now();
    while !done() {
        let ended = child.try_wait().unwrap();
        assert!(ended.is_none() && began.elapsed() < Duration::from_secs(60), "{args}: {ended:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    // Enter ends testpmd; it finishes the burst at hand and closes its files.
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(child.wait().unwrap().success());
}

/// The first `n` packets that a generator with these arguments makes.
fn capture(name: &str, args: &str, n: u64) -> Vec<Vec<u8>> {
    let dir = Dir::new(name);
    let (stats, file) = (dir.file("stats"), dir.file("out.pcap"));
    let args = format!("{args},limit={n},stats={stats}");
    forward(&args, &format!("net_pcap0,tx_pcap={file}"), || made(&stats) >= n);
    let packets = packets(&std::fs::read(file).unwrap());
    assert_eq!(packets.len() as u64, n);
    packets
}

/// A capture file of these packets.
fn pcap(packets: &[Vec<u8>]) -> Vec<u8> {
    let header = [0xa1b2_c3d4u32, 4 << 16 | 2, 0, 0, 65535, 1];
    let mut file: Vec<u8> = header.iter().flat_map(|w| w.to_ne_bytes()).collect();
    for p in packets {
        let length = p.len() as u32;
        file.extend([0, 0, length, length].iter().flat_map(|w: &u32| w.to_ne_bytes()));
        file.extend(p);
    }
    file
}

fn packets(pcap: &[u8]) -> Vec<Vec<u8>> {
    let (mut at, mut all) = (24, Vec::new());
    while at + 16 <= pcap.len() {
        let length = u32::from_ne_bytes(pcap[at + 8..at + 12].try_into().unwrap()) as usize;
        all.push(pcap[at + 16..at + 16 + length].to_vec());
        at += 16 + length;
    }
    all
}

fn be16(p: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([p[at], p[at + 1]])
}

fn be32(p: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(p[at..at + 4].try_into().unwrap())
}

fn sum(bytes: &[u8]) -> u32 {
    bytes.chunks(2).map(|c| u32::from(c[0]) << 8 | c.get(1).map_or(0, |b| u32::from(*b))).sum()
}

/// RFC 1071: sums to ones, over what is given plus `rest`.
fn assert_checksum(bytes: &[u8], rest: u32) {
    let mut sum = sum(bytes) + rest;
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    assert_eq!(sum, 0xffff);
}

/// Checks an IPv4 packet's lengths and checksums and gives its flow; `at` is where its Ethernet
/// header is.
fn ipv4(p: &[u8], at: usize) -> Flow {
    let (eth, ip) = (&p[at..], &p[at + 14..]);
    assert_eq!((be16(eth, 12), ip[0]), (0x0800, 0x45));
    assert_eq!(be16(ip, 2) as usize, ip.len());
    assert_checksum(&ip[..20], 0);
    match ip[9] {
        17 => assert_eq!((be16(ip, 24) as usize, be16(ip, 26)), (ip.len() - 20, 0)),
        _ => assert_checksum(&ip[20..], sum(&ip[12..20]) + 6 + (ip.len() as u32 - 20)),
    }
    assert_eq!(&eth[..2], [2, 0]);
    Flow {
        src: be32(ip, 12),
        dst: be32(ip, 16),
        sport: be16(ip, 20),
        dport: be16(ip, 22),
        dmac: be32(eth, 2) & 0x00ff_ffff,
        protocol: ip[9],
    }
}

/// The flow number in the stamp.
fn stamped(p: &[u8]) -> u32 {
    let stamp = &p[p.len() - 16..];
    assert!(matches!(u16::from_ne_bytes([stamp[0], stamp[1]]), 0x4756 | 0x4757));
    u32::from_ne_bytes(stamp[4..8].try_into().unwrap())
}

#[test]
fn arithmetic_flows_in_order() {
    let all = capture("seq", "flows=5000,rules=300,dmacs=70", 12000);
    for (i, p) in all.iter().enumerate() {
        let f = i as u32 % 5000;
        let flow = Flow {
            src: 0x3000_0000 + f,
            dst: 0x1000_0000 + ((f % 300) << 8) + (f & 255),
            sport: 1024 + f as u16,
            dport: 5001,
            dmac: f % 70,
            protocol: 17,
        };
        assert_eq!((p.len(), stamped(p), ipv4(p, 0)), (60, f, flow));
    }
}

#[test]
fn bursts_of_any_length_are_complete() {
    // Few come due between two looks.
    for kind in ["udp4", "vxlan,size=112"] {
        let all = capture("odd", &format!("flows=5000,rate=200000,kind={kind}"), 1003);
        assert!(all.iter().zip(0..).all(|(p, i)| stamped(p) == i));
        assert!(all.iter().all(|p| ipv4(p, 0).protocol == 17));
    }
}

#[test]
fn tables_of_flows_are_what_the_lab_thinks() {
    let dir = Dir::new("table");
    for (kind, flows, size) in
        [(RuleKind::Mixed, 100_000, 64), (RuleKind::Acl, 3000, 64), (RuleKind::Acl, 3000, 200)]
    {
        let set = Rules { kind, count: 1000, masks: 8, seed: 5 }.build().unwrap();
        let table = set.flows.unwrap();
        table.write(Path::new(&dir.file("flows"))).unwrap();
        let args = format!("flows={flows},size={size},table={}", dir.file("flows"));
        let mut protocols = HashMap::new();
        for (i, p) in capture("table-run", &args, 5000).iter().enumerate() {
            assert_eq!(p.len(), size - 4);
            let flow = ipv4(p, 0);
            assert_eq!(flow, table.flow(i as u32 % flows, flows));
            *protocols.entry(flow.protocol).or_insert(0) += 1;
        }
        assert_eq!(protocols.len(), if kind == RuleKind::Acl { 2 } else { 1 });
    }
}

#[test]
fn an_attack_is_mixed_in_at_its_share() {
    let dir = Dir::new("attack");
    let set = Rules { kind: RuleKind::Explosion, ..Rules::default() }.build().unwrap();
    set.flows.as_ref().unwrap().write(Path::new(&dir.file("flows"))).unwrap();
    let args = format!("flows=1000,order=uniform,new=100,table={}", dir.file("flows"));
    let all = capture("attack-run", &args, 20000);
    let hits = |p: &Vec<u8>| set.matches.iter().any(|m| m.hits(&ipv4(p, 0)));
    let attack = all.iter().filter(|p| !hits(p)).count();
    assert!((1700..2300).contains(&attack), "{attack}");
}

#[test]
fn sizes_are_those_of_imix_and_uniform() {
    let all = capture("imix", "flows=10,size=imix", 12000);
    let count = |size| all.iter().filter(|p| p.len() + 4 == size).count();
    assert_eq!((count(64), count(594), count(1518)), (7000, 4000, 1000));
    assert!(all.iter().all(|p| ipv4(p, 0).protocol == 17));
    let all = capture("uniform", "flows=10,size=uniform,kind=vlan", 5000);
    let (least, most) = (all.iter().map(Vec::len).min(), all.iter().map(Vec::len).max());
    assert!(least.unwrap() < 80 && most.unwrap() > 1500, "{least:?} {most:?}");
    assert!(all.iter().all(|p| (60..=1514).contains(&p.len()) && be16(p, 12) == 0x8100));
    // The most that a pool of the usual buffers has room for.
    let all = capture("large", "flows=10,size=2048", 100);
    assert!(all.iter().all(|p| p.len() == 2044 && ipv4(p, 0).protocol == 17));
}

#[test]
fn orders_are_uniform_and_zipf() {
    let all = capture("order-u", "flows=100,order=uniform,seed=3", 20000);
    let mut seen = [0; 100];
    all.iter().for_each(|p| seen[stamped(p) as usize] += 1);
    assert!(seen.iter().all(|n| (120..290).contains(n)), "{seen:?}");
    let all = capture("order-z", "flows=1000,order=zipf,s=1", 20000);
    let rank = |r| all.iter().filter(|p| stamped(p) == r).count() as f64;
    // 1/r of the sum 1/1 + ... + 1/1000 = 7.485
    for r in [1.0, 2.0, 4.0] {
        let expected = 20000.0 / 7.485 / r;
        let found = rank(r as u32 - 1);
        assert!((found / expected - 1.0).abs() < 0.15, "{r}: {found} {expected}");
    }
}

#[test]
fn vxlan_has_the_two_profiles_of_the_paper() {
    let outer = |p: &[u8]| {
        assert_eq!((be16(p, 36), be32(p, 46) >> 8), (4789, 100));
        assert_checksum(&p[14..34], 0);
        be32(p, 26) - 0xac10_0001
    };
    let args = "flows=1048576,kind=vxlan,size=112";
    for (i, p) in capture("burst", &format!("{args},order=burst"), 40000).iter().enumerate() {
        let inner = ipv4(p, 50);
        let i = i as u32;
        assert_eq!((p.len(), outer(p)), (108, i / 32 % 1024));
        assert_eq!((inner.src, inner.dst), (0x3000_0000 + i, 0x1000_0000 + i));
    }
    for (i, p) in capture("scatter", &format!("{args},order=scatter"), 4000).iter().enumerate() {
        let inner = ipv4(p, 50);
        let i = i as u32;
        assert_eq!((outer(p), inner.src, inner.dst), (i % 32, 0x3000_0000, 0x1000_0000 + i));
    }
}

#[test]
fn vxlan_of_any_size_says_whose_packet_it_is() {
    for size in ["96", "107", "uniform", "imix", "1518"] {
        let args =
            format!("flows=4000,kind=vxlan,guests=300,vnis=7,sources=20,order=uniform,size={size}");
        for p in capture("vxlan-size", &args, 2000) {
            let (outer, inner) = (ipv4(&p, 0), ipv4(&p, 50));
            let flow = inner.src - 0x3000_0000;
            let guest = flow % 300;
            assert_eq!(outer.src, 0xac10_0001 + flow % 20);
            assert_eq!((outer.dst, outer.dport), (0xac1f_0001, 4789));
            assert_eq!(outer.sport, 49152 + (flow & 0x3fff) as u16);
            assert_eq!((&p[42..46], be32(&p, 46) >> 8), (&[8, 0, 0, 0][..], 100 + guest % 7));
            assert_eq!((be16(&p, 50), be32(&p, 52)), (0x0200, 0x0100_0000 + guest));
            assert_eq!((inner.dst, inner.sport), (0x1000_0000 + flow, 1024 + flow as u16));
        }
    }
}

/// A packet whose stamp says that it is the `sequence`-th of a sampled flow of port 0.
fn tracked(flow: u32, sequence: u32) -> Vec<u8> {
    let mut p = vec![0; 60];
    p[44..46].copy_from_slice(&0x4757u16.to_ne_bytes());
    p[46..48].copy_from_slice(&((flow as u16) << 6).to_ne_bytes());
    p[48..52].copy_from_slice(&flow.to_ne_bytes());
    p[52..56].copy_from_slice(&sequence.to_ne_bytes());
    p
}

#[test]
fn gaps_and_reordered_packets_are_counted() {
    let dir = Dir::new("gaps");
    let mut given: Vec<_> = [0, 1, 2, 5, 6, 4, 7].map(|s| tracked(3, s)).into();
    given.extend([0, 1, 2].map(|s| tracked(9, s)));
    given.extend([vec![0; 60], vec![0; 14]]);
    std::fs::write(dir.file("in.pcap"), pcap(&given)).unwrap();
    let args = format!("pcap={},limit={}", dir.file("in.pcap"), given.len());
    let (stats, all) = (dir.file("stats"), given.len() as u64);
    let counters = || lab::Counters::read(Path::new(&stats)).unwrap_or_default();
    forward(&args, &format!("net_weftgen1,order=sink,stats={stats}"), || counters().taken >= all);
    let c = counters();
    // 3 never came; 4 came late.
    assert_eq!((c.taken, c.lost, c.reordered), (all, 1, 1));
}

#[test]
fn tcp_and_ipv6_have_right_checksums() {
    for p in capture("tcp", "flows=500,kind=tcp4,size=128", 1000) {
        assert_eq!(ipv4(&p, 0).protocol, 6);
    }
    for p in capture("udp6", "flows=500,kind=udp6,size=129", 1000) {
        assert_eq!((be16(&p, 12), be16(&p, 18) as usize), (0x86dd, p.len() - 54));
        assert_checksum(&p[54..], sum(&p[22..54]) + 17 + (p.len() as u32 - 54));
    }
}

#[test]
fn a_capture_is_replayed_as_it_is() {
    let dir = Dir::new("replay");
    let given: Vec<Vec<u8>> = (0..50u8).map(|i| vec![i; 14 + usize::from(i) * 29]).collect();
    std::fs::write(dir.file("in.pcap"), pcap(&given)).unwrap();
    let all = capture("replay-run", &format!("pcap={}", dir.file("in.pcap")), 120);
    for (i, p) in all.iter().enumerate() {
        assert_eq!(*p, given[i % 50]);
    }
}

#[test]
fn wrong_arguments_and_files_are_one_clear_line() {
    let dir = Dir::new("wrong");
    std::fs::write(dir.file("short"), b"weftflow").unwrap();
    for (args, said) in [
        ("flows=0".to_string(), "flows=0: a number from 1 to 100000000 is expected"),
        ("order=sideways".to_string(), "order=sideways: no such order"),
        (format!("table={}", dir.file("short")), "not a table of flows"),
        (format!("pcap={}", dir.file("short")), "not a pcap file"),
        (format!("pcap={}", dir.file("none")), "No such file"),
    ] {
        let mut child = testpmd(&args, "net_null0").spawn().unwrap();
        drop(child.stdin.take());
        let out = child.wait_with_output().unwrap();
        let err = String::from_utf8_lossy(&out.stderr);
        assert!(err.contains(said), "{args}: {err}");
    }
}
