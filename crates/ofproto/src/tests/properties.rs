//! Laws that hold for whatever flows and packets: megaflows, regions, flow-mods.

use crate::tests::{Lab, flow, matching, out, packet};
use crate::*;
use ::action::Decision;
use flow::{Field, Key, at};
use openflow::*;

/// A small generator (xorshift), so that a failure has a seed.
pub(crate) struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    pub fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 16) % n
    }
    fn pick<'a>(&mut self, list: &[&'a str]) -> &'a str {
        list[self.below(list.len() as u64) as usize]
    }
    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

const KINDS: &[&str] = &["ip", "tcp", "udp", "arp", "ipv6", "tcp6", "icmp", "mpls", NSH];
const NSH: &str = "dl_type=0x894f";
const IPS: &[&str] = &["10.0.0.1", "10.0.0.2", "10.1.0.1", "192.168.0.1"];
const PREFIXES: &[&str] = &["10.0.0.0/24", "10.0.0.0/8", "10.0.0.1", "192.168.0.0/16"];
const MACS: &[&str] = &["00:00:00:00:00:01", "00:00:00:00:00:02", "00:00:00:00:00:03"];

fn random_match(r: &mut Rng) -> String {
    let mut out = Vec::new();
    let kind = r.pick(KINDS);
    if r.chance(70) {
        out.push(kind.to_string());
        if matches!(kind, "ip" | "tcp" | "udp" | "icmp") {
            if r.chance(40) {
                out.push(format!("nw_dst={}", r.pick(PREFIXES)));
            }
            if r.chance(20) {
                out.push(format!("nw_ttl={}", r.below(3)));
            }
        }
        if matches!(kind, "tcp" | "udp" | "tcp6") && r.chance(40) {
            out.push(format!("tp_dst={}", 80 + r.below(2)));
        }
        if kind == NSH && r.chance(60) {
            out.push(format!("nsh_{}={}", r.pick(&["ttl", "np", "si", "c1"]), r.below(3)));
        }
    }
    if r.chance(40) {
        out.push(format!("in_port={}", 1 + r.below(4)));
    }
    if r.chance(25) {
        out.push(format!("dl_dst={}", r.pick(MACS)));
    }
    match r.below(8) {
        0 => out.push("dl_vlan=5".into()),
        1 => out.push("vlan_tci=0".into()),
        2 => out.push(format!("reg0={}", r.below(2))),
        3 => out.push(format!("metadata={}", r.below(2))),
        _ => {}
    }
    out.join(",")
}

fn random_packet(r: &mut Rng) -> Key {
    let mut text =
        format!("in_port={},dl_src={},dl_dst={}", 1 + r.below(4), r.pick(MACS), r.pick(MACS));
    let kind = r.pick(KINDS);
    text += &format!(",{kind}");
    if matches!(kind, "ip" | "tcp" | "udp" | "icmp") {
        text += &format!(",nw_src={},nw_dst={}", r.pick(IPS), r.pick(IPS));
        text += &format!(",nw_ttl={},nw_tos={}", r.below(3), 4 * r.below(3));
    }
    if matches!(kind, "tcp" | "udp" | "tcp6") {
        text += &match r.chance(20) {
            true => ",tp_src=67,tp_dst=68".to_string(),
            false => format!(",tp_src={},tp_dst={}", 80 + r.below(2), 80 + r.below(2)),
        };
    }
    if r.chance(30) {
        text += &format!(",dl_vlan={},dl_vlan_pcp={}", 5 + r.below(2), r.below(2));
    }
    if kind == NSH {
        text += &format!(",nsh_ttl={},nsh_mdtype={}", r.below(3), 1 + r.below(2));
        text += &format!(",nsh_np={},nsh_si={}", r.below(5), r.below(3));
    }
    let mut key = packet(&text);
    if kind == "mpls" {
        key.set_u32(at::MPLS, (r.below(3) as u32) << 12 | 0x100 | r.below(3) as u32);
    }
    key
}

fn random_actions(r: &mut Rng, table: u8) -> Vec<Action> {
    let reg = |n| Subfield { field: Field::Reg(n), ofs: 0, bits: 16 };
    let resubmit = |t| Action::Resubmit { in_port: None, table: Some(t), ct: false };
    let mut list = Vec::new();
    for _ in 0..r.below(4) {
        list.push(match r.below(29) {
            0 if r.chance(30) => Action::Group(1 + r.below(2) as u32),
            0..=2 => out(1 + r.below(4) as u32),
            3 if r.chance(30) => out(port::CONTROLLER),
            3 => out(9),
            4 => out(port::NORMAL),
            5 => out(port::FLOOD),
            6 | 7 if table < 3 => resubmit(table + 1),
            8 => Action::SetEthDst([0, 0, 0, 0, 0, r.below(4) as u8]),
            9 => Action::SetIpDst([10, 0, 0, r.below(3) as u8]),
            10 => Action::DecTtl { ids: None },
            11 => Action::PushVlan { ethertype: 0x8100 },
            12 => Action::StripVlan { pop: true },
            13 => Action::SetVlanVid { vid: 5, push_if_absent: r.chance(50) },
            14 => Action::Load { dst: reg(0), value: r.below(2) },
            15 => Action::Move {
                src: Subfield { field: Field::EthDst, ofs: 0, bits: 16 },
                dst: reg(0),
            },
            16 => Action::SetL4Dst(80 + r.below(3) as u16),
            17 => Action::PushMpls { ethertype: 0x8847 },
            18 => Action::Clone(vec![Action::SetIpTtl(9), out(2)]),
            19 if r.chance(50) => Action::Encap(Header::Mpls),
            19 => Action::Encap(Header::MplsMulticast),
            20 => Action::Encap(Header::Ethernet),
            21 => Action::Decap(None),
            22 => Action::Decap([0, 0x1_8847, 0x1_0800, 3].get(r.below(4) as usize).copied()),
            23 => Action::Clone(vec![
                Action::Encap(Header::Mpls),
                Action::SetMplsLabel(2),
                Action::Encap(Header::Ethernet),
                Action::SetEthSrc([0, 0, 0, 0, 0, 1]),
                out(2),
            ]),
            24 => Action::Encap(random_nsh(r)),
            25 => {
                let field = [Field::NshSi, Field::NshC1, Field::NshTtl][r.below(3) as usize];
                Action::SetField { field, value: r.below(3).into(), mask: field.full() }
            }
            26 => Action::DecNshTtl,
            27 => Action::Clone(vec![
                Action::Encap(random_nsh(r)),
                Action::Encap(Header::Ethernet),
                Action::SetEthSrc([0, 0, 0, 0, 0, 1]),
                out(2),
            ]),
            _ => out(port::IN_PORT),
        });
    }
    list
}

fn random_nsh(r: &mut Rng) -> Header {
    let tlv = NshProperty::Tlv { class: 1, kind: 2, value: vec![3; r.below(9) as usize] };
    Header::Nsh([NshProperty::MdType(2), tlv].into_iter().take(r.below(3) as usize).collect())
}

fn random_flow(r: &mut Rng) -> FlowMod {
    let table = r.below(4) as u8;
    let mut list = vec![Instruction::Apply(random_actions(r, table))];
    if r.chance(20) {
        list.push(Instruction::Write(vec![out(1 + r.below(4) as u32)]));
    }
    if r.chance(20) {
        list.push(Instruction::WriteMetadata { value: r.below(2), mask: 1 });
    }
    if table < 3 && r.chance(50) {
        list.push(Instruction::Goto(table + 1));
    }
    flow(table, r.below(4) as u16, &random_match(r), list)
}

/// Another packet of the same megaflow: bits that were not read change.
fn neighbour(r: &mut Rng, key: &Key, d: &Decision) -> Key {
    let mut free = flow::packet_mask(key);
    for (i, w) in free.words.iter_mut().enumerate() {
        *w &= !d.mask.words[i] & r.next();
    }
    free.words[flow::PACKET_LINES * 8..].fill(0);
    free.set_u16(at::VLAN, 0);
    let mut other = *key;
    for i in 0..flow::WORDS {
        other.words[i] ^= free.words[i];
    }
    if d.mask.u16(at::VLAN) == 0 {
        other.set_u16(at::VLAN, if r.chance(50) { 0x1005 } else { 0 });
    } else if key.u16(at::VLAN) != 0 {
        let bits = !d.mask.u16(at::VLAN) & 0xe000 & r.next() as u16;
        other.set_u16(at::VLAN, key.u16(at::VLAN) ^ bits);
    }
    other
}

fn outcome(d: &Decision) -> String {
    format!("{:?} {:?} {:?}", d.ops, d.drop, d.credits)
}

fn random_lab(r: &mut Rng) -> Lab {
    let mut lab = Lab::new();
    if r.chance(50) {
        lab.port(3, VlanMode::Access(5));
    }
    if r.chance(50) {
        add_peer(r, &mut lab);
    }
    if r.chance(30) {
        lab.add_local();
        lab.sw.set_in_band(lab.br, &random_in_band(r), 0).unwrap();
    }
    if r.chance(30) {
        let mirrors = (0..1 + r.below(3)).map(|n| random_mirror(r, n.into())).collect();
        lab.sw.set_mirrors(lab.br, mirrors, 0).unwrap();
    }
    for _ in 0..12 {
        let _ = lab.sw.flow_mod(lab.br, &random_flow(r), 0);
    }
    lab
}

fn random_in_band(r: &mut Rng) -> InBand {
    let mac = |r: &mut Rng| [0, 0, 0, 0, 0, 1 + r.below(3) as u8];
    let remote =
        |r: &mut Rng| format!("{}:{}", r.pick(IPS), 80 + r.below(2)).parse().expect("an address");
    InBand {
        remotes: (0..r.below(4)).map(|_| remote(r)).collect(),
        next_hops: (0..r.below(3)).map(|_| mac(r)).collect(),
        local: r.chance(70).then(|| mac(r)),
        queue: r.chance(30).then_some(1),
    }
}

fn random_mirror(r: &mut Rng, id: u128) -> MirrorSpec {
    let mut some = || (1..=4).filter(|_| r.chance(60)).map(|n| format!("p{n}")).collect();
    let (received, sent) = (some(), some());
    let to = match r.below(5) {
        0 => MirrorTo::Vlan(5 + r.below(3) as u16),
        1 => MirrorTo::Port("a".into()),
        _ => MirrorTo::Port(format!("p{}", 2 + r.below(3))),
    };
    let vlans = r.chance(30).then(|| Box::new([0, 5].into_iter().collect()));
    MirrorSpec { id, all: r.chance(20), received, sent, vlans, to, snaplen: 60 * r.below(2) as u16 }
}

/// A second bridge behind a patch port, some flows in it and a NORMAL.
fn add_peer(r: &mut Rng, lab: &mut Lab) {
    let peer = lab.sw.add_bridge("br1", BridgeConfig::default(), 0).unwrap();
    let patch = |name: &str, other: &str| PortSpec {
        of_port: 9,
        name: name.into(),
        bundle: name.into(),
        patch_peer: Some(other.into()),
        ..PortSpec::default()
    };
    lab.sw.add_port(lab.br, patch("a", "b")).unwrap();
    lab.sw.add_port(peer, patch("b", "a")).unwrap();
    let vlan = if r.chance(50) { VlanMode::Access(5) } else { VlanMode::default() };
    for i in 1..3 {
        let (name, vlan) = (format!("q{i}"), vlan.clone());
        let bundle = name.clone();
        let dp_port = Some(20 + i as u16);
        let spec = PortSpec { of_port: i, name, bundle, dp_port, vlan, ..PortSpec::default() };
        lab.sw.add_port(peer, spec).unwrap();
    }
    lab.sw.install_default_flow(peer, 0).unwrap();
    for _ in 0..6 {
        let _ = lab.sw.flow_mod(peer, &random_flow(r), 0);
    }
}

/// A third bridge, of which no other one gets a packet.
fn add_alone(r: &mut Rng, lab: &mut Lab) {
    let alone = lab.sw.add_bridge("br2", BridgeConfig::default(), 0).unwrap();
    for i in 1..3 {
        let (name, dp_port) = (format!("r{i}"), Some(30 + i as u16));
        let bundle = name.clone();
        let spec = PortSpec { of_port: i, name, bundle, dp_port, ..PortSpec::default() };
        lab.sw.add_port(alone, spec).unwrap();
    }
    for _ in 0..6 {
        let _ = lab.sw.flow_mod(alone, &random_flow(r), 0);
    }
}

#[test]
fn a_decision_holds_for_its_whole_megaflow() {
    for seed in 1..150 {
        let mut r = Rng::new(seed);
        let mut lab = random_lab(&mut r);
        for _ in 0..30 {
            let key = random_packet(&mut r);
            let d = lab.decide(&key);
            if let Some(e) = &d.effects {
                lab.sw.effects(e, 0);
            }
            let d = lab.decide(&key);
            let other = neighbour(&mut r, &key, &d);
            assert!(key.matches(&other, &d.mask));
            let e = lab.decide(&other);
            assert_eq!(outcome(&d), outcome(&e), "seed {seed}\n{key:?}\n{other:?}\n{:?}", d.mask);
        }
    }
}

/// A packet of some bridge's port: of `random_lab`'s, or of `br2`'s, to which no packet of the
/// others comes.
fn packet_of_any_bridge(r: &mut Rng) -> Key {
    let mut key = random_packet(r);
    let ports = [11, 12, 13, 14, 21, 22, 31, 32];
    key.set_u16(at::IN_PORT, ports[r.below(8) as usize]);
    key
}

/// What a controller of a bridge may do besides changing flows.
fn change_bridge(r: &mut Rng, sw: &mut Switch, br: BridgeId) {
    match r.below(5) {
        0 => {
            let id = 1 + r.below(2) as u32;
            let group = crate::tests::group(id, GroupType::All, &[(1 + r.below(2) as u32, 0)]);
            let group = GroupMod { command: GroupCommand::AddOrMod, ..group };
            let _ = sw.group_mod(br, &group, 0);
        }
        1 => {
            let bands = vec![Band::Drop { rate: 1, burst: 1 }];
            let command = [MeterCommand::Add, MeterCommand::Delete][r.below(2) as usize];
            let meter = MeterMod { command, flags: 4, id: meter_id::CONTROLLER, bands };
            let _ = sw.meter_mod(br, &meter, 0);
        }
        2 => {
            let config = sw.bridge_config(br).unwrap().clone();
            let frag = [FragHandling::Normal, FragHandling::Drop][r.below(2) as usize];
            sw.configure_bridge(br, BridgeConfig { frag, ..config }).unwrap();
        }
        3 => {
            let desc = sw.port_descs(br)[r.below(2) as usize].clone();
            let (port, hw_addr, mask) = (desc.port, desc.hw_addr, port_config::NO_FWD);
            let config = if r.chance(50) { mask } else { 0 };
            sw.port_mod(br, &PortMod { port, hw_addr, config, mask, advertise: 0 }).unwrap();
        }
        _ => {
            let mac = [0, 0, 0, 0, 0, 1 + r.below(3) as u8];
            sw.learn(br.0, 0, mac, 1 + r.below(2) as u32, 0);
        }
    }
}

/// Ports of a bridge change, come and go, and change what they are.
fn change_port(r: &mut Rng, sw: &mut Switch, br: BridgeId) {
    let numbers: Vec<OfPort> = sw.ports(br).map(|p| p.of_port).filter(|n| *n != 9).collect();
    let number = numbers[r.below(numbers.len() as u64) as usize];
    let known = sw.port(br, number).unwrap().clone();
    match r.below(6) {
        0 if numbers.len() > 2 => sw.remove_port(br, number).unwrap(),
        0 | 1 => {
            let of_port = 5 + r.below(4) as u32;
            let name = format!("{}x{of_port}", br.0);
            let bundle = if r.chance(20) { known.bundle } else { name.clone() };
            let dp_port = Some(40 + 10 * br.0 as u16 + r.below(2) as u16);
            let vlan = if r.chance(30) { VlanMode::Access(5) } else { VlanMode::default() };
            let spec = PortSpec { of_port, name, bundle, dp_port, vlan, ..PortSpec::default() };
            let _ = sw.add_port(br, spec);
        }
        2 => {
            let vlan = if r.chance(50) { VlanMode::Access(5) } else { VlanMode::default() };
            sw.update_port(br, PortSpec { vlan, ..known }).unwrap();
        }
        3 => {
            let bits = [port_config::NO_FLOOD, port_config::NO_FWD, port_config::NO_RECV];
            let config = if r.chance(70) { bits[r.below(3) as usize] } else { 0 };
            sw.update_port(br, PortSpec { config, ..known }).unwrap();
        }
        4 => sw.update_port(br, PortSpec { protected: r.chance(50), ..known }).unwrap(),
        _ => {
            let state = if r.chance(50) { port_state::LINK_DOWN } else { 0 };
            sw.update_port(br, PortSpec { state, ..known }).unwrap();
        }
    }
}

/// Each decision that would be another one after a change, whatever it is, is named; and a change
/// of one bridge, or of a port, does not name them all.
#[test]
fn changes_name_every_stale_decision() {
    let (mut kept, mut spared, mut beside) = (0, 0, 0);
    for seed in 1..100 {
        let mut r = Rng::new(seed);
        let mut lab = random_lab(&mut r);
        add_alone(&mut r, &mut lab);
        for _ in 0..10 {
            let keys: Vec<Key> = (0..20).map(|_| packet_of_any_bridge(&mut r)).collect();
            let cached: Vec<Decision> = keys.iter().map(|k| lab.decide(k)).collect();
            lab.sw.take_regions();
            lab.sw.take_stale();
            let mut m = random_flow(&mut r);
            match r.below(4) {
                0 => m.command = FlowModCommand::Delete,
                1 => m.command = FlowModCommand::Modify,
                2 => {
                    if let Some(e) = &cached[0].effects {
                        lab.sw.effects(e, 0);
                    }
                }
                _ => {}
            }
            let peer = lab.sw.find_bridge("br1").filter(|_| r.chance(50));
            let other = [lab.br, lab.sw.find_bridge("br2").unwrap()][r.below(2) as usize];
            let br = peer.unwrap_or(other);
            let what = r.below(9);
            match what {
                0 => lab.sw.set_in_band(lab.br, &random_in_band(&mut r), 0).unwrap(),
                1 | 2 => change_bridge(&mut r, &mut lab.sw, br),
                3..=5 => drop(lab.sw.flow_mod(br, &m, 0)),
                _ => change_port(&mut r, &mut lab.sw, br),
            }
            let (regions, stale) = (lab.sw.take_regions(), lab.sw.take_stale());
            for (k, d) in keys.iter().zip(&cached) {
                let named = regions.iter().any(|x| x.overlaps(k, &d.mask));
                if named || stale.as_ref().is_some_and(|is| is(&d.cached())) {
                    continue;
                }
                kept += 1;
                spared += usize::from(regions.iter().any(|x| x.mask.words == [0; flow::WORDS]));
                beside += usize::from(what > 5 && !regions.is_empty());
                let now = outcome(&lab.decide(k));
                assert_eq!(outcome(d), now, "seed {seed} {k:?} {m:?} {what} {br:?}");
            }
        }
    }
    assert!(kept > 2_000, "the regions say nothing: {kept}");
    assert!(spared > 500, "a change of a whole bridge is one of all: {spared}");
    assert!(beside > 2_000, "a change of a port is one of all: {beside}");
}

/// A flow table that does what OpenFlow says in the plainest way.
#[derive(Default)]
struct Naive(Vec<(u8, u16, Match, u64, Vec<Instruction>)>);

impl Naive {
    fn apply(&mut self, m: &FlowMod) {
        use FlowModCommand as C;
        let selects = |e: &(u8, u16, Match, u64, Vec<Instruction>)| {
            let strict = matches!(m.command, C::ModifyStrict | C::DeleteStrict);
            let within = m.matching.mask.subset_of(&e.2.mask)
                && m.matching.key.matches(&e.2.key, &m.matching.mask);
            (m.table == TABLE_ALL || m.table == e.0)
                && if strict { e.1 == m.priority && e.2 == m.matching } else { within }
                && (e.3 ^ m.cookie_old) & m.cookie_mask == 0
        };
        match m.command {
            C::Add => {
                self.0.retain(|e| (e.0, e.1, &e.2) != (m.table, m.priority, &m.matching));
                let list = m.instructions.clone();
                self.0.push((m.table, m.priority, m.matching.clone(), m.cookie, list));
            }
            // A modify with a new cookie, as versions 1.0 and 1.1 have, adds what it does not find.
            C::Modify | C::ModifyStrict
                if m.cookie != u64::MAX && m.cookie_mask == 0 && !self.0.iter().any(selects) =>
            {
                self.apply(&FlowMod { command: C::Add, ..m.clone() });
            }
            C::Modify | C::ModifyStrict => {
                for e in self.0.iter_mut().filter(|e| selects(e)) {
                    e.4 = m.instructions.clone();
                }
            }
            C::Delete | C::DeleteStrict => self.0.retain(|e| !selects(e)),
        }
    }
}

#[test]
fn flow_mods_do_what_the_naive_table_does() {
    use FlowModCommand as C;
    for seed in 1..100 {
        let mut r = Rng::new(seed);
        let mut lab = Lab::new();
        let mut naive = Naive::default();
        for _ in 0..60 {
            let mut m = random_flow(&mut r);
            let commands = [C::Add, C::Add, C::Modify, C::ModifyStrict, C::Delete, C::DeleteStrict];
            m.command = commands[r.below(6) as usize];
            m.cookie = r.below(3);
            if m.command != C::Add && r.chance(30) {
                (m.cookie_old, m.cookie_mask) = (r.below(3), 3);
            }
            if matches!(m.command, C::Delete) && r.chance(30) {
                m.table = TABLE_ALL;
            }
            if matches!(m.command, C::Modify | C::ModifyStrict) && r.chance(50) {
                m.cookie = u64::MAX;
            }
            if r.chance(20) {
                lab.sw.set_in_band(lab.br, &random_in_band(&mut r), 0).unwrap();
            }
            if lab.sw.flow_mod(lab.br, &m, 0).is_ok() {
                naive.apply(&m);
            }
        }
        let have = lab.dump().into_iter();
        let mut have: Vec<_> = have
            .map(|f| format!("{:?}", (f.table, f.priority, f.matching, f.cookie, f.instructions)))
            .collect();
        let mut want: Vec<_> = naive.0.iter().map(|e| format!("{e:?}")).collect();
        have.sort();
        want.sort();
        assert_eq!(have, want, "seed {seed}");
        assert_eq!(lab.sw.n_flows(lab.br).unwrap(), want.len());
    }
}

#[test]
fn counters_follow_the_flow() {
    let mut lab = Lab::new();
    lab.add(flow(0, 1, "in_port=1", vec![Instruction::Apply(vec![out(2)])]));
    let d = lab.decide(&packet("in_port=1,udp"));
    assert_eq!(d.credits.len(), 1);
    lab.sw.credit(d.credits[0], 3, 180, 5);
    let stats = |lab: &Lab| lab.dump().iter().map(|f| (f.packets, f.bytes)).collect::<Vec<_>>();
    assert_eq!(stats(&lab), [(3, 180)]);
    let mut m = flow(0, 1, "in_port=1", vec![Instruction::Apply(vec![out(3)])]);
    m.command = FlowModCommand::Modify;
    lab.add(m.clone());
    assert_eq!(stats(&lab), [(3, 180)]);
    m.command = FlowModCommand::Add;
    m.flags = flow_flag::RESET_COUNTS;
    lab.add(m);
    assert_eq!(stats(&lab), [(0, 0)]);
    lab.sw.credit(d.credits[0], 1, 1, 5);
    assert_eq!(stats(&lab), [(0, 0)], "an id that is not the flow's any more");
    let miss = lab.decide(&packet("in_port=2,udp"));
    lab.sw.credit(miss.credits[0], 7, 7, 5);
    let t = &lab.sw.table_stats(lab.br).unwrap()[0];
    assert_eq!((t.active, t.lookups, t.matched), (1, 10, 3));
}

#[test]
fn timeouts_end_flows_with_a_reason() {
    const S: u64 = 1_000_000_000;
    let mut lab = Lab::new();
    let mut idle = flow(0, 1, "in_port=1", vec![Instruction::Apply(vec![out(2)])]);
    idle.idle_timeout = 10;
    idle.flags = flow_flag::SEND_FLOW_REM;
    let mut hard = idle.clone();
    hard.matching = matching("in_port=2");
    (hard.idle_timeout, hard.hard_timeout) = (0, 15);
    lab.add(idle);
    lab.add(hard);
    let d = lab.decide(&packet("in_port=1,udp"));
    lab.sw.credit(d.credits[0], 1, 60, 8 * S);
    lab.sw.expire(12 * S, 12 * S, usize::MAX);
    assert_eq!(lab.dump().len(), 2);
    lab.sw.expire(18 * S, 18 * S, usize::MAX);
    let events = lab.sw.take_events();
    let reasons: Vec<Removed> = events
        .iter()
        .filter_map(|e| match e {
            Event::FlowRemoved(_, m) => Some(m.reason),
            _ => None,
        })
        .collect();
    assert_eq!(reasons, [Removed::HardTimeout, Removed::IdleTimeout]);
    assert!(lab.dump().is_empty());
    assert_eq!(lab.sw.next_expiry(), None);
}
