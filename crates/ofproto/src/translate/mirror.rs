//! Copies of packets for mirrors, in OVS's order: of a received packet before its other operations,
//! of a sent packet right behind its output.

use super::normal::{Tags, includes, keeps_tags, translate_in};
use crate::fields;
use crate::mirroring::{MirrorView, Target};
use crate::published::{Bundle, PortView};
use crate::translate::xlate::Xlate;
use crate::types::VlanMode;
use flow::at;
use openflow::port;
use telemetry::Drop;

impl<'a> Xlate<'a, '_> {
    /// Sends copies to mirrors of what the packet's port receives, before the tables. False: the
    /// port is reserved for a mirror's output, and the packet is dropped. Only the first call has
    /// an effect.
    pub(super) fn admit_once(&mut self) -> bool {
        let bridge = self.bridge;
        if !std::mem::take(&mut self.mirror.fresh) || bridge.mirrors.is_empty() {
            return true;
        }
        let Some(p) = bridge.port(self.in_port()) else {
            let number = self.in_port();
            if !matches!(number, port::CONTROLLER | port::ANY) {
                self.trace_refusal(|| format!("received packet on unknown port {number}"));
            }
            return true;
        };
        let mirrors = bridge.bundles[p.bundle].mirrors;
        if mirrors.output == 0 {
            self.mirror(p, mirrors.received);
            return true;
        }
        self.trace_refusal(|| {
            let name = &p.spec.bundle;
            format!(
                "dropping packet received on port {name}, which is reserved exclusively for mirroring"
            )
        });
        self.answer.decision.drop.get_or_insert(Drop::MirrorPort);
        false
    }

    /// Sends copies to mirrors of what a port sends, to which the packet was just sent.
    pub(super) fn mirror_sent(&mut self, port: &'a PortView) {
        let bridge = self.bridge;
        if !bridge.mirrors.is_empty() {
            self.mirror(port, bridge.bundles[port.bundle].mirrors.sent);
        }
    }

    /// Sends copies to those of `mirrors` that have not got the packet in this bridge.
    fn mirror(&mut self, port: &'a PortView, mirrors: u32) {
        let bridge = self.bridge;
        let from = &bridge.bundles[port.bundle];
        let tags = self.tags();
        if from.vlan != VlanMode::default() {
            self.look_at_tags();
        }
        if !self.admits(from, port, &tags) {
            return;
        }
        let tags = translate_in(&from.vlan, tags);
        let mut left = mirrors & !self.mirror.met;
        while left != 0 && self.spend(1) {
            let bit = left & left.wrapping_neg();
            left &= !bit;
            let Some(m) = &bridge.mirrors[bit.trailing_zeros() as usize] else { continue };
            if let Some(vlans) = &m.vlans {
                self.wc.set_u16(at::VLAN, self.wc.u16(at::VLAN) | 0x1fff);
                if !vlans.contains(tags.outer.vid) {
                    continue;
                }
            }
            self.credit(m.credit);
            self.mirror.met |= m.same;
            self.send_copy(m, from, &tags);
            left &= !self.mirror.met;
        }
    }

    /// Sends one copy. The copy may be mirrored by other mirrors in turn, which counts as depth.
    fn send_copy(&mut self, m: &'a MirrorView, from: &Bundle, tags: &Tags) {
        let deeper = usize::from(self.mirror.copying);
        let before = std::mem::replace(&mut self.mirror.copying, true);
        self.spent.depth += deeper;
        self.mirror.snaplen = m.snaplen;
        if deeper == 0 || !self.is_too_much() {
            match m.to {
                Target::Bundle(b) => self.copy_to_port(&self.bridge.bundles[b], from, tags),
                Target::Vlan(vid) => self.copy_to_vlan(vid, tags),
            }
        }
        self.mirror.snaplen = 0;
        self.spent.depth -= deeper;
        self.mirror.copying = before;
    }

    fn copy_to_port(&mut self, to: &'a Bundle, from: &Bundle, tags: &Tags) {
        if keeps_tags(&from.vlan, &to.vlan) {
            return self.output_member(to);
        }
        self.look_at_tags();
        self.output_bundle(to, tags);
    }

    /// Sends a copy to a VLAN (RSPAN). Packets of that VLAN, and packets that no bridge forwards,
    /// are not sent there again, so there are no loops.
    fn copy_to_vlan(&mut self, vid: u16, tags: &Tags) {
        self.look_at_tags();
        if tags.outer.vid == vid || self.is_for_reserved() {
            return;
        }
        let tags = tags.in_vlan(vid);
        let bridge = self.bridge;
        for b in &bridge.bundles {
            if !self.spend(1) {
                return;
            }
            if b.mirrors.output == 0 && includes(&b.vlan, &tags) {
                self.output_bundle(b, &tags);
            }
        }
    }

    /// True if the destination is reserved for protocols between neighbours. Looks at no more bytes
    /// than are needed to say no.
    fn is_for_reserved(&mut self) -> bool {
        let dst: [u8; 6] = self.key.get(at::ETH_DST);
        (1..=dst.len()).all(|n| {
            self.wc.set_u8(at::ETH_DST + n - 1, 0xff);
            fields::begins_reserved(&dst[..n])
        })
    }
}
