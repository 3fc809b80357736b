//! Actions as text: as `ovs-ofctl dump-flows` and `ofproto/trace` print them, and as people type
//! them ([`parse_actions`]).

mod learn_text;
mod numbered;
pub(crate) mod parse;
pub(crate) mod subfields;

use flow::{Field, Format, port_text};
use numbered::REASONS;
use openflow::conntrack::*;
use openflow::{Action, Header, Instruction, NshProperty, Reason, Subfield, port};
use std::net::IpAddr;
use subfields::sub;

fn plain(_: u32) -> Option<String> {
    None
}

/// The text of a list of actions, separated by commas; `drop` if it is empty.
pub fn actions_text(list: &[Action]) -> String {
    if list.is_empty() {
        return "drop".into();
    }
    list.iter().map(action_text).collect::<Vec<_>>().join(",")
}

/// The text of instructions; actions of Apply are printed without a frame.
pub fn instructions_text(list: &[Instruction]) -> String {
    let text = |i: &Instruction| match i {
        Instruction::Meter(id) => format!("meter:{id}"),
        Instruction::Apply(a) => actions_text(a),
        Instruction::Clear => "clear_actions".into(),
        Instruction::Write(a) => format!("write_actions({})", actions_text(a)),
        Instruction::WriteMetadata { value, mask } => metadata_text(*value, *mask),
        Instruction::Goto(t) => format!("goto_table:{t}"),
    };
    match list {
        [] => "drop".into(),
        list => list.iter().map(text).collect::<Vec<_>>().join(","),
    }
}

pub(crate) fn metadata_text(value: u64, mask: u64) -> String {
    match mask {
        u64::MAX => format!("write_metadata:{}", hex(value)),
        m => format!("write_metadata:{}/{m:#x}", hex(value)),
    }
}

/// The text of one action.
pub fn action_text(a: &Action) -> String {
    use Action as A;
    match a {
        A::Output { port, trunc, .. } => output(*port, *trunc),
        A::OutputReg { src, .. } => format!("output:{}", sub(*src)),
        A::Controller { .. } => controller(a),
        A::Enqueue { port, queue } => format!("enqueue:{}:{queue}", port_text(*port, &plain)),
        A::SetQueue(q) => format!("set_queue:{q}"),
        A::PopQueue => "pop_queue".into(),
        A::Group(g) => format!("group:{g}"),
        A::SetField { field, value, mask } => set_field(*field, *value, *mask),
        A::SetTunMetadata(t) => {
            format!("set_field:{}->tun_metadata{}", t.value_text(), t.index)
        }
        A::Load { dst, value } => load(*dst, *value),
        A::Move { src, dst } => format!("move:{}->{}", sub(*src), sub(*dst)),
        A::Push(s) => format!("push:{}", sub(*s)),
        A::Pop(d) => format!("pop:{}", sub(*d)),
        A::SetVlanVid { vid, push_if_absent: true } => format!("mod_vlan_vid:{vid}"),
        A::SetVlanVid { vid, .. } => format!("set_vlan_vid:{vid}"),
        A::SetVlanPcp { pcp, push_if_absent: true } => format!("mod_vlan_pcp:{pcp}"),
        A::SetVlanPcp { pcp, .. } => format!("set_vlan_pcp:{pcp}"),
        A::StripVlan { pop: true } => "pop_vlan".into(),
        A::StripVlan { pop: false } => "strip_vlan".into(),
        A::SetEthSrc(m) => format!("mod_dl_src:{}", mac(*m)),
        A::SetEthDst(m) => format!("mod_dl_dst:{}", mac(*m)),
        A::SetIpSrc(ip) => format!("mod_nw_src:{}", std::net::Ipv4Addr::from(*ip)),
        A::SetIpDst(ip) => format!("mod_nw_dst:{}", std::net::Ipv4Addr::from(*ip)),
        A::SetIpDscp(v) => format!("mod_nw_tos:{v}"),
        A::SetIpEcn(v) => format!("mod_nw_ecn:{v}"),
        A::SetIpTtl(v) => format!("mod_nw_ttl:{v}"),
        A::SetL4Src(v) => format!("mod_tp_src:{v}"),
        A::SetL4Dst(v) => format!("mod_tp_dst:{v}"),
        A::PushVlan { ethertype } => format!("push_vlan:{ethertype:#06x}"),
        A::DecTtl { ids: None } => "dec_ttl".into(),
        A::DecTtl { ids: Some(ids) } if ids == &[0] => "dec_ttl".into(),
        A::DecTtl { ids: Some(ids) } => {
            let ids: Vec<String> = ids.iter().map(u16::to_string).collect();
            format!("dec_ttl({})", ids.join(","))
        }
        A::SetTunnel { id, wide } => {
            format!("set_tunnel{}:{id:#x}", if *wide { "64" } else { "" })
        }
        A::Resubmit { in_port, table, ct } => resubmit(*in_port, *table, *ct),
        A::Note(bytes) => {
            let bytes: Vec<String> = bytes.iter().map(|b| format!("{b:02x}")).collect();
            format!("note:{}", bytes.join("."))
        }
        A::Exit => "exit".into(),
        A::Test(openflow::TestAction::Slow) => "debug_slow".into(),
        A::Test(openflow::TestAction::Recirc) => "debug_recirc".into(),
        A::Clone(inner) => format!("clone({})", actions_text(inner)),
        A::FinTimeout { idle, hard } => fin_timeout(*idle, *hard),
        A::Conjunction { id, clause, n_clauses } => {
            format!("conjunction({id},{}/{n_clauses})", u16::from(*clause) + 1)
        }
        A::Meter(id) => format!("meter:{id}"),
        A::Ct(ct) => conntrack(ct),
        A::Nat(n) => nat(n),
        A::CtClear => "ct_clear".into(),
        A::CheckPktLarger { len, dst } => format!("check_pkt_larger({len})->{}", sub(*dst)),
        A::DeleteField(f) => format!("delete_field:{}", f.name()),
        A::Encap(header) => encap(header),
        A::Decap(None) => "decap()".into(),
        A::Decap(Some(inner)) => decap(*inner),
        a => mpls(a).or_else(|| learn_text::text(a)).unwrap_or_else(|| format!("{a:?}")),
    }
}

/// A whole input port is written as its 16-bit form where it has one.
fn load(dst: Subfield, value: u64) -> String {
    let short = |v: u64| v < 0xff00 || (0xffff_ff00..=0xffff_ffff).contains(&v);
    let (dst, value) = match (dst.field, dst.bits) {
        (Field::InPort, 32) if short(value) => (Subfield { bits: 16, ..dst }, value & 0xffff),
        _ => (dst, value),
    };
    format!("load:{}->{}", hex(value), sub(dst))
}

fn fin_timeout(idle: u16, hard: u16) -> String {
    let all = [("idle_timeout", idle), ("hard_timeout", hard)];
    let set = all.iter().filter(|(_, seconds)| *seconds != 0);
    let parts: Vec<String> = set.map(|(name, seconds)| format!("{name}={seconds}")).collect();
    format!("fin_timeout({})", parts.join(","))
}

fn encap(header: &Header) -> String {
    let properties = match header {
        Header::Nsh(properties) if !properties.is_empty() => properties,
        header => return format!("encap({})", header.name()),
    };
    let text = |p: &NshProperty| match p {
        NshProperty::MdType(kind) => format!("md_type={kind}"),
        NshProperty::Tlv { class, kind, value } => {
            format!("tlv({class:#06x},{kind},{})", flow::long_hex(value))
        }
    };
    let all: Vec<String> = properties.iter().map(text).collect();
    format!("encap({}({}))", header.name(), all.join(","))
}

fn decap(inner: u32) -> String {
    let (namespace, kind) = (inner >> 16, hex(u64::from(inner & 0xffff)));
    format!("decap(packet_type(ns={namespace},type={kind}))")
}

/// The text of an action on MPLS label stack entries.
fn mpls(a: &Action) -> Option<String> {
    use Action as A;
    Some(match a {
        A::PushMpls { ethertype } => format!("push_mpls:{ethertype:#06x}"),
        A::PopMpls { ethertype } => format!("pop_mpls:{ethertype:#06x}"),
        A::SetMplsLabel(v) => format!("set_mpls_label({v})"),
        A::SetMplsTc(v) => format!("set_mpls_tc({v})"),
        A::SetMplsTtl(v) => format!("set_mpls_ttl({v})"),
        A::DecMplsTtl => "dec_mpls_ttl".into(),
        A::DecNshTtl => "dec_nsh_ttl".into(),
        _ => return None,
    })
}

/// The text of a `ct` action: a `nat` at its beginning is its own argument, other actions are in
/// `exec`.
fn conntrack(ct: &Conntrack) -> String {
    let mut parts = Vec::new();
    let flags = [(CT_COMMIT, "commit"), (CT_FORCE, "force")];
    let set = flags.iter().filter(|(flag, _)| ct.flags & flag != 0);
    parts.extend(set.map(|(_, name)| name.to_string()));
    parts.extend(ct.table.map(|t| format!("table={t}")));
    match ct.zone {
        Zone::Number(0) => {}
        Zone::Number(n) => parts.push(format!("zone={n}")),
        Zone::Field(s) => parts.push(format!("zone={}", sub(s))),
    }
    let mut exec = &ct.actions[..];
    if let [Action::Nat(n), rest @ ..] = exec {
        parts.push(nat(n));
        exec = rest;
    }
    if !exec.is_empty() {
        parts.push(format!("exec({})", actions_text(exec)));
    }
    match ct.alg {
        0 => {}
        ALG_FTP => parts.push("alg=ftp".into()),
        ALG_TFTP => parts.push("alg=tftp".into()),
        n => parts.push(format!("alg={n}")),
    }
    format!("ct({})", parts.join(","))
}

fn nat(n: &Nat) -> String {
    let side = match n.flags {
        f if f & NAT_SRC != 0 => "src",
        f if f & NAT_DST != 0 => "dst",
        _ => return "nat".into(),
    };
    let address = |a: IpAddr| match a {
        IpAddr::V6(a) if n.first_port != 0 => format!("[{a}]"),
        a => a.to_string(),
    };
    let range = |first: String, last: Option<String>| match last {
        Some(last) if last != first => format!("{first}-{last}"),
        _ => first,
    };
    let mut text = format!("nat({side}");
    if let Some(first) = n.first {
        text.push('=');
        text.push_str(&range(address(first), n.last.map(address)));
        if n.first_port != 0 {
            let last = Some(n.last_port).filter(|p| *p != 0).map(|p| p.to_string());
            text.push_str(&format!(":{}", range(n.first_port.to_string(), last)));
        }
    }
    let flags = [(NAT_PERSISTENT, ",persistent"), (NAT_HASH, ",hash"), (NAT_RANDOM, ",random")];
    flags.iter().filter(|(flag, _)| n.flags & flag != 0).for_each(|(_, name)| text.push_str(name));
    text.push(')');
    text
}

fn output(p: u32, trunc: u32) -> String {
    match (p, trunc) {
        (p, 0) if p >= port::MAX && p != port::CONTROLLER => port_text(p, &plain),
        (p, 0) => format!("output:{}", port_text(p, &plain)),
        (p, n) => format!("output(port={},max_len={n})", port_text(p, &plain)),
    }
}

fn controller(a: &Action) -> String {
    let Action::Controller { max_len, reason, id, userdata, pause, meter } = a else {
        return String::new();
    };
    let simple = *id == 0 && userdata.is_empty() && !pause && meter.is_none();
    if simple && *reason == Reason::Action {
        return format!("CONTROLLER:{max_len}");
    }
    let mut parts = Vec::new();
    let named = REASONS.iter().find(|(r, _)| r == reason && *r != Reason::Action);
    parts.extend(named.map(|(_, name)| format!("reason={name}")));
    if *max_len != u16::MAX {
        parts.push(format!("max_len={max_len}"));
    }
    if *id != 0 {
        parts.push(format!("id={id}"));
    }
    if !userdata.is_empty() {
        let bytes: Vec<String> = userdata.iter().map(|b| format!("{b:02x}")).collect();
        parts.push(format!("userdata={}", bytes.join(".")));
    }
    if *pause {
        parts.push("pause".into());
    }
    parts.extend(meter.map(|id| format!("meter_id={id}")));
    format!("controller({})", parts.join(","))
}

fn resubmit(in_port: Option<u32>, table: Option<u8>, ct: bool) -> String {
    let port = in_port.map(|p| port_text(p, &plain)).unwrap_or_default();
    match table {
        _ if ct => {
            let table = table.filter(|t| *t != 0xff).map_or(String::new(), |t| t.to_string());
            format!("resubmit({port},{table},ct)")
        }
        Some(t) if t != 0xff => format!("resubmit({port},{t})"),
        _ if in_port.is_none() => "resubmit(,)".into(),
        _ => format!("resubmit:{port}"),
    }
}

fn mac(m: [u8; 6]) -> String {
    m.map(|b| format!("{b:02x}")).join(":")
}

/// `set_field:VALUE[/MASK]->NAME`.
fn set_field(field: Field, value: u128, mask: u128) -> String {
    let text = value_text(field, value & mask);
    // OpenFlow's nw_tos has no ECN bits.
    let whole = if field == Field::IpTos { 0xfc } else { field.full() };
    let mask = match mask == whole {
        true => String::new(),
        false => format!("/{}", mask_text(field, mask)),
    };
    format!("set_field:{text}{mask}->{}", field.name())
}

fn mask_text(field: Field, mask: u128) -> String {
    let aligned = mask << (128 - field.bits());
    let prefix = aligned.leading_ones() == aligned.count_ones();
    match field.format() {
        Format::Decimal => format!("{mask:#x}"),
        Format::Ipv4 | Format::Ipv6 if prefix => aligned.count_ones().to_string(),
        _ => value_text(field, mask),
    }
}

/// The text of a whole field's value.
fn value_text(field: Field, value: u128) -> String {
    let bytes = value.to_be_bytes();
    match field.format() {
        Format::Decimal => value.to_string(),
        Format::Ethernet => mac([bytes[10], bytes[11], bytes[12], bytes[13], bytes[14], bytes[15]]),
        Format::Ipv4 => std::net::Ipv4Addr::from(value as u32).to_string(),
        Format::Ipv6 => std::net::Ipv6Addr::from(value).to_string(),
        Format::Port => port_text(value as u32, &plain),
        _ if value == 0 => "0".into(),
        _ => format!("{value:#x}"),
    }
}

/// The text of a subfield's present value.
pub(crate) fn now_text(s: Subfield, value: u128) -> String {
    let whole = usize::from(s.bits) == s.field.bits();
    let text = match whole {
        true => value_text(s.field, value),
        false if value == 0 => "0".into(),
        false => format!("{value:#x}"),
    };
    format!("{} is now {text}", sub(s))
}

/// Hexadecimal as C's `%#x` writes it: zero has no prefix.
fn hex(value: u64) -> String {
    if value == 0 { "0".into() } else { format!("{value:#x}") }
}
