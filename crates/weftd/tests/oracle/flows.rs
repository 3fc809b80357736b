//! Flow tables made from packets, so that they are hit often.

use crate::actions::{self, Context};
use crate::ct;
use crate::packets::{Fact, Form, Kind, Packet, packet, with_nsh};
use testkit::Rng;

/// Tables that flows are put in.
pub const TABLES: usize = 4;

/// Some packets and flows that they meet.
pub struct Set {
    pub seed: u64,
    /// Nothing that OpenFlow 1.0 cannot say.
    pub plain: bool,
    /// Connection tracking is used.
    pub ct: bool,
    pub packets: Vec<Packet>,
    /// Flow text as `ovs-ofctl add-flow` takes it.
    pub flows: Vec<String>,
}

/// What a set has besides.
#[derive(Clone, Copy, PartialEq)]
pub enum Besides {
    Nothing,
    /// Connection tracking.
    Ct,
    /// Network service headers.
    Nsh,
}

/// The set of a seed.
pub fn set(seed: u64, besides: Besides) -> Set {
    let mut r = Rng::new(seed);
    let (ct, nsh) = (besides == Besides::Ct, besides == Besides::Nsh);
    let packets: Vec<_> = (0..8)
        .map(|_| if nsh && r.percent(60) { with_nsh(&mut r) } else { packet(&mut r) })
        .collect();
    let plain = !ct && !nsh && r.percent(30);
    let mut flows = Vec::new();
    for table in 0..TABLES {
        for i in 0..if table == 0 { 12 } else { 7 } {
            let priority = 10 * i + r.below(10);
            let c = Context { nsh, ..Context::new(table, plain, ct) };
            flows.push(flow(&mut r, &packets, c, priority));
        }
        if r.percent(40) {
            let c = Context { nsh, ..Context::new(table, plain, ct) };
            flows.push(format!("table={table},priority=0,actions={}", actions::list(&mut r, c)));
        }
    }
    Set { seed, plain, ct, packets, flows }
}

/// A flow that one of the packets probably matches. Within a table no two have the same priority:
/// which of them wins is not defined.
fn flow(r: &mut Rng, packets: &[Packet], c: Context, priority: usize) -> String {
    let table = c.table;
    let p = &packets[r.below(packets.len())];
    let (text, c) = match_of(r, p, c);
    let cookie =
        if r.percent(15) { format!("cookie={:#x},", r.below(1000)) } else { String::new() };
    let timeout = if r.percent(5) { "idle_timeout=3000,hard_timeout=4000," } else { "" };
    let comma = if text.is_empty() { "" } else { "," };
    let actions = actions::list(r, c);
    format!("{cookie}{timeout}table={table},priority={priority},{text}{comma}actions={actions}")
}

/// A match on some of what the packet is, now and then with a wrong value.
fn match_of(r: &mut Rng, p: &Packet, mut c: Context) -> (String, Context) {
    let depth = r.weighted(&[2, 4, 5]);
    let mut words: Vec<String> = Vec::new();
    let mut facts = p.link_facts();
    let tagged = !p.frame.tags.is_empty();
    let one_of_vlan = r.pick(&["dl_vlan", "vlan_tci", "vlan_vid"]);
    facts.retain(|f| {
        !matches!(f.name, "dl_vlan" | "vlan_tci" | "vlan_vid") || f.name == one_of_vlan
    });
    if one_of_vlan != "dl_vlan" {
        facts.retain(|f| f.name != "dl_vlan_pcp");
    }
    if depth > 0 {
        words.push(type_word(r, p, depth == 2, &mut c));
        facts.extend(p.net_facts());
    }
    if depth == 2 {
        facts.extend(l4_facts(r, p, &mut words));
    }
    if c.table > 0 {
        facts.extend(registers(r));
    }
    if c.ct && r.percent(if c.table == 0 { 20 } else { 60 }) {
        words.extend(ct::facts(r).iter().take(1 + r.below(2)).map(|f| word(r, f)));
    }
    for _ in 0..r.weighted(&[2, 5, 4, 2]) {
        let f = facts.remove(r.below(facts.len()));
        words.push(word(r, &f));
        c.vlan |= tagged && f.name == "dl_vlan";
    }
    (words.join(","), c)
}

/// The transport facts that may be used; ND fields bring their prerequisites along.
fn l4_facts(r: &mut Rng, p: &Packet, words: &mut Vec<String>) -> Vec<Fact> {
    let all = p.l4_facts();
    let nd = all.iter().any(|f| f.name == "nd_target");
    if nd && r.percent(70) {
        words.push(format!("icmp_type={},icmp_code=0", all[0].value));
        return all[2..].to_vec();
    }
    all.into_iter().filter(|f| !f.name.starts_with("nd_")).collect()
}

fn registers(r: &mut Rng) -> Vec<Fact> {
    let fact = |name, value, bits| Fact { name, value, form: Form::Hex(bits) };
    let small = r.below(4) as u128;
    vec![fact("metadata", small, 64), fact("reg0", small, 32), fact("reg1", small, 32)]
}

fn type_word(r: &mut Rng, p: &Packet, with_proto: bool, c: &mut Context) -> String {
    c.kind = p.kind();
    let named = r.percent(80);
    let v6 = c.kind == Kind::V6;
    let ip = match (named, v6) {
        (true, false) => "ip",
        (true, true) => "ipv6",
        (false, false) => "dl_type=0x0800",
        (false, true) => "dl_type=0x86dd",
    };
    match (c.kind, p.proto().filter(|_| with_proto)) {
        (Kind::Mpls, _) => "mpls".into(),
        (Kind::Arp, _) => "arp".into(),
        (Kind::Any | Kind::Nsh, _) => format!("dl_type={:#06x}", p.frame.net.ethertype()),
        (_, None) => ip.into(),
        (_, Some(proto)) => {
            c.proto = Some(proto);
            let name = match (proto, v6) {
                (6, false) => "tcp",
                (6, true) => "tcp6",
                (17, false) => "udp",
                (17, true) => "udp6",
                (132, false) => "sctp",
                (132, true) => "sctp6",
                (1, false) => "icmp",
                (58, true) => "icmp6",
                _ => return format!("{ip},nw_proto={proto}"),
            };
            if named { name.into() } else { format!("{ip},nw_proto={proto}") }
        }
    }
}

/// `name=value` or `name=value/mask`.
fn word(r: &mut Rng, f: &Fact) -> String {
    let wrong = u128::from(r.percent(8));
    let value = f.value ^ wrong;
    let how = r.below(3);
    let text = match f.form {
        Form::Text(t) => t.into(),
        Form::Dec => f.value.to_string(),
        Form::Mac if how > 0 => mac_text(value),
        Form::Mac => {
            let mask =
                r.pick(&[0x0100_0000_0000, 0xffff_ff00_0000, 0xff_ffff_ffff, 0xff00_0000_00f3]);
            format!("{}/{}", mac_text(value & mask), mac_text(mask))
        }
        Form::V4 => {
            let (mask, m) = match how {
                0 => return format!("{}={}", f.name, v4_text(value)),
                1 => prefix(r.pick(&[8, 16, 22, 24, 30, 31]), 32),
                _ => mask_of(r.pick(&[0xff00_ff00, 0xffff_ff01, 0x3]), v4_text),
            };
            format!("{}/{m}", v4_text(value & mask))
        }
        Form::V6 => {
            let (mask, m) = match how {
                0 => return format!("{}={}", f.name, v6_text(value)),
                1 => prefix(r.pick(&[8, 16, 48, 64, 96, 127]), 128),
                _ => mask_of(r.pick(&[0xff, 0xff << 120 | 3, 0xffff << 112 | 0xffff]), v6_text),
            };
            format!("{}/{m}", v6_text(value & mask))
        }
        Form::Hex(_) if how > 0 => format!("{value:#x}"),
        Form::Hex(bits) => {
            let full = (1u128 << bits) - 1;
            let mask = r.pick(&[full & !0xf, full & 0xff, 1, full & 0x1010]);
            format!("{:#x}/{mask:#x}", value & mask)
        }
    };
    format!("{}={text}", f.name)
}

fn prefix(n: u32, bits: u32) -> (u128, String) {
    (u128::MAX << (bits - n), n.to_string())
}

fn mask_of(mask: u128, text: fn(u128) -> String) -> (u128, String) {
    (mask, text(mask))
}

pub fn mac_text(v: u128) -> String {
    let b = v.to_be_bytes();
    b[10..].iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(":")
}

pub fn v4_text(v: u128) -> String {
    std::net::Ipv4Addr::from(v as u32).to_string()
}

pub fn v6_text(v: u128) -> String {
    std::net::Ipv6Addr::from(v).to_string()
}

/// The packet as flow text, all exact: for traces without a packet.
pub fn exact(p: &Packet) -> String {
    let mut r = Rng::new(0);
    let mut c = Context::new(0, false, false);
    let mut words = vec![type_word(&mut r, p, true, &mut c)];
    let skip = |f: &Fact| matches!(f.name, "vlan_tci" | "vlan_vid");
    for f in p.link_facts().into_iter().filter(|f| !skip(f)) {
        words.push(exact_word(&f));
    }
    for f in p.net_facts().into_iter().chain(p.l4_facts()) {
        let word = exact_word(&f);
        // `tp_src` alone means that of TCP here.
        let proto = match p.proto() {
            Some(17) => "udp",
            Some(132) => "sctp",
            Some(58) => "icmpv6",
            _ => "tcp",
        };
        let word = word.replace("tp_", &format!("{proto}_"));
        words.push(if proto == "icmpv6" { word.replace("icmp_", "icmpv6_") } else { word });
    }
    words.join(",")
}

fn exact_word(f: &Fact) -> String {
    let text = match f.form {
        Form::Mac => mac_text(f.value),
        Form::V4 => v4_text(f.value),
        Form::V6 => v6_text(f.value),
        Form::Hex(_) => format!("{:#x}", f.value),
        Form::Dec => f.value.to_string(),
        Form::Text(t) => t.into(),
    };
    format!("{}={text}", f.name)
}
