//! Tests of the whole switch, without I/O.

use crate::*;
use ::action::{Decision, Op};
use flow::{Key, at, parse_match};
use openflow::*;
use sync::Domain;

pub(crate) struct Lab {
    pub sw: Switch,
    pub br: BridgeId,
}

/// `in_port` etc. as `ovs-ofctl` writes them; the datapath port is OpenFlow's plus 10.
pub(crate) fn packet(text: &str) -> Key {
    let (mut key, _) = parse_match(text, &|_| None).expect(text);
    key.set_u16(at::IN_PORT, key.u32(at::OF_IN_PORT) as u16 + 10);
    key
}

pub(crate) fn matching(text: &str) -> Match {
    let (key, mask) = parse_match(text, &|_| None).expect(text);
    Match { key, mask }
}

pub(crate) fn out(port: u32) -> Action {
    Action::Output { port, trunc: 0 }
}

pub(crate) fn flow(table: u8, priority: u16, m: &str, list: Vec<Instruction>) -> FlowMod {
    FlowMod {
        command: FlowModCommand::Add,
        table,
        priority,
        matching: matching(m),
        cookie: 0,
        cookie_old: 0,
        cookie_mask: 0,
        modify_cookie: false,
        idle_timeout: 0,
        hard_timeout: 0,
        importance: 0,
        flags: 0,
        buffer_id: NO_BUFFER,
        out_port: port::ANY,
        out_group: GROUP_ANY,
        instructions: list,
    }
}

pub(crate) fn apply(list: Vec<Action>) -> Vec<Instruction> {
    vec![Instruction::Apply(list)]
}

impl Lab {
    pub fn new() -> Lab {
        let mut sw = Switch::new(Domain::new());
        let br = sw.add_bridge("br0", BridgeConfig::default()).unwrap();
        let mut lab = Lab { sw, br };
        for i in 1..=4 {
            lab.port(i, VlanMode::default());
        }
        lab
    }

    pub fn port(&mut self, number: u32, vlan: VlanMode) {
        let spec = PortSpec {
            of_port: number,
            name: format!("p{number}"),
            bundle: format!("p{number}"),
            dp_port: Some(number as u16 + 10),
            vlan,
            ..PortSpec::default()
        };
        match self.sw.port(self.br, number).is_some() {
            true => self.sw.update_port(self.br, spec).unwrap(),
            false => self.sw.add_port(self.br, spec).unwrap(),
        }
    }

    pub fn add(&mut self, m: FlowMod) {
        self.sw.flow_mod(self.br, &m, 0).unwrap();
    }

    pub fn decide(&mut self, packet: &Key) -> Decision {
        let mut d = Decision::default();
        d.clear();
        self.sw.resolve(packet, &mut d);
        d
    }

    /// Decides, and lets the switch learn.
    pub fn send(&mut self, text: &str) -> String {
        let d = self.decide(&packet(text));
        if let Some(e) = &d.effects {
            self.sw.effects(e, 1);
        }
        ::action::ops_text(&d.ops)
    }

    pub fn dump(&self) -> Vec<FlowStats> {
        let select = FlowSelect {
            table: TABLE_ALL,
            out_port: port::ANY,
            out_group: GROUP_ANY,
            cookie: 0,
            cookie_mask: 0,
            matching: Match::default(),
        };
        let mut all = self.sw.flow_stats(self.br, &select, 0).unwrap();
        all.sort_by_key(|f| (f.table, f.priority));
        all
    }
}

#[test]
fn rewrites_commit_late_and_minimal() {
    let mut lab = Lab::new();
    let list = vec![
        Action::SetField { field: flow::Field::Ipv4Dst, value: 0x0a010101, mask: 0xffff_ffff },
        Action::DecTtl { ids: vec![] },
        out(2),
        Action::SetField { field: flow::Field::Ipv4Dst, value: 0x0a020202, mask: 0xffff_ffff },
        out(1),
        out(3),
    ];
    lab.add(flow(0, 100, "ip,in_port=1", apply(list)));
    let text = lab.send("in_port=1,tcp,nw_dst=10.2.2.2,nw_ttl=64");
    assert_eq!(text, "set(ipv4(dst=10.1.1.1,ttl=63)),12,set(ipv4(dst=10.2.2.2)),13");
    let d = lab.decide(&packet("in_port=1,tcp,nw_dst=10.2.2.2,nw_ttl=1"));
    let [Op::Set(_), Op::Punt(p)] = &d.ops[..] else { panic!("{:?}", d.ops) };
    let context = p.context.downcast_ref::<PacketInContext>().unwrap();
    assert_eq!(context.reason, Reason::InvalidTtl);
    let d = lab.decide(&packet("in_port=2,tcp"));
    assert_eq!(d.drop, Some(telemetry::Drop::Policy));
    let d = lab.decide(&packet("in_port=9,tcp"));
    assert_eq!(d.drop, Some(telemetry::Drop::NoPort));
}

#[test]
fn normal_learns_floods_and_tags() {
    let mut lab = Lab::new();
    lab.sw.install_default_flow(lab.br, 0).unwrap();
    lab.port(3, VlanMode::Access(5));
    lab.port(4, VlanMode::Access(6));
    let there = "udp,dl_src=00:00:00:00:00:01,dl_dst=00:00:00:00:00:02";
    let back = "udp,dl_src=00:00:00:00:00:02,dl_dst=00:00:00:00:00:01";
    assert_eq!(lab.send(&format!("in_port=1,{there}")), "12");
    assert_eq!(lab.send(&format!("in_port=2,{back}")), "11");
    assert_eq!(lab.send(&format!("in_port=1,{there}")), "12");
    let tag = "push_vlan(vid=5,pcp=0)";
    assert_eq!(lab.send(&format!("in_port=3,{there}")), format!("{tag},11,12"));
    assert_eq!(lab.send(&format!("in_port=1,dl_vlan=5,{back}")), "pop_vlan,13");
    assert_eq!(lab.send(&format!("in_port=1,dl_vlan=6,{back}")), "12,pop_vlan,14");
    assert_eq!(lab.send(&format!("in_port=3,dl_vlan=6,{back}")), "drop");
    assert_eq!(lab.sw.fdb(lab.br).unwrap().len(), 5);
    assert_eq!(lab.send("in_port=1,udp,dl_dst=01:80:c2:00:00:02"), "drop");
    lab.sw.fdb_flush(lab.br).unwrap();
    assert!(lab.sw.fdb(lab.br).unwrap().is_empty());
}

#[test]
fn action_set_goto_and_registers() {
    let mut lab = Lab::new();
    let write = Instruction::Write(vec![out(3)]);
    lab.add(flow(0, 1, "in_port=2", vec![write, Instruction::Goto(2)]));
    let load =
        Action::Load { dst: Subfield { field: flow::Field::Reg(0), ofs: 0, bits: 32 }, value: 5 };
    let again = Action::Resubmit { in_port: None, table: Some(3), ct: false };
    lab.add(flow(2, 1, "", apply(vec![load, again])));
    lab.add(flow(3, 1, "reg0=5,in_port=2", apply(vec![out(1)])));
    assert_eq!(lab.send("in_port=2,udp"), "11,13");
    let trace = lab.sw.trace(lab.br, &packet("in_port=2,udp"), None).unwrap();
    let want = "\
Flow: udp,in_port=2,vlan_tci=0x0000,dl_src=00:00:00:00:00:00,dl_dst=00:00:00:00:00:00,nw_src=0.0.0.0,nw_dst=0.0.0.0,nw_tos=0,nw_ecn=0,nw_ttl=0,nw_frag=no,tp_src=0,tp_dst=0

bridge(\"br0\")
-------------
 0. in_port=2, priority 1
    write_actions(output:3)
     -> action set is: output:3
    goto_table:2
     2. priority 1
            load:0x5->NXM_NX_REG0[]
            resubmit(,3)
         3. reg0=0x5,in_port=2, priority 1
            output:1
--. Executing action set:
    output:3

Final flow: udp,reg0=0x5,in_port=2,vlan_tci=0x0000,dl_src=00:00:00:00:00:00,dl_dst=00:00:00:00:00:00,nw_src=0.0.0.0,nw_dst=0.0.0.0,nw_tos=0,nw_ecn=0,nw_ttl=0,nw_frag=no,tp_src=0,tp_dst=0
Megaflow: recirc_id=0,eth,ip,in_port=2,nw_frag=no
Datapath actions: 11,13
";
    assert_eq!(trace, want);
}

#[test]
fn bundles_are_all_or_nothing() {
    let mut lab = Lab::new();
    lab.add(flow(0, 1, "in_port=1", apply(vec![out(2)])));
    let before = lab.dump();
    let mut modify = flow(0, 0, "in_port=1", apply(vec![out(3)]));
    modify.command = FlowModCommand::Modify;
    let mut delete = flow(0, 0, "", vec![]);
    delete.command = FlowModCommand::Delete;
    let good = [
        BundleItem::Flow(modify),
        BundleItem::Flow(flow(0, 1, "in_port=1", apply(vec![out(4)]))),
        BundleItem::Flow(delete),
        BundleItem::Flow(flow(0, 7, "in_port=2", apply(vec![out(4)]))),
    ];
    let mut bad = good.to_vec();
    bad.push(BundleItem::Flow(flow(0, 1, "", apply(vec![Action::Group(9)]))));
    assert_eq!(lab.sw.bundle(lab.br, &bad, 0), Err((4, OfError::ActBadOutGroup)));
    assert_eq!(lab.dump(), before);
    assert_eq!(lab.send("in_port=1,udp"), "12");
    lab.sw.bundle(lab.br, &good, 0).unwrap();
    assert_eq!(lab.send("in_port=1,udp"), "drop");
    assert_eq!(lab.send("in_port=2,udp"), "14");
    assert_eq!(lab.dump().len(), 1);
}
