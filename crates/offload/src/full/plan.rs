//! Turns a megaflow into a forwarding rule: its headers, its edits, its destination.

use crate::Reason;
use crate::bytes::first_bytes;
use crate::types::FlowId;
use action::{Op, Payload, Rewrite, TunnelKind, TunnelPush};
use flow::{Key, Mask, PortNo, at};
use port::{Edit, Fate, ForwardRule, HEADER_BYTES_MAX, Header, Item};
use telemetry::Drop;
use wire::{ETH_IPV4, ETH_IPV6, IP_TCP, IP_UDP};

/// A megaflow: the packets that it matches, and its operations.
pub struct Flow<'a> {
    /// Values of the key.
    pub key: &'a Key,
    /// The bits that are matched.
    pub mask: &'a Mask,
    /// Operations, in order.
    pub ops: &'a [Op],
}

/// A forwarding rule, and what the host needs to know of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The rule.
    pub rule: ForwardRule,
    /// The megaflow that removes the outer header, if the rule does that. The rule's packets are
    /// also this one's.
    pub outer: Option<FlowId>,
    /// Bytes of each packet that its megaflow does not count: those of the outer header.
    pub outer_bytes: u16,
}

/// Turns a megaflow into a rule, or says why that cannot be. `to`: the number that a datapath port
/// has on the adapter, or why no rule can send to it.
pub fn plan(flow: &Flow<'_>, to: &dyn Fn(PortNo) -> Result<u16, Reason>) -> Result<Plan, Reason> {
    let items = items(flow.key, flow.mask)?;
    let (edits, fate) = actions(flow, to)?;
    Ok(Plan { rule: ForwardRule { items, edits, fate }, outer: None, outer_bytes: 0 })
}

/// The headers of a megaflow's packets.
pub(super) fn items(key: &Key, mask: &Mask) -> Result<Vec<Item>, Reason> {
    let (bytes, pattern) = first_bytes(key, mask)?;
    let mut items = Vec::new();
    let mut from = 0;
    for header in pattern.headers {
        items.push(item(header, from, &bytes.value, &pattern.mask));
        from += header.len();
    }
    say_types(&mut items, &bytes.value);
    Ok(items)
}

/// The edits of a rule, and its destination.
pub(super) fn actions(
    flow: &Flow<'_>,
    to: &dyn Fn(PortNo) -> Result<u16, Reason>,
) -> Result<(Vec<Edit>, Fate), Reason> {
    let mut editor = Editor { key: *flow.key, known: *flow.mask, edits: Vec::new(), outer: false };
    let fate = editor.run(flow.ops, to)?;
    Ok((editor.edits, fate))
}

fn item(header: Header, from: usize, value: &[u8], mask: &[u8]) -> Item {
    let mut item = Item { header, value: [0; HEADER_BYTES_MAX], mask: [0; HEADER_BYTES_MAX] };
    let n = header.len().min(value.len().saturating_sub(from));
    item.mask[..n].copy_from_slice(&mask[from..from + n]);
    for i in 0..n {
        item.value[i] = value[from + i] & item.mask[i];
    }
    item
}

/// Adds the types that follow from the headers, and that packets are no fragments: the host does
/// not see the packets, so the rule must match no others.
fn say_types(items: &mut [Item], value: &[u8]) {
    let mut from = 0;
    for item in items {
        let exact: &[usize] = match item.header {
            Header::Ethernet => &[12, 13],
            Header::Vlan => &[2, 3],
            _ => &[],
        };
        for i in exact {
            item.mask[*i] = 0xff;
            item.value[*i] = value[from + i];
        }
        if item.header == Header::Ipv4 {
            // "More fragments", and the offset.
            item.mask[6..8].copy_from_slice(&[0x3f, 0xff]);
        }
        from += item.header.len();
    }
}

/// What is known of a megaflow's packets after each operation.
struct Editor {
    key: Key,
    known: Mask,
    edits: Vec<Edit>,
    /// True: operations change an outer header that was put in front.
    outer: bool,
}

fn no(what: &str) -> Reason {
    Reason::Action(what.into())
}

impl Editor {
    fn run(
        &mut self,
        ops: &[Op],
        to: &dyn Fn(PortNo) -> Result<u16, Reason>,
    ) -> Result<Fate, Reason> {
        let Some((last, first)) = ops.split_last() else { return Ok(Fate::Drop) };
        first.iter().try_for_each(|op| self.edit(op))?;
        match last {
            Op::Output(port) => to(*port).map(Fate::Port),
            // Only the host counts drops for other reasons.
            Op::Drop(Drop::Policy) if first.is_empty() => Ok(Fate::Drop),
            // No operation behind this one needs the unchanged packet.
            Op::Clone(inner) => self.run(inner, to),
            other => {
                self.edit(other)?;
                Err(no("no output"))
            }
        }
    }

    fn edit(&mut self, op: &Op) -> Result<(), Reason> {
        if self.outer {
            return Err(no("changes of the outer header"));
        }
        match op {
            Op::Set(rewrite) => self.set(rewrite),
            Op::PushEth(_) => Err(no("push_eth")),
            Op::PushVlan { tpid, tci } => {
                self.edits.push(Edit::PushVlan { tpid: *tpid, tci: tci & 0xefff });
                Ok(())
            }
            Op::PopVlan => {
                self.edits.push(Edit::PopVlan);
                Ok(())
            }
            Op::TunnelPush(push) => self.encapsulate(push),
            Op::Output(_) => Err(no("several outputs")),
            Op::PushMpls { .. } => Err(no("push_mpls")),
            Op::PopMpls { .. } => Err(no("pop_mpls")),
            Op::EncapMpls { .. } => Err(no("add_mpls")),
            Op::DecapMpls => Err(no("pop_eth")),
            Op::PushNsh { .. } => Err(no("push_nsh")),
            Op::PopNsh { .. } => Err(no("pop_nsh")),
            Op::Recirc(_) => Err(no("recirc")),
            Op::Truncate(_) => Err(no("trunc")),
            Op::Punt(_) => Err(no("userspace")),
            Op::Clone(_) => Err(no("clone")),
            Op::Ct(_) => Err(no("ct")),
            Op::CtClear => Err(no("ct_clear")),
            Op::Meter(_) => Err(no("meter")),
            Op::Sample { .. } => Err(no("sample")),
            Op::CheckLen { .. } => Err(no("check_pkt_len")),
            Op::TunnelPop { .. } => Err(no("tnl_pop")),
            Op::Kernel(_) => Err(no("set(tunnel)")),
            Op::Drop(_) => Err(no("drop")),
        }
    }

    fn encapsulate(&mut self, push: &TunnelPush) -> Result<(), Reason> {
        let plain = push.payload == Payload::Frame && !push.is_gpe();
        if push.kind != TunnelKind::Vxlan || push.checksum() || !plain {
            return Err(no("tnl_push of another kind than vxlan without checksums"));
        }
        self.edits.push(Edit::VxlanEncap(push.header.clone()));
        self.outer = true;
        Ok(())
    }

    fn set(&mut self, rewrite: &Rewrite) -> Result<(), Reason> {
        let mut left = rewrite.mask;
        let ip = self.key.u16(at::ETH_TYPE);
        // Without a known protocol, a packet may have no ports.
        let proto = self.key.u8(at::PROTO) & self.known.u8(at::PROTO);
        if let Some(v) = self.field(rewrite, &mut left, at::ETH_SRC)? {
            self.edits.push(Edit::MacSrc(v));
        }
        if let Some(v) = self.field(rewrite, &mut left, at::ETH_DST)? {
            self.edits.push(Edit::MacDst(v));
        }
        if ip == ETH_IPV4 {
            if let Some(v) = self.field(rewrite, &mut left, at::IP_SRC)? {
                self.edits.push(Edit::Ipv4Src(v));
            }
            if let Some(v) = self.field(rewrite, &mut left, at::IP_DST)? {
                self.edits.push(Edit::Ipv4Dst(v));
            }
        }
        if ip == ETH_IPV6 {
            if let Some(v) = self.field(rewrite, &mut left, at::IPV6_SRC)? {
                self.edits.push(Edit::Ipv6Src(v));
            }
            if let Some(v) = self.field(rewrite, &mut left, at::IPV6_DST)? {
                self.edits.push(Edit::Ipv6Dst(v));
            }
        }
        let is_ip = [ETH_IPV4, ETH_IPV6].contains(&ip);
        if is_ip && let Some([v]) = self.field(rewrite, &mut left, at::TTL)? {
            self.edits.push(Edit::Ttl(v));
        }
        if is_ip && [IP_TCP, IP_UDP].contains(&proto) {
            if let Some(v) = self.field(rewrite, &mut left, at::TP_SRC)? {
                self.edits.push(Edit::TpSrc(u16::from_be_bytes(v)));
            }
            if let Some(v) = self.field(rewrite, &mut left, at::TP_DST)? {
                self.edits.push(Edit::TpDst(u16::from_be_bytes(v)));
            }
        }
        match left.words.iter().all(|w| *w == 0) {
            true => Ok(()),
            false => Err(no("set of a field that adapters do not set")),
        }
    }

    /// The value that a field is set to; None: it is not set. Bits that are not set are those of
    /// the megaflow, if it matches on them.
    fn field<const N: usize>(
        &mut self,
        rewrite: &Rewrite,
        left: &mut Mask,
        at: usize,
    ) -> Result<Option<[u8; N]>, Reason> {
        let mut value = [0; N];
        let mut any = false;
        for (i, byte) in value.iter_mut().enumerate() {
            let written = rewrite.mask.u8(at + i);
            any |= written != 0;
            *byte = self.key.u8(at + i) & !written | rewrite.key.u8(at + i) & written;
        }
        if !any {
            return Ok(None);
        }
        if (0..N).any(|i| rewrite.mask.u8(at + i) | self.known.u8(at + i) != 0xff) {
            return Err(no("set of some bits of a field"));
        }
        for (i, byte) in value.iter().enumerate() {
            self.key.set_u8(at + i, *byte);
            self.known.set_u8(at + i, 0xff);
            left.set_u8(at + i, 0);
        }
        Ok(Some(value))
    }
}
