//! MPLS label stack entries: pushed and popped, as many as the key has room for.
//!
//! As in OVS, a packet that would get one more is dropped, and so is one of which an entry is to
//! be removed while the bottom of its stack is not in the key.

use crate::fields;
use crate::translate::state::Headers;
use crate::translate::xlate::Xlate;
use action::Op;
use flow::{Field, Key, LABELS, at};
use telemetry::Drop;
use wire::ETH_IPV6;

/// Bottom of stack, in a label stack entry.
const BOTTOM: u32 = 0x100;

/// Number of label stack entries in the key. Above the bottom of the stack, an entry that is zero
/// does not count, as in OVS: a packet may end before it.
pub(super) fn labels(key: &Key) -> u8 {
    if !fields::is_mpls(key.u16(at::ETH_TYPE)) {
        return 0;
    }
    let bottom = LABELS.iter().position(|a| key.u32(*a) & BOTTOM != 0);
    let all = || LABELS.iter().filter(|a| key.u32(**a) != 0).count();
    bottom.map_or_else(all, |i| i + 1) as u8
}

impl Xlate<'_, '_> {
    pub(super) fn push_mpls(&mut self, ethertype: u16) {
        if !self.has_room_for_label("MPLS push action") {
            return;
        }
        self.commit();
        let old = self.key.u16(at::ETH_TYPE);
        let lse = match fields::is_mpls(old) {
            true => self.key.u32(at::MPLS) & !BOTTOM,
            false => self.first_label(old),
        };
        self.push_mpls_entry(ethertype, lse);
    }

    pub(super) fn push_mpls_entry(&mut self, ethertype: u16, lse: u32) {
        self.commit();
        self.read_labels(0);
        self.begin_own(Headers::Entry);
        let known = usize::from(self.packet.layers.labels);
        let below = LABELS.map(|a| self.key.u32(a));
        self.clear_layers();
        self.key.set_u32(at::MPLS, lse);
        for (a, old) in LABELS[1..].iter().zip(&below[..known]) {
            self.key.set_u32(*a, *old);
        }
        self.key.set_u16(at::ETH_TYPE, ethertype);
        self.packet.layers.labels += 1;
        self.packet.layers.was_mpls = false;
        self.committed();
        self.op(Op::PushMpls { ethertype, lse });
    }

    /// The first label: explicit null, bottom of stack, TC and TTL from the IP header.
    fn first_label(&mut self, eth_type: u16) -> u32 {
        let label: u32 = if eth_type == ETH_IPV6 { 2 } else { 0 };
        let (mut tc, mut ttl) = (0, 64);
        if fields::is_ip(eth_type) {
            Field::IpDscp.unwildcard(&mut self.wc);
            Field::IpTtl.unwildcard(&mut self.wc);
            tc = u32::from(self.key.u8(at::TOS)) >> 2 & 7;
            ttl = match self.key.u8(at::TTL) {
                0 => 64,
                t => t.into(),
            };
        }
        label << 12 | tc << 9 | BOTTOM | ttl
    }

    /// `what`: what removes the entry, for the log.
    pub(super) fn pop_mpls(&mut self, ethertype: u16, what: &str) {
        let known = usize::from(self.packet.layers.labels);
        if known == 0 || !self.sees_bottom(what) {
            return;
        }
        self.commit();
        if fields::is_mpls(ethertype) {
            self.read_labels(1);
        }
        let old = LABELS.map(|a| self.key.u32(a));
        self.packet.layers.labels -= 1;
        self.clear_layers();
        if fields::is_mpls(ethertype) {
            for (a, entry) in LABELS.iter().zip(&old[1..known]) {
                self.key.set_u32(*a, *entry);
            }
        } else {
            self.packet.layers.labels = 0;
        }
        self.packet.layers.was_mpls = self.packet.layers.labels == 0;
        self.key.set_u16(at::ETH_TYPE, ethertype);
        self.committed();
        self.op(Op::PopMpls { ethertype });
    }

    /// False if the key is full of entries: then the packet is dropped. `what` wants to add one.
    pub(super) fn has_room_for_label(&mut self, what: &str) -> bool {
        self.read_bottom();
        if usize::from(self.packet.layers.labels) == LABELS.len() {
            self.too_many_labels(&format!(
                "dropping packet on which an {what} can't be performed as it would have \
                 more MPLS LSEs than the {} supported.",
                LABELS.len()
            ));
        }
        self.end.failed != Some(Drop::TooManyLabels)
    }

    /// False if the bottom of the packet's stack is unknown: then the packet is dropped. `what`
    /// wants to remove an entry.
    pub(super) fn sees_bottom(&mut self, what: &str) -> bool {
        self.read_bottom();
        let known = usize::from(self.packet.layers.labels);
        let hidden = known == LABELS.len() && self.key.u32(LABELS[known - 1]) & BOTTOM == 0;
        if hidden {
            self.too_many_labels(&format!(
                "dropping packet on which an MPLS {what} can't be performed as it has more MPLS \
                 LSEs than the {} supported.",
                LABELS.len()
            ));
        }
        !hidden
    }

    /// The decision depends on where the bottom of the stack is.
    fn read_bottom(&mut self) {
        for a in &LABELS[..usize::from(self.packet.layers.labels)] {
            self.wc.set_u32(*a, self.wc.u32(*a) | BOTTOM);
        }
    }

    /// The decision depends on the entries from `first` on: each gets another place in the key.
    fn read_labels(&mut self, first: usize) {
        for a in &LABELS[first..usize::from(self.packet.layers.labels)] {
            self.wc.set_u32(*a, !0);
        }
    }

    fn too_many_labels(&mut self, text: &str) {
        self.note_failure(text);
        self.trace_error("Too many MPLS labels", || text.into());
        self.fail(Drop::TooManyLabels);
    }
}
