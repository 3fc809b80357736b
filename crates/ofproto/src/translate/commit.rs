//! Turns header changes into operations: the difference between `key` and `base`, by groups of
//! fields.

use crate::fields::{self, VLAN_PRESENT};
use crate::translate::state::Headers;
use crate::translate::xlate::Xlate;
use action::{Op, Rewrite};
use flow::{Key, Mask, at, flag};
use openflow::packet_type;
use wire::{ETH_ARP, ETH_IPV4, ETH_IPV6, ETH_NSH, ETH_QINQ, ETH_RARP, ETH_VLAN};

/// Fields that one set operation covers: offsets and lengths.
type Group = &'static [(usize, usize)];

const ETHERNET: Group = &[(at::ETH_SRC, 6), (at::ETH_DST, 6)];
const IPV4: Group = &[(at::IP_SRC, 4), (at::IP_DST, 4), (at::TOS, 1), (at::TTL, 1)];
const IPV6: Group =
    &[(at::IPV6_SRC, 16), (at::IPV6_DST, 16), (at::IPV6_LABEL, 4), (at::TOS, 1), (at::TTL, 1)];
const ARP: Group =
    &[(at::IP_SRC, 4), (at::IP_DST, 4), (at::PROTO, 1), (at::ARP_SHA, 6), (at::ARP_THA, 6)];
const L4: Group = &[(at::TP_SRC, 2), (at::TP_DST, 2)];
const ND: Group = &[(at::ND_TARGET, 16), (at::ARP_SHA, 6), (at::ARP_THA, 6)];
const ND_EXT: Group = &[(at::ND_RESERVED, 4), (at::ND_OPTIONS_TYPE, 1)];
const MPLS: Group = &[(at::MPLS, 4)];
const NSH: Group =
    &[(at::NSH_FLAGS, 1), (at::NSH_TTL, 1), (at::NSH_SPI, 3), (at::NSH_SI, 1), (at::NSH_C, 16)];

/// A position in the list of operations, with the packet's state there.
pub(super) struct Mark {
    ops: usize,
    base: Key,
    hidden: usize,
    own: Option<Headers>,
}

impl Xlate<'_, '_> {
    /// Adds the operations that turn the packet as it is into the packet that the actions made.
    pub(super) fn commit(&mut self) {
        if self.key.words[..32] == self.base.words[..32] && !self.wants_ethernet() {
            return;
        }
        let unwritten = self.has_no_protocol();
        let is_nsh = self.key.u16(at::ETH_TYPE) == ETH_NSH && self.set_nsh();
        self.commit_addresses();
        match self.key.u16(at::ETH_TYPE) {
            ETH_NSH if is_nsh => true,
            ETH_NSH if self.key.u8(at::NSH_MDTYPE) == wire::NSH_MD1 => self.set_group(NSH),
            ETH_NSH => self.set_group(&NSH[..NSH.len() - 1]),
            ETH_IPV4 => self.set_network(IPV4),
            ETH_IPV6 => self.set_network(IPV6),
            ETH_ARP => self.set_network(ARP),
            ETH_RARP => self.set_group(ARP),
            t if fields::is_mpls(t) => self.set_mpls(),
            _ => false,
        };
        if fields::is_ip(self.key.u16(at::ETH_TYPE)) {
            self.set_group(L4);
            if self.key.u16(at::ETH_TYPE) == ETH_IPV6 && self.key.u8(at::PROTO) == 58 {
                // An option's type first: it says whose address the other group sets.
                self.set_group(ND_EXT);
                self.set_group(ND);
            }
        }
        self.commit_vlan();
        self.commit_queue();
        let before = self.base;
        self.committed();
        if unwritten && self.key.u16(at::ETH_TYPE) == ETH_ARP {
            for &(at, len) in ARP {
                self.base.bytes_mut()[at..at + len].copy_from_slice(&before.bytes()[at..at + len]);
            }
        }
    }

    /// Adds a set operation for an IP or ARP header. As in OVS nothing is written where the IP
    /// protocol or the ARP operation is 0, which is what packets have that are cut short. An ARP
    /// operation that is set later has everything written.
    fn set_network(&mut self, group: Group) -> bool {
        !self.has_no_protocol() && self.set_group(group)
    }

    /// True if the protocol or operation is known to be 0. It is known where the decision looks at
    /// it: at a field that is set ([`fields::look_to_write`]), not at one that is moved or popped
    /// to. So packets of one decision are written alike.
    fn has_no_protocol(&self) -> bool {
        self.wc.u8(at::PROTO) == 0xff && self.key.u8(at::PROTO) == 0
    }

    fn differs(&self, group: Group) -> bool {
        let (new, old) = (self.key.bytes(), self.base.bytes());
        group.iter().any(|&(at, len)| new[at..at + len] != old[at..at + len])
    }

    /// Records that the packet is as the actions made it, except for addresses that it must not
    /// have.
    pub(super) fn committed(&mut self) {
        let (addresses, kind) = (self.base.get::<12>(at::ETH_DST), self.base.u32(at::PACKET_TYPE));
        self.base = self.key;
        if !self.is_ethernet() {
            self.base.set(at::ETH_DST, addresses);
            self.base.set_u32(at::PACKET_TYPE, kind);
        }
    }

    /// True if the packet came in without the Ethernet header that it has now.
    pub(super) fn wants_ethernet(&self) -> bool {
        self.is_ethernet() && self.base.u32(at::PACKET_TYPE) != packet_type::ETHERNET
    }

    /// A header that was just added takes its addresses itself. A packet that shall have no
    /// Ethernet header keeps its addresses.
    fn commit_addresses(&mut self) {
        if !self.is_ethernet() {
            return;
        }
        if self.wants_ethernet() {
            return self.push_ethernet();
        }
        let new = [self.key.get(at::ETH_DST), self.key.get(at::ETH_SRC)];
        match self.last_op() {
            Some(Op::EncapMpls { dst, src, .. }) => [*dst, *src] = new,
            _ => drop(self.set_group(ETHERNET)),
        }
    }

    /// Headers that were just put there take what was written to them since.
    fn fold(&mut self) {
        let (eth_type, is_ethernet) = (self.key.u16(at::ETH_TYPE), self.is_ethernet());
        let same = eth_type == self.base.u16(at::ETH_TYPE);
        let (nsh, addresses) = match self.last_op() {
            Some(Op::PushNsh { .. }) => (same, false),
            Some(Op::EncapMpls { .. }) => (false, is_ethernet),
            Some(Op::PushMpls { .. }) => (false, false),
            _ => return,
        };
        if nsh && self.set_nsh() {
            for range in [at::NSH_FLAGS..at::NSH_SI + 1, at::NSH_C..at::NSH_C + 16] {
                let new = &self.key.bytes()[range.clone()];
                self.base.bytes_mut()[range].copy_from_slice(new);
            }
        }
        if addresses {
            self.commit_addresses();
            self.base.set(at::ETH_DST, self.key.get::<12>(at::ETH_DST));
        }
        if same && fields::is_mpls(eth_type) && self.set_mpls() {
            self.base.set_u32(at::MPLS, self.key.u32(at::MPLS));
        }
    }

    /// The last operation, if it may still change.
    pub(super) fn last_op(&mut self) -> Option<&mut Op> {
        self.answer.decision.ops.get_mut(self.packet.layers.sealed..)?.last_mut()
    }

    fn push_ethernet(&mut self) {
        let mut set = Rewrite { key: Key::ZERO, mask: Mask::ZERO };
        set.key.set(at::ETH_DST, self.key.get::<12>(at::ETH_DST));
        set.key.set_u16(at::ETH_TYPE, self.key.u16(at::ETH_TYPE));
        set.mask.set(at::ETH_DST, [0xff; 12]);
        self.op(Op::PushEth(Box::new(set)));
    }

    /// Adds a set operation for the differences in a group, with the bits that were read.
    fn set_group(&mut self, group: Group) -> bool {
        if !self.differs(group) {
            return false;
        }
        // ICMP's type and code share a group, with their own 8 bits each.
        let icmp = group[0].0 == at::TP_SRC && matches!(self.key.u8(at::PROTO), 1 | 58);
        // What was read of a network service header is written with it, as in OVS.
        let whole = icmp || group[0] == NSH[0];
        if icmp {
            self.wc.set_u8(at::TP_SRC + 1, 0xff);
            self.wc.set_u8(at::TP_DST + 1, 0xff);
        }
        let mut set = Rewrite { key: Key::ZERO, mask: Mask::ZERO };
        for &(at, len) in group {
            let range = at..at + len;
            let (new, old) = (&self.key.bytes()[range.clone()], &self.base.bytes()[range.clone()]);
            if new == old && !whole {
                continue;
            }
            for i in range {
                let differ = self.key.bytes()[i] ^ self.base.bytes()[i];
                let mask = self.wc.bytes()[i] | differ;
                self.wc.bytes_mut()[i] = mask;
                set.mask.bytes_mut()[i] = mask;
                set.key.bytes_mut()[i] = self.key.bytes()[i] & mask;
            }
        }
        // Not written: it says which fields these are (IPv4, ARP, MPLS and NSH share places).
        set.key.set_u16(at::ETH_TYPE, self.key.u16(at::ETH_TYPE));
        if matches!(group, L4 | ND | ND_EXT) {
            self.wc.set_u8(at::PROTO, 0xff);
            set.key.set_u8(at::PROTO, self.key.u8(at::PROTO));
        }
        self.op(Op::Set(Box::new(set)));
        true
    }

    /// A label that was just pushed takes the change itself.
    fn set_mpls(&mut self) -> bool {
        let new = self.key.u32(at::MPLS);
        if new == self.base.u32(at::MPLS) {
            return false;
        }
        match self.last_op() {
            Some(Op::PushMpls { lse, .. } | Op::EncapMpls { lse, .. }) => *lse = new,
            _ => {
                self.wc.set_u32(at::MPLS, !0);
                return self.set_group(MPLS);
            }
        }
        true
    }

    fn commit_vlan(&mut self) {
        let (mut base, mut key) = (tags(&self.base), tags(&self.key));
        while base.last().is_some() && base.last() == key.last() {
            base.pop();
            key.pop();
        }
        if base.is_empty() && key.is_empty() {
            return;
        }
        self.wc.set_u16(at::VLAN, 0xffff);
        for i in 0..base.len() {
            self.wc.set_u16([at::VLAN, at::VLAN1][i], 0xffff);
            self.op(Op::PopVlan);
        }
        let both = flag::VLAN_88A8 | flag::VLAN1_88A8;
        self.wc.set_u8(at::FLAGS, self.wc.u8(at::FLAGS) | both);
        for (tpid, tci) in key.into_iter().rev() {
            self.op(Op::PushVlan { tpid, tci });
        }
    }

    /// The present position, for [`Xlate::isolate`].
    pub(super) fn mark(&mut self) -> Mark {
        self.fold();
        self.packet.layers.sealed = self.answer.decision.ops.len();
        Mark {
            ops: self.answer.decision.ops.len(),
            base: self.base,
            hidden: self.packet.layers.hidden,
            own: self.own_headers(),
        }
    }

    /// Executes the operations since `mark` on a copy, if later commits could not undo them: they
    /// changed the packet's layers or its `ct` fields, or a meter among them may drop the packet.
    pub(super) fn isolate(&mut self, mark: Mark) {
        self.back_to(mark.own);
        let layers = |op: &Op| {
            let push = matches!(op, Op::PushMpls { .. } | Op::EncapMpls { .. });
            let pop = matches!(op, Op::PopMpls { .. } | Op::DecapMpls);
            let nsh = matches!(op, Op::PushNsh { .. } | Op::PopNsh { .. });
            push || pop || nsh || matches!(op, Op::Ct(_) | Op::CtClear | Op::Meter(_))
        };
        let layers =
            self.answer.decision.ops.get(mark.ops..).is_some_and(|ops| ops.iter().any(layers));
        if layers || mark.hidden != self.packet.layers.hidden {
            self.packet.layers.hidden = mark.hidden;
            let ops = self.answer.decision.ops.split_off(mark.ops).into_boxed_slice();
            self.answer.decision.ops.push(Op::Clone(ops));
            self.base = mark.base;
        }
    }

    /// Clears all fields above Ethernet and VLAN tags.
    pub(super) fn clear_layers(&mut self) {
        self.key.bytes_mut()[at::IP_SRC..at::VLAN1].fill(0);
        self.key.bytes_mut()[at::IPV6_SRC..at::TUN_DST].fill(0);
    }
}

/// TPID and TCI of the tags, outermost first.
fn tags(key: &Key) -> Vec<(u16, u16)> {
    let flags = key.u8(at::FLAGS);
    let tag = |at, bit| {
        let tci = key.u16(at);
        let tpid = if flags & bit != 0 { ETH_QINQ } else { ETH_VLAN };
        (tci & VLAN_PRESENT != 0).then_some((tpid, tci))
    };
    let outer = tag(at::VLAN, flag::VLAN_88A8);
    outer.into_iter().chain(outer.and(tag(at::VLAN1, flag::VLAN1_88A8))).collect()
}
