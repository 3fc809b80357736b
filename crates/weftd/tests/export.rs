//! What collectors are reported: NetFlow of real traffic, over real sockets.

mod lab;

use lab::*;
use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use testkit::{Frame, L4, Net, Netns, Probe, Raw, Switch, V4, privileged};

/// Packets of which one in four is sampled.
const SAMPLED_PACKETS: usize = 2000;

struct Bench<'a> {
    sw: Switch<'a>,
    probe: Probe,
    collector: UdpSocket,
    target: String,
}

/// Ports v1 and v2 send to each other and end at e1 and e2; a collector in the switch's namespace.
fn bench<'a>(ns: &'a Netns, far: &Netns) -> Bench<'a> {
    let (sw, probe) = start_with_probes(ns, far, 2);
    ns.ip("link set lo up").unwrap();
    let collector = ns.run(|| UdpSocket::bind("127.0.0.1:0")).unwrap();
    collector.set_read_timeout(Some(QUIET)).unwrap();
    let target = collector.local_addr().unwrap().to_string();
    Bench { sw, probe, collector, target }
}

impl Bench<'_> {
    /// Sends `n` frames of UDP from host `from`, and waits until they came out.
    fn send(&self, from: u8, n: usize, body: usize) {
        let to = 3 - from;
        let macs = ([2, 0, 0, 0, 0, to], [2, 0, 0, 0, 0, from]);
        let ips = ([192, 0, 2, from], [192, 0, 2, to]);
        let frame =
            Frame::udp4((macs.1, macs.0), ips, (1000 + u16::from(from), 2000), &vec![7; body]);
        for _ in 0..n {
            let out = self.probe.inject(&format!("e{from}"), &frame.bytes(), QUIET).unwrap();
            assert_eq!(out[&format!("e{to}")].len(), 1);
        }
    }

    /// Datagrams until `enough` says so.
    fn receive(&self, mut enough: impl FnMut(&[Vec<u8>]) -> bool) -> Vec<Vec<u8>> {
        let (end, mut all, mut buffer) = (Instant::now() + WAIT_TIME_MAX, Vec::new(), [0; 2000]);
        while !enough(&all) {
            assert!(Instant::now() < end, "{} datagrams are not enough", all.len());
            if let Ok(n) = self.collector.recv(&mut buffer) {
                all.push(buffer[..n].to_vec());
            }
        }
        all
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |n, b| n << 8 | u64::from(*b))
}

/// A record of NetFlow: last byte of the source; input, output, packets, bytes, ports.
type Reported = (u8, [u64; 6]);

fn records(datagrams: &[Vec<u8>]) -> Vec<Reported> {
    let mut all = Vec::new();
    for d in datagrams {
        assert_eq!((number(&d[..2]), number(&d[2..4])), (5, (d.len() as u64 - 24) / 48));
        assert_eq!(d[20..22], [9, 8], "engine type and id");
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        assert!(wall.as_secs().abs_diff(number(&d[8..12])) < 60);
        for r in d[24..].chunks(48) {
            assert_eq!((&r[..3], &r[4..7], r[38]), (&[192, 0, 2][..], &[192, 0, 2][..], 17));
            let fields = [12..14, 14..16, 16..20, 20..24, 32..34, 34..36];
            all.push((r[3], fields.map(|range| number(&r[range]))));
        }
    }
    all
}

#[test]
fn netflow_reports_every_packet_once() {
    if !privileged() {
        return;
    }
    let (_turn, ns, far) = (turn(), Netns::new().unwrap(), Netns::new().unwrap());
    let b = bench(&ns, &far);
    let target = &b.target;
    vsctl(
        &b.sw,
        &format!(
            "set bridge br0 netflow=@n -- --id=@n create netflow targets=\"{target}\",\"xyzzy\" \
             active_timeout=1 engine_type=9 engine_id=8"
        ),
    );
    b.send(1, 5, 100);
    b.send(2, 3, 50);
    let reported = |all: &[Vec<u8>], from| {
        let of = records(all).into_iter().filter(|r| r.0 == from).collect::<Vec<_>>();
        of.iter().map(|(_, f)| (f[2], f[3])).fold((0, 0), |sum, n| (sum.0 + n.0, sum.1 + n.1))
    };
    let sent = [(5, 5 * 142), (3, 3 * 92)];
    let all = b.receive(|all| [1, 2].map(|from| reported(all, from)) == sent);
    for (from, [input, output, _, _, src, dst]) in records(&all) {
        let from = u64::from(from);
        assert_eq!([input, output, src, dst], [from, 3 - from, 1000 + from, 2000]);
    }
    std::thread::sleep(Duration::from_secs(2));
    assert!(b.receive(|_| true).is_empty(), "nothing came, and nothing is reported");
    let log = b.sw.log();
    assert_eq!(log.matches("couldn't open connection to collector xyzzy").count(), 1, "{log}");
    vsctl(&b.sw, "clear bridge br0 netflow");
    b.send(2, 3, 50);
    std::thread::sleep(Duration::from_secs(2));
    assert!(b.receive(|_| true).is_empty(), "the bridge does not export any more");
    let failed = appctl(&b.sw, "coverage/read-counter export_failed");
    assert_eq!(failed.trim(), "0");
}

#[test]
fn tcp_flags_of_a_flows_packets_are_reported_together() {
    if !privileged() {
        return;
    }
    let (_turn, ns, far) = (turn(), Netns::new().unwrap(), Netns::new().unwrap());
    let b = bench(&ns, &far);
    let target = &b.target;
    vsctl(
        &b.sw,
        &format!(
            "set bridge br0 netflow=@n -- --id=@n create netflow targets=\"{target}\" \
             active_timeout=2"
        ),
    );
    for flags in [2, 0x10, 0x11] {
        let l4 = L4::Tcp(5, 80, 1, 1, flags, vec![]);
        let v4 = V4::new([192, 0, 2, 1], [192, 0, 2, 2], l4);
        let frame = Frame::new([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1], Net::V4(v4));
        b.probe.inject("e1", &frame.bytes(), QUIET).unwrap();
    }
    let records = |all: &[Vec<u8>]| {
        let each = all.iter().flat_map(|d| d[24..].chunks(48));
        each.fold((0, 0), |sum, r| (sum.0 + number(&r[16..20]), sum.1 | r[37]))
    };
    let all = b.receive(|all| records(all).0 == 3);
    assert_eq!(records(&all), (3, 0x13));
}

/// Words of samples of one kind: 1 of packets, 2 of counters.
fn samples(datagrams: &[Vec<u8>], kind: u32) -> Vec<Vec<u32>> {
    let mut all = Vec::new();
    for (n, d) in datagrams.iter().enumerate() {
        let words: Vec<u32> = d.chunks(4).map(|w| number(w) as u32).collect();
        assert_eq!(words[..3], [5, 1, 0x7f00_0001], "version and agent");
        assert_eq!(words[4], n as u32 + 1, "no datagram is missing");
        let mut rest = &words[7..];
        for _ in 0..words[6] {
            let (sample, later) = rest[2..].split_at(rest[1] as usize / 4);
            if rest[0] == kind {
                all.push(sample.to_vec());
            }
            rest = later;
        }
        assert!(rest.is_empty());
    }
    all
}

/// A record of a sample, which begins at word `at`.
fn record(sample: &[u32], mut at: usize, kind: u32) -> &[u32] {
    while sample[at] != kind {
        at += 2 + sample[at + 1] as usize / 4;
    }
    &sample[at + 2..][..sample[at + 1] as usize / 4]
}

#[test]
fn sflow_samples_packets_and_counters() {
    if !privileged() {
        return;
    }
    let (_turn, ns, far) = (turn(), Netns::new().unwrap(), Netns::new().unwrap());
    let b = bench(&ns, &far);
    let target = &b.target;
    vsctl(
        &b.sw,
        &format!(
            "set bridge br0 sflow=@s -- --id=@s create sflow targets=\"{target}\" agent=lo \
             sampling=1 polling=1 header=64"
        ),
    );
    b.send(1, 3, 100);
    let index = |port: &str| iface(&b.sw, port, "ifindex").parse::<u32>().unwrap();
    let ports = [index("v1"), index("v2")];
    let received = |all: &[Vec<u8>]| {
        let counters = samples(all, 2);
        let mut of_v1 = counters.iter().filter(|c| c[1] == ports[0]);
        of_v1.any(|c| record(c, 3, 1)[8] >= 3)
    };
    let all = b.receive(|all| samples(all, 1).len() == 3 && received(all));
    for (n, s) in samples(&all, 1).iter().enumerate() {
        let n = n as u32 + 1;
        assert_eq!(s[..7], [n, 2 << 24 | 1000, 1, n, 0, ports[0], ports[1]]);
        let header = record(s, 8, 1);
        assert_eq!(header[..4], [1, 142 + 4, 4, 64]);
        let bytes: Vec<u8> = header[4..].iter().flat_map(|w| w.to_be_bytes()).collect();
        assert_eq!((bytes.len(), &bytes[26..34]), (64, &[192, 0, 2, 1, 192, 0, 2, 2][..]));
    }
    let text = appctl(&b.sw, "dpctl/dump-flows");
    assert!(text.contains("userspace(pid=0,sFlow(vid=0,pcp=0,output="), "{text}");
    // One of four: about as many as that, and all packets are forwarded.
    vsctl(&b.sw, "set sflow . sampling=4 polling=0");
    let raw = Raw::open(&far, "e1").unwrap();
    let (macs, ips) = (([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]), ([192, 0, 2, 1], [192, 0, 2, 2]));
    let frame = Frame::udp4(macs, ips, (1001, 2000), &[7; 60]).bytes();
    for n in 0..SAMPLED_PACKETS {
        raw.send(&frame).unwrap();
        if n % 100 == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    let all = SAMPLED_PACKETS + 3;
    wait_for("all packets", || {
        ofctl(&b.sw, "dump-flows br0 in_port=1").contains(&format!("n_packets={all},"))
    });
    std::thread::sleep(Duration::from_secs(2));
    let mut datagrams = Vec::new();
    let mut buffer = [0; 2000];
    while let Ok(n) = b.collector.recv(&mut buffer) {
        datagrams.push(buffer[..n].to_vec());
    }
    let taken = samples(&datagrams, 1).len();
    // Six standard deviations on both sides.
    assert!(taken.abs_diff(SAMPLED_PACKETS / 4) < 120, "{taken} samples");
    vsctl(&b.sw, "clear bridge br0 sflow");
    b.send(1, 1, 100);
    let text = appctl(&b.sw, "dpctl/dump-flows");
    assert!(!text.contains("sFlow"), "{text}");
}

/// Elements and lengths of a template of IPFIX.
type Template = Vec<(u64, usize)>;

/// Values of IPFIX's data records by element; what templates before them say counts.
fn ipfix_records(messages: &[Vec<u8>]) -> Vec<BTreeMap<u64, u64>> {
    let (mut templates, mut all) = (BTreeMap::<u64, Template>::new(), Vec::new());
    for m in messages {
        assert_eq!((number(&m[..2]), number(&m[2..4])), (10, m.len() as u64));
        let mut sets = &m[16..];
        while !sets.is_empty() {
            let (id, len) = (number(&sets[..2]), number(&sets[2..4]) as usize);
            let (mut body, later) = (&sets[4..len], &sets[len..]);
            match id {
                2 => {
                    while !body.is_empty() {
                        body = ipfix_template(&mut templates, body);
                    }
                }
                3 | 256 => {}
                id => {
                    let mut record = BTreeMap::new();
                    for (element, len) in &templates[&id] {
                        let len = if *len == 65535 { 1 + usize::from(body[0]) } else { *len };
                        let from = usize::from(*element >= 82 && *element <= 83);
                        record.insert(*element, number(&body[from..len.min(from + 8)]));
                        body = &body[len..];
                    }
                    assert!(body.is_empty());
                    all.push(record);
                }
            }
            sets = later;
        }
    }
    all
}

fn ipfix_template<'a>(all: &mut BTreeMap<u64, Template>, b: &'a [u8]) -> &'a [u8] {
    let (id, n, mut b) = (number(&b[..2]), number(&b[2..4]), &b[4..]);
    let mut template = Vec::new();
    for _ in 0..n {
        let (element, len) = (number(&b[..2]), number(&b[2..4]) as usize);
        b = &b[if element & 0x8000 != 0 { 8 } else { 4 }..];
        template.push((element & 0x7fff, len));
    }
    all.insert(id, template);
    b
}

#[test]
fn ipfix_reports_samples_of_bridges_and_of_flows() {
    if !privileged() {
        return;
    }
    let (_turn, ns, far) = (turn(), Netns::new().unwrap(), Netns::new().unwrap());
    let b = bench(&ns, &far);
    let target = &b.target;
    vsctl(
        &b.sw,
        &format!(
            "set bridge br0 ipfix=@i -- --id=@i create ipfix targets=\"{target}\" sampling=1 \
             obs_domain_id=7 obs_point_id=8 cache_active_timeout=1 cache_max_flows=100"
        ),
    );
    b.send(1, 3, 100);
    // Packets as they came in, and as they went out.
    let sum = |all: &[Vec<u8>], direction| {
        let records = ipfix_records(all);
        let of = records.iter().filter(|r| r.get(&61) == Some(&direction));
        of.map(|r| r[&2]).sum::<u64>()
    };
    let all = b.receive(|all| [0, 1].map(|direction| sum(all, direction)) == [3, 3]);
    for r in ipfix_records(&all) {
        assert_eq!((r[&138], r[&8], r[&12]), (8, 0xc000_0201, 0xc000_0202));
        assert_eq!((r[&7], r[&11], r[&4], r[&1]), (1001, 2000, 17, r[&2] * 128));
    }
    assert!(all.iter().all(|m| number(&m[12..16]) == 7), "the domain");
    let text = ofctl(&b.sw, "dump-ipfix-bridge br0");
    assert!(text.contains("sampled pkts=6, ipv4 ok=6"), "{text}");
    // For a collector set, as a flow says.
    vsctl(&b.sw, "clear bridge br0 ipfix");
    vsctl(
        &b.sw,
        &format!(
            "--id=@b get bridge br0 -- --id=@i create ipfix targets=\"{target}\" -- \
             create Flow_Sample_Collector_Set id=5 bridge=@b ipfix=@i"
        ),
    );
    let sample = "sample(probability=65535,collector_set_id=5,obs_domain_id=9,obs_point_id=6)";
    ofctl(&b.sw, &format!("mod-flows br0 in_port=1,actions={sample},2"));
    b.send(1, 2, 100);
    let all = b.receive(|all| sum(all, 0) == 2);
    let last = all.last().unwrap();
    assert_eq!(number(&last[12..16]), 9);
    assert!(ipfix_records(&all).iter().all(|r| r[&138] == 6));
    let text = ofctl(&b.sw, "dump-ipfix-flow br0");
    assert!(text.contains("id   5: flows=2"), "{text}");
}
