//! Action lists as `ovs-ofctl` takes them, whose prerequisites mostly hold.

use crate::ct;
use crate::flows::{TABLES, mac_text, v4_text, v6_text};
use crate::packets::{Kind, ip4, ip6, ipv4, l4_port, mac};
use testkit::Rng;

/// What is known of the packet at this point of a list.
#[derive(Clone, Copy)]
pub struct Context {
    pub kind: Kind,
    pub proto: Option<u8>,
    pub vlan: bool,
    pub table: usize,
    /// Nothing that OpenFlow 1.0 cannot say.
    pub plain: bool,
    /// Connection tracking is used.
    pub ct: bool,
    /// Network service headers are put in front of packets and removed.
    pub nsh: bool,
}

impl Context {
    /// The context of a flow of a table that matches anything.
    pub fn new(table: usize, plain: bool, ct: bool) -> Context {
        Context { kind: Kind::Any, proto: None, vlan: false, table, plain, ct, nsh: false }
    }
}

/// Groups that exist in both switches during the whole test; the last has no live bucket.
pub const GROUPS: &str = "\
group_id=1,type=all,bucket=bucket_id:0,actions=output:1,bucket=bucket_id:1,actions=set_field:02:00:00:00:0a:0a->eth_dst,output:2
group_id=2,type=indirect,bucket=bucket_id:0,actions=output:3
group_id=3,type=select,selection_method=hash,fields(eth_dst),bucket=bucket_id:0,actions=mod_vlan_vid:7,output:2
group_id=4,type=all,bucket=bucket_id:0,actions=resubmit(,3),bucket=bucket_id:1,actions=strip_vlan,output:4
group_id=5,type=ff,bucket=bucket_id:0,watch_port:1,actions=output:4,bucket=bucket_id:1,watch_port:2,actions=output:1
group_id=6,type=all,bucket=bucket_id:0,actions=load:3->NXM_NX_REG0[],resubmit(,2),bucket=bucket_id:1,actions=group:2
group_id=7,type=indirect,bucket=bucket_id:0,actions=drop
";

/// The right-hand side of `actions=`.
pub fn list(r: &mut Rng, mut c: Context) -> String {
    if r.percent(6) {
        return "drop".into();
    }
    let mut words = apply(r, &mut c, 1);
    if c.plain {
        return words.join(",");
    }
    let last = TABLES - 1;
    if r.percent(6) {
        words.push("clear_actions".into());
    }
    if r.percent(15) {
        words.push(format!("write_actions({})", action_set(r, c)));
    }
    if r.percent(10) {
        words.push(format!("write_metadata:{:#x}{}", r.below(4), r.pick(&["", "/0xff", "/0x3"])));
    }
    if c.table < last && r.percent(30) {
        words.push(format!("goto_table:{}", c.table + 1 + r.below(last - c.table)));
    }
    words.join(",")
}

/// Actions to apply, at least one; `depth` limits clones in clones.
fn apply(r: &mut Rng, c: &mut Context, depth: usize) -> Vec<String> {
    let n = 1 + r.weighted(&[6, 4, 3, 2, 1]);
    let mut words = Vec::new();
    for _ in 0..n {
        if c.ct && matches!(c.kind, Kind::V4 | Kind::V6) && r.percent(30) {
            words.push(ct::action(r, c));
            continue;
        }
        // What tables that buckets look up put in front of a packet, OVS takes back to something
        // else.
        if c.nsh && c.table < 2 && r.percent(25) {
            words.push(around(r, c));
            continue;
        }
        let (w, clone) = match r.weighted(&[8, 6, 4, 3, 2, 1]) {
            0 => (output(r, c), false),
            1 => (change(r, c), false),
            2 => (resubmit(r, c), false),
            3 => (vlan(r, c), false),
            4 => (odd(r), false),
            _ => (String::new(), depth > 0),
        };
        match (clone, w.is_empty()) {
            (true, _) => {
                // Behind a clone whose packet waits for being parsed again, OVS does nothing.
                let mut c = Context { nsh: false, ..*c };
                words.push(format!("clone({})", apply(r, &mut c, depth - 1).join(",")))
            }
            (_, false) => words.push(w),
            _ => {}
        }
    }
    if words.is_empty() || r.percent(50) {
        words.push(output(r, c));
    }
    words
}

fn output(r: &mut Rng, c: &Context) -> String {
    match r.weighted(&[12, 2, 1, 1, 1, 1, if c.plain { 0 } else { 2 }, 2]) {
        0 => format!("output:{}", 1 + r.below(4)),
        1 => "NORMAL".into(),
        2 => "FLOOD".into(),
        3 => "ALL".into(),
        4 => "IN_PORT".into(),
        5 => "LOCAL".into(),
        6 => format!("group:{}", 1 + r.below(7)),
        _ => "output:NXM_NX_REG0[0..15]".into(),
    }
}

fn resubmit(r: &mut Rng, c: &Context) -> String {
    let left = TABLES - 1 - c.table;
    match (left, r.below(4)) {
        (0, _) => output(r, c),
        (_, 0) => format!("resubmit({},{})", 1 + r.below(4), c.table + 1 + r.below(left)),
        _ => format!("resubmit(,{})", c.table + 1 + r.below(left)),
    }
}

fn odd(r: &mut Rng) -> String {
    match r.weighted(&[1, 1, 3]) {
        0 => "note:01.02.03.04.05.06".into(),
        1 => "exit".into(),
        _ => register(r),
    }
}

fn register(r: &mut Rng) -> String {
    let n = r.below(5);
    r.pick(&[
        format!("load:{n:#x}->NXM_NX_REG0[]"),
        format!("load:{n:#x}->NXM_NX_REG1[0..7]"),
        format!("set_field:{n:#x}->reg0"),
        format!("set_field:{n:#x}/0xf->reg1"),
        format!("set_field:{n:#x}->metadata"),
        format!("load:{n:#x}->OXM_OF_METADATA[0..31]"),
        "move:NXM_OF_IN_PORT[]->NXM_NX_REG0[0..15]".into(),
        "move:NXM_OF_ETH_SRC[0..7]->NXM_NX_REG1[8..15]".into(),
        "move:NXM_NX_REG0[0..15]->NXM_NX_REG1[16..31]".into(),
        "push:NXM_NX_REG0[],pop:NXM_NX_REG1[]".into(),
        "push:NXM_OF_ETH_DST[0..31],pop:NXM_NX_REG2[]".into(),
    ])
}

/// Something that rewrites a header.
fn change(r: &mut Rng, c: &mut Context) -> String {
    let ethernet = r.percent(25);
    match c.kind {
        Kind::V4 | Kind::V6 if !ethernet && r.percent(12) => {
            (c.kind, c.proto) = (Kind::Mpls, None);
            "push_mpls:0x8847".into()
        }
        Kind::V4 if !ethernet => v4(r, c.proto),
        Kind::V6 if !ethernet => v6(r, c.proto),
        Kind::Arp if !ethernet => arp(r),
        Kind::Mpls if !ethernet => mpls(r, c),
        Kind::Nsh if !ethernet => nsh(r),
        _ => link(r),
    }
}

fn link(r: &mut Rng) -> String {
    let a = mac_text(mac(r).iter().fold(0, |v, b| v << 8 | u128::from(*b)));
    r.pick(&[
        format!("mod_dl_src:{a}"),
        format!("mod_dl_dst:{a}"),
        format!("set_field:{a}->eth_src"),
        format!("set_field:00:00:00:00:00:{}/00:00:00:00:00:ff->eth_dst", &a[15..]),
        "move:NXM_OF_ETH_SRC[]->NXM_OF_ETH_DST[]".into(),
        "load:0x5->NXM_OF_ETH_DST[0..3]".into(),
        "push:NXM_OF_ETH_SRC[],push:NXM_OF_ETH_DST[],pop:NXM_OF_ETH_SRC[],pop:NXM_OF_ETH_DST[]"
            .into(),
    ])
}

fn vlan(r: &mut Rng, c: &mut Context) -> String {
    let (vid, pcp) = (r.pick(&[1, 2, 100, 4095]), r.below(8));
    match r.weighted(&[
        if c.plain { 0 } else { 4 },
        if c.vlan { 3 } else { 0 },
        3,
        2,
        if c.vlan { 6 } else { 0 },
    ]) {
        0 => {
            c.vlan = true;
            r.pick(&["push_vlan:0x8100", "push_vlan:0x8100", "push_vlan:0x88a8"]).into()
        }
        1 => {
            c.vlan = false;
            r.pick(&["strip_vlan", "pop_vlan"]).into()
        }
        2 => {
            c.vlan = true;
            format!("mod_vlan_vid:{vid}")
        }
        3 => {
            c.vlan = true;
            format!("mod_vlan_pcp:{pcp}")
        }
        _ => r.pick(&[
            format!("set_field:{}->vlan_vid", vid + 4096),
            format!("set_field:{pcp}->vlan_pcp"),
            "load:0x3->NXM_OF_VLAN_TCI[0..11]".into(),
            "move:NXM_OF_VLAN_TCI[0..11]->NXM_NX_REG0[0..11]".into(),
        ]),
    }
}

fn v4(r: &mut Rng, proto: Option<u8>) -> String {
    if proto.is_some() && r.percent(40) {
        return l4(r, proto);
    }
    let a = v4_text(ipv4(ip4(r)));
    let n = r.below(64);
    r.pick(&[
        format!("mod_nw_src:{a}"),
        format!("mod_nw_dst:{a}"),
        format!("set_field:{a}->ip_src"),
        "set_field:10.0.0.7/255.255.0.255->ip_dst".into(),
        format!("mod_nw_tos:{}", n << 2),
        format!("mod_nw_ecn:{}", n & 3),
        format!("mod_nw_ttl:{n}"),
        format!("set_field:{n}->ip_dscp"),
        format!("load:{n:#x}->NXM_NX_IP_TTL[]"),
        "dec_ttl".into(),
        "dec_ttl".into(),
        "move:NXM_OF_IP_SRC[]->NXM_OF_IP_DST[]".into(),
        "move:NXM_OF_IP_DST[0..15]->NXM_NX_REG0[0..15]".into(),
    ])
}

fn v6(r: &mut Rng, proto: Option<u8>) -> String {
    if proto.is_some() && r.percent(40) {
        return l4(r, proto);
    }
    let a = v6_text(u128::from_be_bytes(ip6(r)));
    let n = r.below(64);
    r.pick(&[
        format!("set_field:{a}->ipv6_src"),
        format!("set_field:{a}->ipv6_dst"),
        format!("set_field:{n:#x}::{n:x}/ff::ff->ipv6_dst").replace("0x", ""),
        format!("set_field:{n:#x}->ipv6_label"),
        format!("mod_nw_tos:{}", n << 2),
        format!("mod_nw_ecn:{}", n & 3),
        format!("mod_nw_ttl:{n}"),
        "dec_ttl".into(),
        "dec_ttl".into(),
        "move:NXM_NX_IPV6_SRC[]->NXM_NX_IPV6_DST[]".into(),
        "load:0x7->NXM_NX_IPV6_SRC[0..63]".into(),
    ])
}

fn l4(r: &mut Rng, proto: Option<u8>) -> String {
    let p = l4_port(r);
    let name = match proto {
        Some(6) => "tcp",
        Some(17) => "udp",
        Some(132) => "sctp",
        Some(1) => {
            return r.pick(&[
                "set_field:5->icmp_type".into(),
                format!("set_field:{}->icmp_code", p & 3),
                "load:0x9->NXM_OF_ICMP_TYPE[]".to_string(),
            ]);
        }
        Some(58) => {
            return r.pick(&[
                "set_field:130->icmpv6_type".to_string(),
                format!("set_field:{}->icmpv6_code", p & 3),
            ]);
        }
        _ => return "dec_ttl".into(),
    };
    r.pick(&[
        format!("mod_tp_src:{p}"),
        format!("mod_tp_dst:{p}"),
        format!("set_field:{p}->{name}_src"),
        format!("set_field:{}/0xff->{name}_dst", p & 0xff),
        format!("set_field:{p}->{name}_dst"),
    ])
}

fn arp(r: &mut Rng) -> String {
    let a = v4_text(ipv4(ip4(r)));
    r.pick(&[
        format!("set_field:{a}->arp_spa"),
        format!("set_field:{a}->arp_tpa"),
        "set_field:2->arp_op".into(),
        "load:0x2->NXM_OF_ARP_OP[]".into(),
        "set_field:02:00:00:00:00:77->arp_sha".into(),
        "move:NXM_NX_ARP_SHA[]->NXM_NX_ARP_THA[]".into(),
        "move:NXM_OF_ETH_SRC[]->NXM_OF_ETH_DST[]".into(),
    ])
}

fn nsh(r: &mut Rng) -> String {
    let n = r.below(4);
    r.pick(&[
        format!("set_field:{n}->nsh_flags"),
        format!("set_field:{n}/2->nsh_flags").replace("1/", "0/").replace("3/", "2/"),
        format!("set_field:{n}->nsh_ttl"),
        format!("set_field:{n:#x}->nsh_spi"),
        format!("set_field:{n}->nsh_si"),
        format!("load:{n:#x}->NXOXM_NSH_SI[0..1]"),
        "set_field:0x1200/0xff00->nsh_c2".into(),
        "move:NXOXM_NSH_SPI[]->NXM_NX_REG0[0..23]".into(),
        "move:NXOXM_NSH_SI[0..1]->NXM_NX_REG0[0..1]".into(),
        "dec_nsh_ttl".into(),
        "dec_nsh_ttl".into(),
    ])
}

/// A network service header, and an Ethernet header in front of it, come or go.
fn around(r: &mut Rng, c: &mut Context) -> String {
    if c.kind == Kind::Nsh && !c.vlan && r.percent(50) {
        (c.kind, c.proto) = (Kind::Any, None);
        return "decap(),decap()".into();
    }
    (c.kind, c.proto, c.vlan) = (Kind::Nsh, None, false);
    let header = r.pick(&[
        "encap(nsh)",
        "encap(nsh(md_type=1))",
        "encap(nsh(md_type=2))",
        "encap(nsh(md_type=2,tlv(0x1000,10,0x12345678),tlv(0x2,3,0x9876543210)))",
    ]);
    let between = if r.percent(50) { format!(",{}", nsh(r)) } else { String::new() };
    let address = r.pick(&["", ",set_field:02:00:00:00:00:09->eth_dst"]);
    format!("{header}{between},encap(ethernet){address}")
}

fn mpls(r: &mut Rng, c: &mut Context) -> String {
    match r.weighted(&[2, 2, 2, 2, 3]) {
        0 => format!("set_field:{}->mpls_label", r.below(100)),
        1 => format!("set_field:{}->mpls_tc", r.below(8)),
        2 => "dec_mpls_ttl".into(),
        3 => format!("set_mpls_ttl({})", r.below(255)),
        _ => {
            (c.kind, c.proto) = (Kind::V4, None);
            "pop_mpls:0x0800".into()
        }
    }
}

/// What an action set may hold.
fn action_set(r: &mut Rng, c: Context) -> String {
    let mut words = Vec::new();
    for _ in 0..1 + r.below(3) {
        words.push(match r.weighted(&[4, 2, 2, 2]) {
            0 => format!("output:{}", 1 + r.below(4)),
            1 => format!("group:{}", 1 + r.below(7)),
            2 => link(r)
                .split(',')
                .next()
                .unwrap_or_default()
                .replace("push:NXM_OF_ETH_SRC[]", "strip_vlan"),
            _ if matches!(c.kind, Kind::V4 | Kind::V6) => "dec_ttl".into(),
            _ => format!("set_field:{:#x}->reg1", r.below(4)),
        });
    }
    words.join(",")
}
