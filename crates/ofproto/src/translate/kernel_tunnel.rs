//! Packets of tunnels that are left to a kernel's datapath (`dpif/set-dp-features`): decisions say
//! what OVS would tell it. There is none here, so such packets end at the tunnel's port.

use super::tunnel::{OAM, OuterFields};
use super::xlate::Xlate;
use crate::tunnel::TunnelSpec;
use action::{Op, Payload, TunnelKind};
use flow::{Field, PortNo, at};
use std::net::IpAddr;
use telemetry::Drop;

const SET_TUNNEL: &str = "set(tunnel(";
const SET_MARK: &str = "set(skb_mark(";

impl Xlate<'_, '_> {
    /// Outputs to a tunnel port as to a datapath that encapsulates by itself.
    pub(super) fn leave_to_kernel(
        &mut self,
        outer: &OuterFields,
        spec: &TunnelSpec,
        dp: PortNo,
        trunc: u32,
    ) {
        self.trace_detail(|| "output to kernel tunnel".into());
        if trunc != 0 {
            self.op(Op::Truncate(trunc));
        }
        if !outer.dst.is_unspecified() {
            let tunnel = self.tunnel_text(outer, spec);
            self.tell_kernel(SET_TUNNEL, &tunnel);
        }
        if self.commit_payload(outer) == Payload::Popped {
            self.op(Op::Kernel("pop_eth".into()));
        }
        if outer.mark != 0 {
            self.tell_kernel(SET_MARK, &format!("{SET_MARK}{:#x}))", outer.mark));
        }
        self.op(Op::Kernel(dp.to_string().into()));
        self.answer.decision.drop.get_or_insert(Drop::NoPort);
    }

    /// Adds an action that begins so, unless the last such one is the same.
    fn tell_kernel(&mut self, beginning: &str, text: &str) {
        let said = |op: &Op| match op {
            Op::Kernel(said) => said.starts_with(beginning).then(|| **said == *text),
            _ => None,
        };
        if self.answer.decision.ops.iter().rev().find_map(said) != Some(true) {
            self.op(Op::Kernel(text.into()));
        }
    }

    /// The outer header's fields as OVS prints them.
    fn tunnel_text(&self, outer: &OuterFields, spec: &TunnelSpec) -> String {
        let mut parts = Vec::new();
        if spec.keyed {
            parts.push(format!("tun_id={:#x}", outer.key));
        }
        let mut address = |name: &str, ip: IpAddr| match ip {
            IpAddr::V4(ip) => parts.push(format!("{name}={ip}")),
            IpAddr::V6(ip) => parts.push(format!("ipv6_{name}={ip}")),
        };
        outer.src.into_iter().for_each(|ip| address("src", ip));
        address("dst", outer.dst);
        if outer.tos != 0 {
            parts.push(format!("tos={:#x}", outer.tos));
        }
        parts.push(format!("ttl={}", outer.ttl));
        if spec.dst_port != 0 {
            parts.push(format!("tp_dst={}", spec.dst_port));
        }
        parts.extend(self.kind_text(outer, spec));
        let oam = spec.kind == TunnelKind::Geneve && self.key.u16(at::TUN_FLAGS) & OAM != 0;
        let flags = [(oam, "oam"), (spec.df, "df"), (spec.csum, "csum"), (spec.keyed, "key")];
        let flags = flags.iter().filter(|(is, _)| *is).map(|(_, name)| *name);
        let flags = flags.collect::<Vec<_>>().join("|");
        parts.push(format!("flags({})", if flags.is_empty() { "0" } else { &flags }));
        format!("{SET_TUNNEL}{}))", parts.join(","))
    }

    /// What only this kind of tunnel has.
    fn kind_text(&self, outer: &OuterFields, spec: &TunnelSpec) -> Option<String> {
        match spec.kind {
            TunnelKind::Geneve if !outer.options.is_empty() => Some(options_text(&outer.options)),
            TunnelKind::VxlanGbp => {
                let get = |f: Field| f.get(&self.key);
                let (id, flags) = (get(Field::TunGbpId), get(Field::TunGbpFlags));
                let list: Vec<_> = [("id", id), ("flags", flags)]
                    .iter()
                    .filter(|(_, n)| *n != 0)
                    .map(|(name, n)| match *name {
                        "id" => format!("id={n}"),
                        name => format!("{name}={n:#x}"),
                    })
                    .collect();
                (!list.is_empty()).then(|| format!("vxlan(gbp({}))", list.join(",")))
            }
            TunnelKind::Erspan => erspan_text(&outer.options),
            _ => None,
        }
    }
}

/// Geneve options.
fn options_text(mut options: &[u8]) -> String {
    let small = |n: u32| if n == 0 { "0".into() } else { format!("{n:#x}") };
    let mut list = String::new();
    while let [c0, c1, kind, len, rest @ ..] = options {
        let (value, behind) = rest.split_at((usize::from(len & 0x1f) * 4).min(rest.len()));
        let class = small(u16::from_be_bytes([*c0, *c1]).into());
        list += &format!("{{class={class},type={},len={}", small((*kind).into()), value.len());
        if !value.is_empty() {
            list += &format!(",{}", flow::long_hex(value));
        }
        list += "}";
        options = behind;
    }
    format!("geneve({list})")
}

/// An ERSPAN header.
fn erspan_text(h: &[u8]) -> Option<String> {
    match *h {
        [first, _, _, _, a, b, c, d] if first >> 4 == 1 => {
            Some(format!("erspan(ver=1,idx={:#x})", u32::from_be_bytes([a, b, c, d])))
        }
        [first, .., a, b] if first >> 4 == 2 => {
            let (direction, hwid) = (b >> 3 & 1, u16::from_be_bytes([a, b]) >> 4 & 0x3f);
            Some(format!("erspan(ver=2,dir={direction},hwid={hwid:#x})"))
        }
        _ => None,
    }
}
