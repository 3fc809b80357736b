use super::*;
use std::collections::BTreeSet;
use template::{L3, L4};

const NOW: Now = Now { ms: 10_000, wall_s: 1_000_000 };

fn at(ms: u64) -> Now {
    Now { ms, ..NOW }
}

fn exporter(active_ms: u64, flows_max: u32) -> Exporter {
    Exporter::new(IpfixSettings { active_ms, flows_max, virtual_id: None }, 77)
}

fn packet(proto: u8) -> Packet {
    let mut p = Packet { eth_type: 0x0800, proto, ports: (7, 80), len: 114, ..Packet::default() };
    p.ip_src[..4].copy_from_slice(&[192, 0, 2, 1]);
    p
}

fn sample<'a>(input: &'a Interface, output: &'a Interface, packet: Packet) -> IpfixSample<'a> {
    IpfixSample {
        domain: 5,
        point: 6,
        packets: 10,
        egress: false,
        input,
        output,
        packet,
        tunnel: None,
        dropped: false,
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |n, b| n << 8 | u64::from(*b))
}

/// Element, length, enterprise.
type Field = (u64, u64, u64);

/// A collector as RFC 7011 has it: element and value of each field of each data record.
#[derive(Default)]
struct Collector {
    templates: BTreeMap<(u64, u64), Vec<Field>>,
    records: Vec<Vec<(u64, Vec<u8>)>>,
    sequence: u64,
}

impl Collector {
    fn receive(&mut self, messages: Vec<Vec<u8>>) {
        for m in messages {
            assert_eq!((number(&m[..2]), number(&m[2..4])), (10, m.len() as u64));
            assert!(m.len() <= MESSAGE_BYTES_MAX);
            assert_eq!(number(&m[8..12]), self.sequence, "records before this message");
            let (domain, mut at) = (number(&m[12..16]), 16);
            while at < m.len() {
                let (id, len) = (number(&m[at..at + 2]), number(&m[at + 2..at + 4]) as usize);
                self.set(domain, id, &m[at + 4..at + len]);
                at += len;
            }
            assert_eq!(at, m.len());
        }
    }

    fn set(&mut self, domain: u64, id: u64, mut b: &[u8]) {
        while !b.is_empty() {
            b = match id {
                2 => self.template(domain, b, 4),
                3 => self.template(domain, b, 6),
                _ => self.record(domain, id, b),
            };
        }
    }

    fn template<'a>(&mut self, domain: u64, b: &'a [u8], header: usize) -> &'a [u8] {
        let (id, n, mut b) = (number(&b[..2]), number(&b[2..4]), &b[header..]);
        let mut fields = Vec::new();
        for _ in 0..n {
            let (element, len) = (number(&b[..2]), number(&b[2..4]));
            let enterprise = if element & 0x8000 != 0 { number(&b[4..8]) } else { 0 };
            b = &b[if enterprise != 0 { 8 } else { 4 }..];
            fields.push((element & 0x7fff, len, enterprise));
        }
        self.templates.insert((domain, id), fields);
        b
    }

    fn record<'a>(&mut self, domain: u64, id: u64, mut b: &'a [u8]) -> &'a [u8] {
        let mut record = Vec::new();
        for (element, len, _) in &self.templates[&(domain, id)] {
            let mut len = *len as usize;
            if len == 65535 {
                len = b[0].into();
                b = &b[1..];
            }
            record.push((*element, b[..len].to_vec()));
            b = &b[len..];
        }
        self.records.push(record);
        self.sequence += 1;
        b
    }
}

fn value(record: &[(u64, Vec<u8>)], element: u64) -> Option<u64> {
    record.iter().find(|(e, _)| *e == element).map(|(_, v)| number(v))
}

#[test]
fn each_shape_has_a_template_of_its_own() {
    let shapes: Vec<_> = template::shapes().collect();
    let ids: Vec<_> = shapes.iter().map(|s| s.id()).collect();
    assert_eq!(ids, (257..257 + 88).collect::<Vec<_>>());
    assert_eq!(shapes.iter().collect::<BTreeSet<_>>().len(), 88);
}

#[test]
fn a_collector_understands_every_shape_by_its_templates() {
    let (input, output) = (
        Interface { index: 3, kind: 6, name: "p3".into(), description: "tap".into() },
        Interface { index: 4, kind: 6, name: "p4".into(), ..Interface::default() },
    );
    let tunnel = Tunnel { kind: 1, proto: 17, id: 0x123456, id_bytes: 3, ..Tunnel::default() };
    let settings = IpfixSettings { virtual_id: Some("weft".into()), ..IpfixSettings::default() };
    let (mut e, mut c) = (Exporter::new(settings, 77), Collector::default());
    for shape in template::shapes() {
        let eth_type = [0x806, 0x800, 0x86dd][shape.l3 as usize];
        let icmp = if shape.l3 == L3::Ipv6 { 58 } else { 1 };
        let proto = [99, 6, 17, 132, icmp][shape.l4 as usize];
        let vlan = if shape.vlan { 0xf07b } else { 0 };
        let p = Packet { eth_type, vlan, tcp_flags: 0x12, tos: 0xb8, ttl: 9, ..packet(proto) };
        let tunnel = shape.tunnel.then_some(tunnel);
        let s = IpfixSample { egress: shape.egress, tunnel, ..sample(&input, &output, p) };
        assert_eq!(s.shape(), shape);
        e.sample(&s, NOW);
        c.receive(e.take(NOW));
    }
    assert_eq!(value(&c.records.remove(0), 144), Some(77), "first the exporter's own");
    for (shape, r) in template::shapes().zip(&c.records) {
        let is = |element, v| assert_eq!(value(r, element), v, "{element} of {shape:?}");
        let when = |there: bool, v: u64| there.then_some(v);
        is(138, Some(6));
        is(61, Some(shape.egress.into()));
        is(10, Some(3));
        is(14, when(shape.egress, 4));
        is(58, when(shape.vlan, 0x7b));
        is(244, when(shape.vlan, 7));
        is(
            4,
            when(
                shape.l3 != L3::Other,
                [99, 6, 17, 132, if shape.l3 == L3::Ipv6 { 58 } else { 1 }][shape.l4 as usize],
            ),
        );
        is(195, when(shape.l3 != L3::Other, 0x2e));
        is(8, when(shape.l3 == L3::Ipv4, 0xc0000201));
        is(11, when(!matches!(shape.l4, L4::Other | L4::Icmp), 80));
        is(178, when(shape.l3 == L3::Ipv6 && shape.l4 == L4::Icmp, 7));
        is(892, when(shape.tunnel, 0x123456));
        is(898, Some(number(b"weft")));
        is(2, Some(10));
        is(352, Some(1140));
        is(136, Some(5));
        is(1, when(shape.l3 != L3::Other, if shape.vlan { 960 } else { 1000 }));
        if shape.l4 == L4::Tcp {
            assert!(value(r, 218) > Some(0) && value(r, 223) == Some(0));
        }
    }
    assert_eq!(c.records.len(), 88);
}

#[test]
fn flows_are_aggregated_until_they_are_told_of() {
    let (mut e, mut c) = (exporter(2000, 2), Collector::default());
    let i = Interface::default();
    let longer = Packet { len: 214, ..packet(17) };
    e.sample(&sample(&i, &i, packet(17)), at(10_000));
    e.sample(&IpfixSample { dropped: true, ..sample(&i, &i, longer) }, at(11_000));
    assert!(!e.run(at(11_999), &mut 9));
    assert!(e.take(NOW).is_empty());
    assert!(!e.run(at(12_000), &mut 9));
    c.receive(e.take(NOW));
    let r = &c.records[1];
    let is = [158, 159, 2, 133, 1, 25, 26, 136].map(|element| value(r, element).unwrap());
    assert_eq!(is, [2_000_000, 1_000_000, 20, 10, 3000, 100, 200, 2]);
    // Of three flows there is room for two.
    for ports in [(1, 1), (2, 2), (3, 3)] {
        e.sample(&sample(&i, &i, Packet { ports, ..packet(17) }), at(20_000));
    }
    c.receive(e.take(NOW));
    assert_eq!((c.records.len(), e.stats().current_flows), (3, 2));
    assert!(!e.finish(at(20_001), &mut 9));
    c.receive(e.take(NOW));
    let ends = c.records[2..].iter().map(|r| (value(r, 7).unwrap(), value(r, 136).unwrap()));
    assert_eq!(ends.collect::<Vec<_>>(), [(1, 5), (2, 4), (3, 4)]);
    let s = e.stats();
    assert_eq!((s.flows, s.current_flows, s.packets, s.ipv4, s.errors), (4, 0, 5, 5, 0));
    // After ten minutes templates come again.
    e.sample(&sample(&i, &i, packet(50)), at(600_000 + 12_000));
    assert!(!e.finish(at(700_000), &mut 9));
    c.templates.clear();
    c.receive(e.take(NOW));
    assert_eq!(c.templates.len(), 89);
    assert_eq!((e.stats().ipv4_errors, e.stats().errors), (1, 1));
}

#[test]
fn each_domain_gets_templates_and_what_is_not_sent_is_lost() {
    let i = Interface::default();
    let mut e = exporter(0, 0);
    let of = |domain| IpfixSample { domain, ..sample(&i, &i, packet(17)) };
    e.sample(&of(1), NOW);
    let (mut one, mut other) = (Collector::default(), Collector::default());
    one.receive(e.take(NOW));
    e.sample(&of(2), NOW);
    other.receive(e.take(NOW));
    assert_eq!((one.records.len(), other.records.len()), (2, 2));
    for n in 0..20_000u32 {
        e.sample(&of(n % 2), NOW);
    }
    assert!(e.lost() > 0);
    assert!(e.take(NOW).len() <= MESSAGES_MAX);
}

#[test]
fn flows_that_end_together_are_reported_some_at_a_time() {
    let (i, mut e) = (Interface::default(), exporter(2000, 100));
    for port in 0..100 {
        e.sample(&sample(&i, &i, Packet { ports: (port, 1), ..packet(17) }), at(10_000));
    }
    let mut left = 30;
    assert!(e.run(at(12_000), &mut left) && left == 0);
    let mut left = 30;
    assert!(e.finish(at(12_000), &mut left) && left == 0);
    let mut left = 60;
    assert!(!e.finish(at(12_000), &mut left) && left == 20);
    let mut c = Collector::default();
    c.receive(e.take(NOW));
    assert_eq!(c.records.len(), 101, "and what is said of the exporter");
}
