//! Twenty tables as OVN fills them for a logical switch: input to registers, port security, access
//! lists in both directions, load balancer, responders, destination lookup, output. Connection
//! tracking is left out.

use super::RuleSet;
use crate::flows::{FlowTable, Template};
use crate::random::Random;
use std::net::Ipv4Addr;

const SERVICES: [u16; 6] = [80, 443, 53, 22, 3306, 8080];

fn mac(port: u32) -> String {
    let [_, x, y, z] = port.to_be_bytes();
    format!("02:00:00:{x:02x}:{y:02x}:{z:02x}")
}

fn ip(port: u32) -> Ipv4Addr {
    Ipv4Addr::from(0x1000_0000 + port + 1)
}

/// Rules that do not depend on the number of ports: (table, priority, match, actions).
const FIXED: &[(u32, u32, &str, &str)] = &[
    (0, 100, "in_port=1", "load:0x1->OXM_OF_METADATA[],load:0x1->NXM_NX_REG14[],resubmit(,8)"),
    (8, 100, "metadata=0x1,dl_src=01:00:00:00:00:00/01:00:00:00:00:00", "drop"),
    (8, 100, "metadata=0x1,vlan_tci=0x1000/0x1000", "drop"),
    (8, 50, "reg14=0x1,metadata=0x1", "resubmit(,9)"),
    (9, 90, "ip,reg14=0x1,metadata=0x1,nw_src=48.0.0.0/4", "resubmit(,10)"),
    (9, 80, "ip,reg14=0x1,metadata=0x1", "drop"),
    (9, 0, "metadata=0x1", "resubmit(,10)"),
    (10, 90, "arp,reg14=0x1,metadata=0x1,arp_spa=48.0.0.0/4", "resubmit(,11)"),
    (10, 80, "arp,reg14=0x1,metadata=0x1", "drop"),
    (10, 0, "metadata=0x1", "resubmit(,11)"),
    (11, 110, "metadata=0x1,dl_dst=01:00:00:00:00:00/01:00:00:00:00:00", "resubmit(,12)"),
    (11, 100, "ip,metadata=0x1", "load:0x1->NXM_NX_XXREG0[96],resubmit(,12)"),
    (11, 0, "metadata=0x1", "resubmit(,12)"),
    (12, 0, "metadata=0x1", "resubmit(,13)"),
    (13, 65535, "tcp,metadata=0x1,tcp_flags=+syn+fin", "drop"),
    (13, 0, "metadata=0x1", "resubmit(,14)"),
    (14, 1, "ip,metadata=0x1", "load:0->NXM_NX_XXREG0[97],resubmit(,15)"),
    (14, 0, "metadata=0x1", "resubmit(,15)"),
    (15, 100, "ip,metadata=0x1,nw_tos=184", "load:0x1->NXM_NX_REG10[0],resubmit(,16)"),
    (15, 0, "metadata=0x1", "resubmit(,16)"),
    (16, 0, "metadata=0x1", "resubmit(,17)"),
    (17, 0, "metadata=0x1", "resubmit(,18)"),
    (18, 100, "udp,metadata=0x1,tp_src=68,tp_dst=67", "drop"),
    (18, 0, "metadata=0x1", "resubmit(,19)"),
    (19, 70, "metadata=0x1,dl_dst=01:00:00:00:00:00/01:00:00:00:00:00", "drop"),
    (32, 100, "reg10=0x2/0x2", "resubmit(,33)"),
    (32, 0, "", "resubmit(,33)"),
    (34, 100, "reg10=0/0x1,reg14=0x1,reg15=0x1,metadata=0x1", "drop"),
    (34, 0, "", "resubmit(,40)"),
    (40, 100, "ip,metadata=0x1", "load:0x1->NXM_NX_XXREG0[98],resubmit(,41)"),
    (40, 0, "metadata=0x1", "resubmit(,41)"),
    (41, 0, "metadata=0x1", "resubmit(,42)"),
    (42, 0, "metadata=0x1", "resubmit(,43)"),
    (64, 0, "", "resubmit(,65)"),
];

/// `ports` logical ports, each with an address, four access rules in and out, and flows to it.
pub fn rules(ports: u32, random: &mut Random) -> RuleSet {
    let mut lines: Vec<_> = FIXED
        .iter()
        .map(|(table, priority, matched, actions)| {
            let comma = if matched.is_empty() { "" } else { "," };
            format!("table={table},priority={priority}{comma}{matched},actions={actions}")
        })
        .collect();
    let mut seen = Vec::new();
    for port in 0..ports {
        // Logical port 1 is where packets come in.
        let (reg, ip, mac) = (port + 2, ip(port), mac(port));
        lines.push(format!(
            "table=16,priority=120,udp,metadata=0x1,nw_dst=17.0.{}.{},tp_dst=53,actions=drop",
            port >> 8,
            port & 255
        ));
        lines.push(format!(
            "table=17,priority=100,arp,metadata=0x1,arp_tpa={ip},arp_op=1,actions=drop"
        ));
        lines.push(format!(
            "table=19,priority=50,metadata=0x1,dl_dst={mac},actions=load:{reg:#x}->NXM_NX_REG15[],resubmit(,32)"
        ));
        lines.push(format!(
            "table=33,priority=100,reg15={reg:#x},metadata=0x1,actions=resubmit(,34)"
        ));
        lines.push(format!(
            "table=43,priority=90,ip,reg15={reg:#x},metadata=0x1,dl_dst={mac},nw_dst={ip},actions=resubmit(,64)"
        ));
        lines.push(format!("table=65,priority=100,reg15={reg:#x},metadata=0x1,actions=output:2"));
        for _ in 0..4 {
            let template = access(port, random, &mut lines);
            seen.push(template);
        }
    }
    lines.sort();
    lines.dedup();
    RuleSet { lines, flows: Some(FlowTable { seen, new: vec![] }), matches: vec![] }
}

/// One allowed service of a port: a rule on its way in (table 12) and one on its way out (table
/// 42), and its flows.
fn access(port: u32, random: &mut Random, lines: &mut Vec<String>) -> Template {
    let service = SERVICES[random.below(SERVICES.len() as u32) as usize];
    let net = 0x3000_0000 | random.below(1 << 12) << 16;
    let bits = random.weighted(&[(2, 16), (1, 20), (1, 24)]);
    let (ip, from) = (ip(port), Ipv4Addr::from(net));
    lines.push(format!(
        "table=12,priority=2002,udp,metadata=0x1,nw_dst={ip},tp_dst={service},actions=resubmit(,13)"
    ));
    lines.push(format!(
        "table=42,priority=2002,udp,reg15={:#x},metadata=0x1,nw_src={from}/{bits},tp_dst={service},actions=resubmit(,43)",
        port + 2
    ));
    Template {
        src: net,
        dst: ip.into(),
        ports: u32::from(service),
        wild_src: !super::matching::prefix(bits),
        wild_ports: 0xffff_0000,
        dmac: port,
        protocol: 17,
        ..Template::default()
    }
}
