use super::*;
use std::net::{Ipv4Addr, Ipv6Addr};

fn settings() -> SflowSettings {
    SflowSettings {
        agent: Ipv4Addr::new(192, 0, 2, 9).into(),
        sub_agent: 3,
        sampling: 10,
        polling_s: 1,
        header_bytes: 6,
    }
}

fn words(d: &[u8]) -> Vec<u32> {
    assert_eq!(d.len() % 4, 0);
    d.chunks(4).map(|w| u32::from_be_bytes(w.try_into().unwrap())).collect()
}

fn sample<'a>() -> FlowSample<'a> {
    FlowSample {
        input: 7,
        output: Output::Interface(8),
        header: &[1, 2, 3, 4, 5, 6, 7],
        len: 100,
        vlans: [(5, 1), (6, 2)],
        tunnel_in: None,
        tunnel_out: None,
        labels: &[],
    }
}

#[test]
fn a_flow_sample_has_the_layout_of_version_5() {
    let mut a = Agent::new(settings(), 1000);
    a.sample(&sample());
    a.flush(1500);
    let d = a.take().pop().unwrap();
    let w = words(&d);
    assert_eq!(w[..7], [5, 1, 0xc0000209, 3, 1, 500, 1], "the datagram");
    assert_eq!(w[7..9], [1, d.len() as u32 - 36], "the sample");
    assert_eq!(w[9..17], [1, 2 << 24 | 1003, 10, 10, 0, 7, 8, 2]);
    assert_eq!(w[17..23], [1001, 16, 5, 1, 6, 2], "VLANs");
    let header = [1, 24, 1, 104, 4, 6, 0x01020304, 0x05060000];
    assert_eq!(w[23..], header, "the header is cut, and filled up to a word");
    a.sample(&FlowSample { output: Output::Dropped, ..sample() });
    a.sample(&FlowSample { output: Output::Ports(3), ..sample() });
    a.dropped(2);
    a.sample(&sample());
    a.flush(1500);
    let w = words(&a.take().pop().unwrap());
    let each = w[7..].chunks(24).map(|s| (s[2], s[5], s[6], s[8]));
    let is = [(2, 20, 0, 1 << 30 | 256), (3, 30, 0, 2 << 30 | 3), (4, 40, 2, 8)];
    assert_eq!(each.collect::<Vec<_>>(), is);
}

#[test]
fn headers_that_came_and_went_have_records_of_their_own() {
    let mut a = Agent::new(settings(), 1000);
    let tunnel = Tunnel { proto: 17, dst: [1; 4], ports: (9, 4789), id: 77, ..Tunnel::default() };
    let tunnel_in = Some(Tunnel { id: 0, ..tunnel });
    let labels = &[0x1140, 0x2140];
    a.sample(&FlowSample { tunnel_in, tunnel_out: Some(tunnel), labels, ..sample() });
    a.flush(1500);
    let w = words(&a.take().pop().unwrap());
    assert_eq!(w[16], 6, "records");
    assert_eq!(w[31..40], [1006, 24, 1, 0, 0, 2, 0x1040, 0x2140, 1023]);
    let outer = [0, 17, 0, 0x01010101, 9, 4789, 0, 0];
    assert_eq!(w[41..49], outer);
    assert_eq!(w[49..54], [1029, 4, 77, 1024, 32]);
    assert_eq!(w[54..], outer);
}

#[test]
fn counters_come_by_turns_and_full_datagrams_at_once() {
    let mut a = Agent::new(SflowSettings { polling_s: 2, ..settings() }, 1000);
    a.set_interfaces([4, 5].into_iter());
    assert_eq!(a.tick(1999), None);
    let turns: Vec<_> = (2..6).map(|s| a.tick(s * 1000).unwrap()).collect();
    let (one, other) = (vec![Source::Switch, Source::Interface(4)], vec![Source::Interface(5)]);
    assert_eq!(turns, [one.clone(), other.clone(), one, other]);
    let c = InterfaceCounters { index: 4, in_octets: 1 << 33, ..InterfaceCounters::default() };
    for _ in 0..8 {
        let name = Block::PortName("p1");
        let ethernet = Block::Ethernet(EthernetCounters::UNKNOWN);
        let port = Block::OpenFlowPort(1, 2);
        a.counters(Source::Interface(4), &[Block::Interface(&c), name, port, ethernet]);
    }
    let full = a.take();
    assert_eq!(full.iter().map(Vec::len).collect::<Vec<_>>(), [28 + 6 * 212]);
    let w = words(&full[0]);
    assert_eq!(w[7..12], [2, 204, 1, 4, 4], "kind, length, sequence, source, blocks");
    assert_eq!(w[12..24], [1, 88, 4, 6, 0, 0, 0, 0, 2, 0, 0, 0]);
    a.counters(Source::Interface(6), &[]);
    a.flush(9000);
    assert_eq!(words(&a.take()[0])[6], 2, "there is no such interface");
}

#[test]
fn an_agent_may_have_an_ipv6_address_and_what_is_not_sent_is_lost() {
    let agent = Ipv6Addr::LOCALHOST.into();
    let mut a = Agent::new(SflowSettings { agent, ..settings() }, 1000);
    for _ in 0..DATAGRAMS_MAX + 3 {
        a.sample(&sample());
        a.flush(1000);
    }
    let all = a.take();
    assert_eq!((all.len(), a.lost()), (DATAGRAMS_MAX, 3));
    assert_eq!(words(&all[0])[..7], [5, 2, 0, 0, 0, 1, 3]);
}
