//! Operations as text: OVS's datapath actions (`dpctl/dump-flows`, `ofproto/trace`).

use crate::{Op, Payload, Punt, Rewrite};
use flow::{BOND_NO_MIN, Field, Format, Key, Mask, NO_PORT, NSH, PortNo, at};
use std::net::{Ipv4Addr, Ipv6Addr};
use wire::{
    ETH_ARP, ETH_IPV6, ETH_MPLS, ETH_MPLS_MCAST, ETH_NSH, ETH_RARP, ETH_VLAN, IP_ICMPV6, NSH_LEN,
    NSH_MD1, NSH_MD2, Nsh,
};

/// A list of operations; `drop` if there are none.
pub fn ops_text(ops: &[Op]) -> String {
    ops_text_with(ops, &OpsText::default())
}

/// As [`ops_text`], in the given style.
pub fn ops_text_with(ops: &[Op], style: &OpsText<'_>) -> String {
    if ops.is_empty() {
        return "drop".into();
    }
    ops.iter().map(|op| op_text(op, style)).collect::<Vec<_>>().join(",")
}

/// How operations are printed.
#[derive(Clone, Copy)]
pub struct OpsText<'a> {
    /// A packet to the control side, whose context is opaque here.
    pub punt: &'a dyn Fn(&Punt) -> String,
    /// The name of a datapath port; its number where there is none.
    pub port: &'a dyn Fn(PortNo) -> Option<String>,
}

impl Default for OpsText<'_> {
    /// Numbers, and of a packet to the control side how much of it goes.
    fn default() -> Self {
        OpsText {
            punt: &|p| format!("userspace(pid=0,controller(max_len={}))", p.max_len),
            port: &|_| None,
        }
    }
}

/// One operation. A rewrite prints one `set()` per protocol.
fn op_text(op: &Op, style: &OpsText<'_>) -> String {
    match op {
        Op::Output(no) if (BOND_NO_MIN..NO_PORT).contains(no) => {
            format!("lb_output({})", no - BOND_NO_MIN + 1)
        }
        Op::Output(port) => port_text(*port, style),
        Op::Set(r) => set_text(r),
        Op::PushEth(r) => {
            let b = r.key.bytes();
            format!("push_eth(src={},dst={})", mac(&b[at::ETH_SRC..][..6]), mac(&b[..6]))
        }
        Op::PushVlan { tpid, tci } => {
            let (vid, pcp) = (tci & 0xfff, tci >> 13);
            match *tpid {
                ETH_VLAN => format!("push_vlan(vid={vid},pcp={pcp})"),
                _ => format!("push_vlan(tpid={tpid:#06x},vid={vid},pcp={pcp})"),
            }
        }
        Op::PopVlan => "pop_vlan".into(),
        Op::PushMpls { ethertype, lse } => {
            format!("push_mpls({},eth_type={ethertype:#x})", lse_text(*lse))
        }
        Op::PopMpls { ethertype } => format!("pop_mpls(eth_type={ethertype:#x})"),
        Op::EncapMpls { ethertype, lse, dst, src } => format!(
            "add_mpls({},eth_type={ethertype:#x}),push_eth(src={},dst={})",
            lse_text(*lse),
            mac(src),
            mac(dst)
        ),
        Op::DecapMpls => "pop_eth,pop_mpls(eth_type=0x6558)".into(),
        Op::PushNsh { payload, header } => {
            let before = if *payload == Payload::Popped { "pop_eth," } else { "" };
            format!("{before}push_nsh({})", push_nsh_text(header))
        }
        Op::PopNsh { framed: true } => "pop_eth,pop_nsh()".into(),
        Op::PopNsh { framed: false } => "pop_nsh()".into(),
        Op::Recirc(id) => format!("recirc({id:#x})"),
        Op::Truncate(len) => format!("trunc({len})"),
        Op::Punt(p) => (style.punt)(p),
        Op::Clone(ops) => format!("clone({})", ops_text_with(ops, style)),
        Op::CheckLen { size, more, others } => format!(
            "check_pkt_len(size={size},gt({}),le({}))",
            ops_text_with(more, style),
            ops_text_with(others, style)
        ),
        Op::Ct(ct) => ct.to_string(),
        Op::CtClear => "ct_clear".into(),
        Op::Meter(m) => format!("meter({})", m.id()),
        Op::Sample { chance, ops } => {
            let percent = f64::from(*chance) * 100.0 / f64::from(u32::MAX);
            format!("sample(sample={percent:.1}%,actions({}))", ops_text_with(ops, style))
        }
        Op::TunnelPush(t) => t.text(&|no| port_text(no, style)),
        Op::TunnelPop { port, .. } => format!("tnl_pop({})", port_text(*port, style)),
        Op::Kernel(text) => text.to_string(),
        Op::Drop(_) => "drop".into(),
    }
}

fn port_text(port: PortNo, style: &OpsText<'_>) -> String {
    (style.port)(port).unwrap_or_else(|| port.to_string())
}

fn lse_text(lse: u32) -> String {
    let (label, tc, ttl, bos) = (lse >> 12, lse >> 9 & 7, lse & 0xff, lse >> 8 & 1);
    format!("label={label},tc={tc},ttl={ttl},bos={bos}")
}

fn push_nsh_text(header: &[u8]) -> String {
    let Some(h) = Nsh::new(header) else { return String::new() };
    let (path, kind, behind) = (h.path(), h.md_type(), &header[NSH_LEN..]);
    let metadata = match kind {
        NSH_MD1 => {
            let contexts = behind.chunks(4).enumerate();
            contexts.map(|(i, c)| format!(",c{}={:#x}", i + 1, number(c))).collect()
        }
        NSH_MD2 => format!(",md2={}", flow::long_hex(behind)),
        _ => String::new(),
    };
    format!(
        "flags={},ttl={},mdtype={kind},np={},spi={:#x},si={}{metadata}",
        h.flags(),
        h.ttl(),
        h.protocol(),
        path >> 8,
        path & 0xff
    )
}

/// Collects `name=value[/mask]` of one protocol.
struct Part<'a> {
    key: &'a Key,
    mask: &'a Mask,
    list: Vec<String>,
}

impl Part<'_> {
    /// The IPv6 flow label: 20 bits of four bytes.
    fn label(&mut self) {
        let (label, mask) = (self.key.u32(at::IPV6_LABEL), self.mask.u32(at::IPV6_LABEL));
        match mask {
            0 => {}
            0xf_ffff => self.list.push(format!("label={label:#x}")),
            m => self.list.push(format!("label={label:#x}/{m:#x}")),
        }
    }

    /// A field of a network service header.
    fn nsh(&mut self, field: Field) {
        let (value, mask) = (field.get(self.key), field.get(self.mask));
        let name = field.name();
        let name = name.trim_start_matches("nsh_");
        let decimal = field.format() == Format::Decimal;
        self.list.push(match (decimal, mask == field.full()) {
            _ if mask == 0 => return,
            (true, true) => format!("{name}={value}"),
            (true, false) => format!("{name}={value:#04x}/{mask:#04x}"),
            (false, true) => format!("{name}={value:#x}"),
            (false, false) => format!("{name}={value:#x}/{mask:#010x}"),
        });
    }

    /// A field of `n` bytes, printed by `show`; masks are printed unless exact.
    fn field(&mut self, name: &str, at: usize, n: usize, show: fn(&[u8]) -> String) {
        let mask = &self.mask.bytes()[at..at + n];
        if mask.iter().all(|b| *b == 0) {
            return;
        }
        let value = show(&self.key.bytes()[at..at + n]);
        self.list.push(match mask.iter().all(|b| *b == 0xff) {
            true => format!("{name}={value}"),
            false => format!("{name}={value}/{}", show_mask(mask, show)),
        });
    }
}

fn show_mask(mask: &[u8], show: fn(&[u8]) -> String) -> String {
    match mask.len() {
        1 | 2 => format!("{:#x}", number(mask)),
        _ => show(mask),
    }
}

fn number(b: &[u8]) -> u64 {
    b.iter().fold(0, |v, b| v << 8 | u64::from(*b))
}

fn decimal(b: &[u8]) -> String {
    number(b).to_string()
}

fn hex(b: &[u8]) -> String {
    crate::ct::hex(number(b).into())
}

pub(crate) fn mac(b: &[u8]) -> String {
    b.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(":")
}

pub(crate) fn ipv4(b: &[u8]) -> String {
    Ipv4Addr::from(number(b) as u32).to_string()
}

pub(crate) fn ipv6(b: &[u8]) -> String {
    let v = b.iter().fold(0, |v, b| v << 8 | u128::from(*b));
    Ipv6Addr::from(v).to_string()
}

/// What the rewrite's fields mean follows from where they are: the packet's kind is not in it, so
/// IPv4, ARP and MPLS, which share places, differ in the Ethertype that comes along.
fn set_text(r: &Rewrite) -> String {
    let part = |fill: &dyn Fn(&mut Part<'_>)| {
        let mut p = Part { key: &r.key, mask: &r.mask, list: Vec::new() };
        fill(&mut p);
        p.list.join(",")
    };
    if r.mask.u32(at::PRIORITY) != 0 {
        return format!("set(skb_priority({}))", hex(&r.key.get::<4>(at::PRIORITY)));
    }
    let eth = part(&|p| {
        p.field("src", at::ETH_SRC, 6, mac);
        p.field("dst", at::ETH_DST, 6, mac);
    });
    let parts = [("eth", eth), layer3(r, &part), layer4(r, &part)];
    let sets = parts.iter().filter(|(_, t)| !t.is_empty());
    sets.map(|(name, t)| format!("set({name}({t}))")).collect::<Vec<_>>().join(",")
}

type Fill<'f> = &'f dyn Fn(&dyn Fn(&mut Part<'_>)) -> String;

fn layer3(r: &Rewrite, part: Fill<'_>) -> (&'static str, String) {
    match r.key.u16(at::ETH_TYPE) {
        ETH_MPLS | ETH_MPLS_MCAST if r.mask.u32(at::MPLS) == 0 => ("mpls", String::new()),
        ETH_MPLS | ETH_MPLS_MCAST => ("mpls", lse_text(r.key.u32(at::MPLS))),
        ETH_NSH => ("nsh", part(&|p| NSH.into_iter().for_each(|f| p.nsh(f)))),
        ETH_ARP | ETH_RARP => (
            "arp",
            part(&|p| {
                p.field("sip", at::IP_SRC, 4, ipv4);
                p.field("tip", at::IP_DST, 4, ipv4);
                p.field("op", at::PROTO, 1, decimal);
                p.field("sha", at::ARP_SHA, 6, mac);
                p.field("tha", at::ARP_THA, 6, mac);
            }),
        ),
        ETH_IPV6 => (
            "ipv6",
            part(&|p| {
                p.field("src", at::IPV6_SRC, 16, ipv6);
                p.field("dst", at::IPV6_DST, 16, ipv6);
                p.label();
                p.field("tclass", at::TOS, 1, hex);
                p.field("hlimit", at::TTL, 1, decimal);
            }),
        ),
        _ => (
            "ipv4",
            part(&|p| {
                p.field("src", at::IP_SRC, 4, ipv4);
                p.field("dst", at::IP_DST, 4, ipv4);
                p.field("tos", at::TOS, 1, hex);
                p.field("ttl", at::TTL, 1, decimal);
            }),
        ),
    }
}

fn layer4(r: &Rewrite, part: Fill<'_>) -> (&'static str, String) {
    let ports = |p: &mut Part<'_>| {
        p.field("src", at::TP_SRC, 2, decimal);
        p.field("dst", at::TP_DST, 2, decimal);
    };
    let icmp = |p: &mut Part<'_>| {
        p.field("type", at::TP_SRC + 1, 1, decimal);
        p.field("code", at::TP_DST + 1, 1, decimal);
    };
    let nd = |p: &mut Part<'_>| {
        p.field("target", at::ND_TARGET, 16, ipv6);
        p.field("sll", at::ARP_SHA, 6, mac);
        p.field("tll", at::ARP_THA, 6, mac);
    };
    let nd_ext = |p: &mut Part<'_>| {
        p.field("nd_reserved", at::ND_RESERVED, 4, hex);
        p.field("nd_options_type", at::ND_OPTIONS_TYPE, 1, decimal);
    };
    match (r.key.u16(at::ETH_TYPE), r.key.u8(at::PROTO)) {
        (ETH_ARP | ETH_RARP | ETH_MPLS | ETH_MPLS_MCAST | ETH_NSH, _) => ("", String::new()),
        (ETH_IPV6, IP_ICMPV6) if !part(&nd).is_empty() => ("nd", part(&nd)),
        (ETH_IPV6, IP_ICMPV6) if !part(&nd_ext).is_empty() => ("nd_ext", part(&nd_ext)),
        (ETH_IPV6, IP_ICMPV6) => ("icmpv6", part(&icmp)),
        (_, 1) => ("icmp", part(&icmp)),
        (_, 17) => ("udp", part(&ports)),
        (_, 132) => ("sctp", part(&ports)),
        _ => ("tcp", part(&ports)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_have_their_names_where_there_are_some() {
        let ops = [Op::Output(1), Op::Clone(vec![Op::Output(2), Op::Output(1)].into())];
        assert_eq!(ops_text(&ops), "1,clone(2,1)");
        let name = |p| (p == 1).then(|| "eth1".to_string());
        let style = OpsText { port: &name, ..OpsText::default() };
        assert_eq!(ops_text_with(&ops, &style), "eth1,clone(2,eth1)");
        assert_eq!(ops_text_with(&[], &style), "drop");
    }
}
