//! Outer packets: header and inner packet in one pass (`strip`) against its twin, which parses the
//! outer header, removes it and parses again; with VXLAN and Geneve. ERSPAN, GTP-U, GRE and
//! VXLAN-GPE against a slow parser.

use crate::parse::bed::{Bed, Rule, bed, rule};
use crate::parse::slow;
use action::{Op, TunnelKind};
use datapath::Settings;
use flow::{Field, Key, at, flag};
use std::cell::RefCell;

/// Datapath ports: the underlay, the tunnels' number, another one.
const PHY: u16 = 0;
const TUNNEL: u16 = 1;
const OUT: u16 = 2;
/// Bytes of a frame that fit a buffer.
const FRAME_BYTES_MOST: usize = 1900;

fn on(port: u16, fields: &[(Field, u128)], ops: Vec<Op>, credit: u32) -> Rule {
    let mut r = rule(fields, ops, credit);
    r.key.set_u16(at::IN_PORT, port);
    r.mask.set_u16(at::IN_PORT, 0xffff);
    r
}

fn rules(kind: TunnelKind) -> Vec<Rule> {
    let pop = Op::TunnelPop { port: TUNNEL, kind, options: vec![0x901, 0x902].into() };
    let outer = [
        (Field::EthType, 0x0800),
        (Field::IpProto, 17),
        (Field::IpFrag, 0),
        (Field::Ipv4Dst, 0x0a00_0001),
        (Field::UdpDst, 4789),
    ];
    vec![
        on(PHY, &outer, vec![pop], 1),
        on(TUNNEL, &[(Field::TunId, 1)], vec![Op::Output(OUT)], 2),
        on(TUNNEL, &[(Field::EthType, 0x0800)], vec![Op::PopVlan, Op::Output(OUT)], 3),
        on(TUNNEL, &[], vec![Op::Output(PHY)], 4),
        on(PHY, &[], vec![Op::Output(OUT)], 5),
    ]
}

/// Two beds with equal rules for one kind of tunnel: the first decapsulates in one pass, the second
/// in two.
fn pair(kind: TunnelKind) -> [Bed; 2] {
    [true, false].map(|one_pass| {
        let mut b = bed(3);
        b.dp.set_settings(Settings { one_pass, validate: one_pass, ..Settings::default() });
        b.set_rules(rules(kind));
        // So that the rule is known by which the outer header goes.
        for _ in 0..4 {
            (0..32).for_each(|_| b.peers[0].send(&seeds()[0][1..]));
            b.run();
            b.peers.iter().for_each(|p| drop(p.drain()));
        }
        b
    })
}

thread_local! {
    static BEDS: RefCell<[[Bed; 2]; 2]> =
        RefCell::new([pair(TunnelKind::Vxlan), pair(TunnelKind::Geneve)]);
    static SLOW: RefCell<Bed> = RefCell::new(bed(3));
}

/// Decapsulates one kind; what comes out with all the fields that the slow parser found goes to
/// [`OUT`].
fn slow_rules(kind: TunnelKind, found: &Key) -> Vec<Rule> {
    const READ: [Field; 8] = [
        Field::TunId,
        Field::TunSrc,
        Field::TunErspanVer,
        Field::TunErspanIdx,
        Field::TunErspanDir,
        Field::TunErspanHwid,
        Field::TunGtpuFlags,
        Field::TunGtpuMsgtype,
    ];
    let pop = Op::TunnelPop { port: TUNNEL, kind, options: [].into() };
    let outer = [(Field::EthType, 0x0800), (Field::IpProto, if kind.is_gre() { 47 } else { 17 })];
    let mut wanted = on(TUNNEL, &READ.map(|f| (f, f.get(found))), vec![Op::Output(OUT)], 2);
    wanted.key.bytes_mut()[at::FLAGS] |= found.u8(at::FLAGS);
    wanted.mask.bytes_mut()[at::FLAGS] |= flag::BARE;
    vec![
        on(PHY, &outer, vec![pop], 1),
        wanted,
        on(TUNNEL, &[], vec![Op::Output(PHY)], 3),
        on(PHY, &[], vec![], 4),
    ]
}

/// The frame comes out with the fields that the slow parser finds, or does not.
fn against_slow(b: &mut Bed, kind: TunnelKind, frame: &[u8]) {
    let tagged = matches!(frame[12..14], [0x81, 0] | [0x88, 0xa8]);
    let found = match kind {
        _ if tagged => None,
        TunnelKind::Erspan => slow::erspan(frame),
        TunnelKind::Gre => slow::gre(frame),
        TunnelKind::Vxlan => slow::vxlan(frame),
        _ => slow::gtpu(frame),
    };
    b.set_rules(slow_rules(kind, &found.as_ref().map_or(Key::ZERO, |(key, _)| *key)));
    let ([to_phy, to_out], _) = outcome(b, frame);
    if !tagged {
        let want = found.map_or(Vec::new(), |(_, inner)| vec![inner; 3]);
        assert_eq!((to_phy, to_out), (Vec::new(), want), "the slow parser differs");
    }
}

/// What comes out of each port, in any order, and drops by reason.
fn outcome(b: &mut Bed, frame: &[u8]) -> ([Vec<Vec<u8>>; 2], Vec<u64>) {
    let before = b.dp.totals().drops.to_vec();
    (0..3).for_each(|_| b.peers[0].send(frame));
    b.run();
    let got = [PHY, OUT].map(|p| {
        let mut all = b.peers[usize::from(p)].drain();
        all.sort();
        all
    });
    assert_eq!(b.pool.in_use(), 0, "a buffer leaked");
    let differences: u64 = b.dp.perf().iter().map(|(_, p)| p.differences).sum();
    assert_eq!(differences, 0, "the validating mode found a difference");
    let drops = b.dp.totals().drops.iter().zip(before).map(|(now, old)| now - old).collect();
    (got, drops)
}

pub fn run(data: &[u8]) {
    let Some((kind, frame)) = data.split_first() else { return };
    if !(14..=FRAME_BYTES_MOST).contains(&frame.len()) {
        return;
    }
    let mut frame = frame.to_vec();
    // Half of the inputs with the IP header's checksum made right, which bytes hardly are.
    if kind & 2 != 0 {
        testkit::fix_checksums(&mut frame);
    }
    if kind & 4 != 0 {
        let kind = match kind & 9 {
            0 => TunnelKind::Erspan,
            1 => TunnelKind::Gtpu,
            8 => TunnelKind::Gre,
            _ => TunnelKind::Vxlan,
        };
        return SLOW.with_borrow_mut(|b| against_slow(b, kind, &frame));
    }
    BEDS.with_borrow_mut(|beds| {
        let [one, two] = &mut beds[usize::from(kind & 1)];
        let (fast, slow) = (outcome(one, &frame), outcome(two, &frame));
        assert_eq!(fast.0, slow.0, "one pass sends something else");
        assert_eq!(fast.1, slow.1, "one pass drops for other reasons");
    });
}

pub fn seeds() -> Vec<Vec<u8>> {
    use testkit::{Frame, L4, Net, V4};
    let (a, b) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    let v4 = |l4| Net::V4(V4::new([10, 0, 0, 2], [10, 0, 0, 1], l4));
    let inner = Frame::new(a, b, v4(L4::Udp(5, 6, vec![9; 20]))).bytes();
    let arp = Frame::arp_request(a, [1, 2, 3, 4], [1, 2, 3, 5]).bytes();
    let outer = |kind: u8, header: &[u8], inner: &[u8], sum: bool| {
        let mut f = Frame::new(b, a, v4(L4::Udp(7, 4789, [header, inner].concat()))).bytes();
        if !sum {
            f[40..42].fill(0);
        }
        [vec![kind], f].concat()
    };
    let vxlan = |id: u8| [8, 0, 0, 0, 0, 0, id, 0];
    let geneve = |words: u8, flags: u8| [words, flags, 0x65, 0x58, 0, 0, 1, 0];
    let options = [&geneve(2, 0)[..], &[0, 9, 1, 1, 1, 2, 3, 4]].concat();
    let erspan = |header: &[u8], inner: &[u8]| {
        let body = [header, inner].concat();
        [vec![6], Frame::new(b, a, v4(L4::Other(47, body))).bytes()].concat()
    };
    let gre = |header: &[u8], inner: &[u8]| {
        let body = [header, inner].concat();
        [vec![14], Frame::new(b, a, v4(L4::Other(47, body))).bytes()].concat()
    };
    let second = [0x10, 0, 0x88, 0xbe, 0, 0, 0, 1, 0x10, 0, 0, 0x7b, 0, 0, 0, 3];
    let third = [0x10, 0, 0x22, 0xeb, 0, 0, 0, 1, 0x20, 0, 2, 0x37, 1, 2, 3, 4, 0, 0, 3, 0x78];
    vec![
        outer(0, &vxlan(1), &inner, false),
        outer(0, &vxlan(2), &arp, false),
        outer(0, &vxlan(1), &inner, true),
        outer(2, &[0, 0, 0, 0, 0, 0, 1, 0], &inner, false),
        outer(1, &geneve(0, 0), &inner, false),
        outer(1, &options, &inner, false),
        outer(3, &geneve(1, 0x40), &arp, false),
        outer(0, &vxlan(1), &arp[..20], false),
        erspan(&second, &inner),
        erspan(&third, &arp),
        erspan(&third, &arp[..13]),
        outer(7, &[0x30, 255, 0, 20, 0, 1, 2, 3], &inner[14..], false),
        outer(7, &[0x32, 255, 0, 24, 0, 1, 2, 3, 0, 1, 0, 0], &inner[14..], true),
        outer(7, &[0x34, 255, 0, 24, 0, 1, 2, 3, 0, 1, 0, 0x85], &inner[14..], true),
        outer(7, &[0x32, 1, 0, 4, 0, 0, 0, 0], &[0, 1, 0, 0], true),
        gre(&[0, 0, 8, 0], &inner[14..]),
        gre(&[0x20, 0, 0x65, 0x58, 0, 0, 0, 9], &inner),
        gre(&[0xb0, 0, 0x88, 0x47, 0x77, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[]),
        gre(&[0, 0, 0x81, 0], &arp[12..]),
        outer(15, &[0xc, 0, 0, 1, 0, 0, 1, 0], &inner[14..], false),
        outer(15, &[0xc, 0, 0, 2, 0, 0, 2, 0], &inner[14..], true),
        outer(15, &[0xc, 0, 0, 3, 0, 0, 1, 0], &arp, false),
        outer(15, &[0xc, 0, 0, 4, 0, 0, 1, 0], &arp, false),
        outer(15, &[0xd, 0, 0, 1, 0, 0, 1, 0], &inner[14..], false),
        outer(2, &[0xc, 0, 0, 3, 0, 0, 1, 0], &inner, false),
        outer(2, &[0xc, 0, 0, 1, 0, 0, 1, 0], &inner[14..], false),
    ]
}
