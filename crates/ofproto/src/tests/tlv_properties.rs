//! Tunnel options: flows and actions against the plainest reading of them.

use crate::tests::properties::Rng;
use crate::tests::tunnel_lab::{geneve_lab, route_to_port_2, tunnel_to};
use crate::tests::{Lab, apply, flow, matching, out, packet};
use crate::*;
use ::action::{Decision, Op, Request, ops_text};
use flow::{Field, Key, TunMetadata, at, flag};
use openflow::*;

fn map(class: u16, kind: u8, len: u8, index: u16) -> TlvMap {
    TlvMap { class, kind, len, index }
}

/// Options 1, 2 and 3 are fields 0 (4 bytes), 1 (8)
/// and 2 (0).
fn lab() -> Lab {
    let mut lab = geneve_lab();
    let maps = vec![map(9, 1, 4, 0), map(9, 2, 8, 1), map(9, 3, 0, 2)];
    lab.sw.tlv_table_mod(lab.br, &TlvTableMod::Add(maps)).unwrap();
    lab
}

/// An option of class 9.
fn option(kind: u8, value: &[u8]) -> Vec<u8> {
    [&[0, 9, kind, value.len() as u8 / 4], value].concat()
}

fn decide(lab: &Lab, options: &[u8]) -> Decision {
    let mut key = packet("udp,tun_src=1.1.1.1,tun_dst=1.1.1.2,nw_ecn=0");
    key.set_u16(at::IN_PORT, 30);
    let has = if options.is_empty() { 0 } else { flag::TUNNEL_OPTIONS };
    key.set_u8(at::FLAGS, flag::TUNNEL | has);
    key.set_u64(at::TUN_OPTIONS, u64::from(has));
    let mut d = Decision::default();
    d.clear();
    lab.sw.pipeline().resolve(lab.sw.pin(), &Request { key: &key, options, packet: &[] }, &mut d);
    let looked = |at: usize| d.mask.u8(at) != 0;
    assert!(d.mask.u8(at::FLAGS) & flag::TUNNEL_OPTIONS != 0, "with options or without");
    assert_eq!(has != 0, looked(at::TUN_OPTIONS), "which, if there are some");
    d
}

fn sent(lab: &Lab, options: &[u8]) -> String {
    ops_text(&decide(lab, options).ops)
}

#[test]
fn the_table_of_options_changes_as_a_whole() {
    let mut lab = lab();
    let br = lab.br;
    let mut refused = |maps: Vec<TlvMap>, why| {
        assert_eq!(lab.sw.tlv_table_mod(br, &TlvTableMod::Add(maps)), Err(why));
        assert_eq!(lab.sw.tlv_table(br).unwrap().2.len(), 3);
    };
    refused(vec![map(8, 1, 4, 7), map(8, 2, 4, 0)], OfError::TlvAlreadyMapped);
    refused(vec![map(8, 1, 4, 7), map(9, 1, 4, 8)], OfError::TlvDupEntry);
    refused(vec![map(8, 1, 124, 7), map(8, 2, 124, 8)], OfError::TlvTableFull);
    // A field without a mapping is none; one that flows use stays.
    let unknown = flow(0, 1, "tun_metadata7=1", vec![]);
    assert_eq!(lab.sw.flow_mod(br, &unknown, 0), Err(OfError::FlowInvalidTlvField));
    let set = Action::SetTunMetadata(Box::new(TunMetadata::exact(7, &[1])));
    let unknown = flow(0, 1, "", apply(vec![set]));
    assert_eq!(lab.sw.flow_mod(br, &unknown, 0), Err(OfError::FlowInvalidTlvField));
    let wide = Subfield { field: Field::TunMetadata(0), ofs: 1, bits: 32 };
    let wide = flow(0, 1, "", apply(vec![Action::Load { dst: wide, value: 0 }]));
    assert_eq!(lab.sw.flow_mod(br, &wide, 0), Err(OfError::ActBadSetLen));
    lab.add(flow(0, 1, "tun_metadata0", vec![]));
    let set = Action::SetTunMetadata(Box::new(TunMetadata::exact(1, &[1])));
    lab.add(flow(0, 2, "", apply(vec![Action::Clone(vec![set])])));
    for index in [0, 1] {
        let gone = TlvTableMod::Delete(vec![map(9, 1, 4, index)]);
        assert_eq!(lab.sw.tlv_table_mod(br, &gone), Err(OfError::TlvInvalidDel));
    }
    lab.sw.tlv_table_mod(br, &TlvTableMod::Delete(vec![map(9, 3, 0, 2)])).unwrap();
    assert_eq!(lab.sw.tlv_table_mod(br, &TlvTableMod::Clear), Err(OfError::TlvInvalidDel));
    lab.sw.flush_flows(br, 0).unwrap();
    lab.sw.tlv_table_mod(br, &TlvTableMod::Clear).unwrap();
    assert_eq!(lab.sw.tlv_table(br), Ok((256, 64, vec![])));
}

/// Whether a flow uses a field is known without a look at any flow.
#[test]
fn a_field_goes_in_few_steps_however_many_flows_there_are() {
    let mut lab = lab();
    let remove = |lab: &mut Lab, index| {
        let gone = TlvTableMod::Delete(vec![map(9, 1, 4, index)]);
        crate::work::steps(|| lab.sw.tlv_table_mod(lab.br, &gone))
    };
    for n in 0..2000 {
        lab.add(flow(0, 1, &format!("tun_metadata0={n},reg0={n}"), vec![]));
        lab.add(flow(0, 2, &format!("reg0={n}"), vec![]));
    }
    let few = 20;
    let (steps, refused) = remove(&mut lab, 0);
    assert!(refused == Err(OfError::TlvInvalidDel) && steps < few, "{steps} steps");
    let (steps, done) = remove(&mut lab, 1);
    assert!(done.is_ok() && steps < few, "{steps} steps");
    let delete = FlowMod::new(FlowModCommand::Delete, 0, matching("tun_metadata0"));
    lab.add(FlowMod { priority: 1, ..delete });
    assert!(remove(&mut lab, 0).1.is_ok(), "no flow is left that uses it");
}

#[test]
fn what_cannot_be_understood_is_dropped() {
    let mut lab = lab();
    lab.add(flow(0, 1, "", apply(vec![out(2)])));
    let drop_of = |options: &[u8]| decide(&lab, options).drop;
    let bad = Some(telemetry::Drop::TunnelOptions);
    assert_eq!(drop_of(&option(0x85, &[0; 4])), bad, "critical and unknown");
    assert_eq!(drop_of(&option(1, &[0; 8])), bad, "another length");
    assert_eq!(drop_of(&[0, 9, 1, 1, 0, 0]), bad, "cut");
    assert_eq!(sent(&lab, &option(5, &[0; 4])), "12");
    assert_eq!(sent(&lab, &[]), "12");
}

#[test]
fn flows_are_found_by_options_as_by_a_scan() {
    const MATCHES: [&str; 8] = [
        "",
        "tun_metadata0",
        "tun_metadata0=1",
        "tun_metadata0=0x2/0x3",
        "tun_metadata1=1",
        "tun_metadata2",
        "tun_metadata0=1,tun_metadata1=0x1/0x1",
        "tun_metadata0=3,tun_metadata2",
    ];
    for seed in 1..60 {
        let (mut r, mut lab) = (Rng::new(seed), lab());
        let mut rules: Vec<(u16, Match)> = Vec::new();
        for n in 0..r.below(7) {
            let text = MATCHES[r.below(8) as usize];
            let priority = 10 * (n as u16 + 1);
            let set = Action::SetTunnel { id: u64::from(priority), wide: false };
            lab.add(flow(0, priority, text, apply(vec![set, out(1 + r.below(4) as u32)])));
            rules.push((priority, matching(text)));
        }
        for _ in 0..30 {
            let mut fields: Vec<(u8, Vec<u8>)> = Vec::new();
            let lens = [4, 8, 0];
            for i in 0..3u8 {
                let value = [0, 0, 0, 0, 0, 0, 0, r.below(4) as u8];
                if r.below(2) == 0 {
                    fields.push((i, value[8 - lens[usize::from(i)]..].to_vec()));
                }
            }
            let options: Vec<u8> = fields.iter().flat_map(|(i, v)| option(i + 1, v)).collect();
            let want = rules.iter().rev().find(|(_, m)| takes(m, &fields)).map(|(p, _)| *p);
            let d = decide(&lab, &options);
            let credited = |p: u16| {
                let stats = lab.sw.flow_stats(lab.br, &openflow::FlowSelect::default(), 0).unwrap();
                stats.iter().any(|f| f.priority == p)
            };
            assert!(want.is_none_or(credited));
            let text = trace(&lab, &options);
            let have = text.lines().find_map(|l| l.split("priority ").nth(1)?.parse().ok());
            assert_eq!(have, want, "seed {seed}, {fields:?}:\n{text}");
            assert_eq!(d.ops.is_empty(), want.is_none());
        }
        for (priority, m) in rules {
            let delete =
                FlowMod { command: FlowModCommand::DeleteStrict, ..flow(0, priority, "", vec![]) };
            lab.add(FlowMod { matching: m, ..delete });
        }
        assert!(lab.dump().is_empty());
    }
}

/// True if a match takes a packet with these options.
fn takes(m: &Match, fields: &[(u8, Vec<u8>)]) -> bool {
    m.tun.iter().all(|t| {
        let mine = fields.iter().find(|(i, _)| *i == t.index);
        mine.is_some_and(|(_, v)| t.resized(v.len()).takes(v))
    })
}

fn trace(lab: &Lab, options: &[u8]) -> String {
    let mut key = Key::ZERO;
    key.set_u16(at::ETH_TYPE, 0x0800);
    key.set_u32(at::OF_IN_PORT, 5);
    let has = if options.is_empty() { 0 } else { flag::TUNNEL_OPTIONS };
    key.set_u8(at::FLAGS, flag::TUNNEL | has);
    lab.sw
        .trace(lab.br, &key, &Options::Bytes(options.to_vec()), &crate::TraceStyle::default())
        .unwrap()
}

#[test]
fn actions_write_options() {
    let mut lab = lab();
    let field = |index| Field::TunMetadata(index);
    let sub = |field, ofs, bits| Subfield { field, ofs, bits };
    let set = TunMetadata::masked(1, &[0x12, 0, 0], &[0xff, 0, 0]);
    lab.add(flow(
        0,
        1,
        "",
        apply(vec![
            Action::Move { src: sub(field(0), 4, 8), dst: sub(Field::Reg(0), 0, 8) },
            Action::Load { dst: sub(field(0), 28, 4), value: 0xf },
            Action::SetTunMetadata(Box::new(set)),
            Action::Move { src: sub(field(0), 0, 32), dst: sub(field(1), 32, 32) },
            Action::DeleteField(field(2)),
            Action::Resubmit { in_port: None, table: Some(1), ct: false },
        ]),
    ));
    lab.add(flow(1, 2, "reg0=0x34,tun_metadata2", apply(vec![out(2)])));
    lab.add(flow(1, 1, "reg0=0x34,tun_metadata1=0xf000034000120007", apply(vec![out(3)])));
    let options =
        [option(1, &[0, 0, 3, 0x40]), option(2, &[1, 1, 1, 1, 0, 0, 0, 7]), option(3, &[])];
    assert_eq!(sent(&lab, &options.concat()), "13");
    let text = trace(&lab, &options[0]);
    assert!(text.contains(",tun_metadata0=0x340,"), "{text}");
    let megaflow = text.lines().find(|l| l.starts_with("Megaflow")).unwrap();
    // As OVS names what was looked at, and that it is not there.
    assert!(
        megaflow.contains("tun_metadata0=0x340/0xf0000ff0")
            || megaflow.contains("tun_metadata0=0x340,"),
        "{megaflow}"
    );
    assert!(megaflow.contains("tun_metadata1=NP"), "{megaflow}");
}

#[test]
fn what_sets_a_whole_option_is_shown_without_a_mask() {
    let mut lab = lab();
    let set = |value: &[u8]| {
        let option = TunMetadata::masked_bytes(0, value, &vec![0xff; value.len()]);
        Action::SetTunMetadata(Box::new(option))
    };
    lab.add(flow(
        0,
        1,
        "in_port=1",
        apply(vec![set(&[1, 2, 3, 4]), Action::Clone(vec![set(&[5])])]),
    ));
    let [shown] = &lab.dump()[..] else { panic!("one flow") };
    let [openflow::Instruction::Apply(list)] = &shown.instructions[..] else { panic!() };
    let [Action::SetTunMetadata(whole), Action::Clone(inner)] = &list[..] else { panic!() };
    let [Action::SetTunMetadata(part)] = &inner[..] else { panic!() };
    assert_eq!(whole.text(), "tun_metadata0=0x1020304");
    assert_eq!(part.text(), "tun_metadata0=0x5/0xff");
}

#[test]
fn options_go_out_with_the_header() {
    let mut lab = lab();
    route_to_port_2(&mut lab);
    lab.sw.tlv_table_mod(lab.br, &TlvTableMod::Add(vec![map(0xffff, 0x80, 4, 9)])).unwrap();
    let to = tunnel_to([10, 0, 0, 5]);
    let set =
        |index, value: &[u8]| Action::SetTunMetadata(Box::new(TunMetadata::exact(index, value)));
    lab.add(flow(0, 1, "in_port=1", apply(vec![to, set(9, &[0xa]), set(0, &[1, 2]), out(5)])));
    lab.add(flow(0, 1, "in_port=LOCAL", vec![]));
    lab.add(flow(0, 0, "in_port=2", apply(vec![out(3)])));
    let d = lab.decide(&packet("in_port=1,udp"));
    let text = ops_text(&d.ops);
    let said = "geneve(crit,vni=0x0,options({class=0x9,type=0x1,len=4,0x102}{class=0xffff,type=0x80,len=4,0xa}))";
    assert!(text.contains(said), "{text}");
    let [Op::TunnelPush(t), ..] = &d.ops[..] else { panic!("{text}") };
    assert_eq!(t.header[42..46], [4, 0x40, 0x65, 0x58]);
    assert_eq!(t.header.len(), 50 + 16);
}

/// OpenFlow has OAM of a packet's tunnel flags: the others (here that the header forbade
/// fragments, had a checksum and a key) are in no packet-in, and no flow that matches on OAM looks
/// at them.
#[test]
fn openflow_has_one_flag_of_a_tunnel() {
    const ALL: u16 = 0xf;
    let mut lab = geneve_lab();
    let mut wire = Vec::new();
    openflow::matching::encode_match(Version::V15, &matching("tun_flags=+oam"), &mut wire);
    let oam = openflow::matching::decode_match(Version::V15, &wire).unwrap().0;
    let rule = |priority, m: &Match, to| FlowMod {
        matching: m.clone(),
        ..flow(0, priority, "", apply(vec![to]))
    };
    lab.add(rule(2, &oam, out(1)));
    lab.add(rule(1, &Match::default(), out(port::CONTROLLER)));
    let mut key = packet("udp,tun_src=1.1.1.1,tun_dst=1.1.1.2,nw_ecn=0");
    key.set_u16(at::IN_PORT, 30);
    key.set_u8(at::FLAGS, flag::TUNNEL);
    let mut decide = |lab: &mut Lab, flags: u16| {
        key.set_u16(at::TUN_FLAGS, flags);
        (lab.decide(&key), key)
    };
    assert_eq!(ops_text(&decide(&mut lab, ALL).0.ops), "11");
    let (d, key) = decide(&mut lab, ALL & !1);
    let [Op::Punt(punt)] = &d.ops[..] else { panic!("{:?}", d.ops) };
    let fields = punt.context.downcast_ref::<PacketInContext>().unwrap().fields_of(&key);
    assert_eq!(Field::TunFlags.get(&fields.mask), 0);
    assert_ne!(Field::TunSrc.get(&fields.mask), 0);
}
