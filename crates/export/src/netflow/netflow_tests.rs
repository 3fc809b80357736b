use super::*;

const S: u64 = 1000;
const FLOW: IpFlow = IpFlow {
    in_port: 1,
    src: [192, 0, 2, 1],
    dst: [192, 0, 2, 2],
    proto: 6,
    tos: 0xb9,
    ports: (1234, 80),
};

fn exporter(active_ms: u64) -> Exporter {
    let settings =
        NetFlowSettings { engine_type: 2, engine_id: 3, active_ms, ..NetFlowSettings::default() };
    Exporter::new(settings, 5 * S)
}

fn traffic(packets: u64, bytes: u64, used_ms: u64) -> Traffic {
    Traffic { packets, bytes, used_ms }
}

fn u16_at(d: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([d[at], d[at + 1]])
}

fn u32_at(d: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(d[at..at + 4].try_into().unwrap())
}

/// Output, packets and bytes of every record.
fn records(e: &mut Exporter) -> Vec<(u16, u32, u32)> {
    let records = |d: Vec<u8>| {
        assert_eq!((d.len() - 24) / 48, usize::from(u16_at(&d, 2)));
        let each = d[24..].chunks(48).map(|r| (u16_at(r, 14), u32_at(r, 16), u32_at(r, 20)));
        each.collect::<Vec<_>>()
    };
    e.take((7, 8)).into_iter().flat_map(records).collect()
}

fn look(e: &mut Exporter, now_ms: u64) -> Vec<(u16, u32, u32)> {
    e.begin();
    while e.run(now_ms, &mut 3) {}
    records(e)
}

#[test]
fn a_datagram_has_ciscos_layout() {
    let mut e = exporter(0);
    e.update(&FLOW, 2, 0x12, traffic(3, 300, 7 * S));
    e.begin();
    assert!(!e.run(17 * S, &mut 1));
    let d = e.take((7, 8)).pop().unwrap();
    let header = [u16_at(&d, 0), u16_at(&d, 2)];
    assert_eq!(header, [5, 1]);
    assert_eq!([4, 8, 12, 16].map(|at| u32_at(&d, at)), [12_000, 7, 8, 0]);
    assert_eq!(d[20..24], [2, 3, 0, 0]);
    let r = &d[24..];
    assert_eq!((&r[..4], &r[4..8], u32_at(r, 8)), (&FLOW.src[..], &FLOW.dst[..], 0));
    assert_eq!([12, 14].map(|at| u16_at(r, at)), [1, 2]);
    assert_eq!([16, 20, 24, 28].map(|at| u32_at(r, at)), [3, 300, 2000, 2000]);
    assert_eq!([32, 34].map(|at| u16_at(r, at)), [1234, 80]);
    assert_eq!(r[36..], [0, 0x12, 6, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn type_and_code_of_icmp_are_the_destination_port() {
    let mut e = exporter(0);
    e.update(&IpFlow { proto: 1, ports: (8, 3), ..FLOW }, 2, 0, traffic(1, 100, 6 * S));
    assert!(!e.finish(6 * S, &mut 9));
    let d = e.take((0, 0)).pop().unwrap();
    assert_eq!([u16_at(&d, 24 + 32), u16_at(&d, 24 + 34)], [0, 0x803]);
}

#[test]
fn the_engine_is_in_the_interfaces_if_that_is_asked_for() {
    let mut e = exporter(0);
    let settings = e.settings.clone();
    e.configure(NetFlowSettings { engine_id: 0xff, add_id_to_interface: true, ..settings });
    e.update(&FLOW, output::FLOOD, 0, traffic(1, 100, 6 * S));
    assert!(!e.finish(6 * S, &mut 9));
    let d = e.take((0, 0)).pop().unwrap();
    assert_eq!([12, 14].map(|at| u16_at(&d, 24 + at)), [0xfe01, 0xffff]);
}

#[test]
fn flows_are_told_of_when_their_output_changes_and_when_they_are_idle() {
    let mut e = exporter(0);
    e.update(&FLOW, output::FLOOD, 0, traffic(1, 100, 6 * S));
    e.update(&FLOW, 2, 0, traffic(0, 0, 7 * S));
    e.update(&FLOW, 2, 0, traffic(2, 210, 8 * S));
    assert_eq!(records(&mut e), [(output::FLOOD, 1, 100)]);
    assert_eq!(look(&mut e, 17 * S), []);
    assert_eq!(look(&mut e, 18 * S), [(2, 2, 210)]);
    assert!(e.flows.is_empty() && e.round.is_empty());
}

#[test]
fn active_flows_are_told_of_again_and_again() {
    let mut e = exporter(30 * S);
    let mut reported = Vec::new();
    for second in 6..=96 {
        e.update(&FLOW, 2, 0, traffic(1, 100, second * S));
        reported.extend(look(&mut e, second * S));
    }
    assert_eq!(reported, [(2, 31, 3100), (2, 30, 3000), (2, 30, 3000)]);
}

#[test]
fn counters_that_a_record_is_too_small_for_take_several() {
    let mut e = exporter(0);
    let bytes = 3 * u64::from(u32::MAX) + 2;
    e.update(&FLOW, 2, 0, traffic(10, bytes, 6 * S));
    assert!(!e.finish(6 * S, &mut 9));
    let all = records(&mut e);
    assert_eq!(all.len(), 4);
    let sum = |f: fn(&(u16, u32, u32)) -> u32| all.iter().map(|r| u64::from(f(r))).sum::<u64>();
    assert_eq!((sum(|r| r.1), sum(|r| r.2)), (10, bytes));
    e.update(&FLOW, 2, 0, traffic(1, u64::MAX, 7 * S));
    assert!(!e.finish(7 * S, &mut 9));
    assert_eq!(records(&mut e), [], "no counter is that large");
}

#[test]
fn many_flows_take_datagrams_of_thirty_and_beyond_the_bound_the_first_ones_end() {
    let mut e = exporter(0);
    for n in 0..FLOWS_MAX as u32 + 67 {
        let flow = IpFlow { src: n.to_be_bytes(), ..FLOW };
        e.update(&flow, 2, 0, traffic(2, 200, 6 * S));
        e.begin();
    }
    assert_eq!((e.flows.len(), e.full()), (FLOWS_MAX, 2));
    assert_eq!(records(&mut e), [(2, 2, 200); 67], "nothing is lost");
    let mut turns = 1;
    while e.run(20 * S, &mut 1000) {
        turns += 1;
    }
    assert_eq!(turns, FLOWS_MAX.div_ceil(1000));
    let all = e.take((0, 0));
    assert_eq!(all.len(), FLOWS_MAX.div_ceil(30));
    let sequences = all.iter().map(|d| u32_at(d, 16));
    assert!(sequences.enumerate().all(|(i, n)| n as usize == 67 + 30 * i));
}

#[test]
fn flows_that_end_together_are_reported_some_at_a_time() {
    let mut e = exporter(0);
    for n in 0..100u32 {
        e.update(&IpFlow { src: n.to_be_bytes(), ..FLOW }, 2, 0, traffic(1, 100, 6 * S));
    }
    let mut left = 30;
    assert!(e.finish(6 * S, &mut left) && left == 0);
    assert_eq!(records(&mut e).len(), 30);
    let mut left = 90;
    assert!(!e.finish(6 * S, &mut left) && left == 20);
    assert_eq!(records(&mut e).len(), 70);
}
