//! NORMAL: a VLAN-aware learning switch.

use crate::fields::{self, VLAN_PRESENT};
use crate::published::{Bundle, PortView};
use crate::translate::effects::Learn;
use crate::translate::xlate::Xlate;
use crate::types::{PriorityTags, VlanMode};
use flow::{at, flag};
use openflow::{port, port_config};
use wire::{ETH_QINQ, ETH_VLAN};

/// The priority bits of a tag.
const PCP_BITS: u16 = 0xe000;

/// A frame's tags, as NORMAL sees them. If VLAN id and priority are both zero, there is no tag.
#[derive(Clone, Copy, Default)]
pub(super) struct Tags {
    pub outer: Tag,
    inner: Tag,
}

#[derive(Clone, Copy)]
pub(super) struct Tag {
    tpid: u16,
    pub vid: u16,
    pcp: u16,
}

impl Tags {
    /// These tags, with another VLAN id in the outer one.
    pub fn in_vlan(self, vid: u16) -> Tags {
        Tags { outer: Tag { vid, ..self.outer }, ..self }
    }
}

impl Default for Tag {
    fn default() -> Tag {
        Tag { tpid: ETH_VLAN, vid: 0, pcp: 0 }
    }
}

impl Tag {
    fn new(tci: u16, is_88a8: bool) -> Tag {
        match tci & VLAN_PRESENT {
            0 => Tag::default(),
            _ => Tag {
                tpid: if is_88a8 { ETH_QINQ } else { ETH_VLAN },
                vid: tci & 0xfff,
                pcp: tci & PCP_BITS,
            },
        }
    }

    fn tci(self) -> u16 {
        if self.vid == 0 && self.pcp == 0 { 0 } else { self.vid | self.pcp | VLAN_PRESENT }
    }
}

impl<'a> Xlate<'a, '_> {
    pub(super) fn normal(&mut self) {
        if !self.may_switch() {
            return;
        }
        self.wc.set(at::ETH_DST, [0xff; 6]);
        self.wc.set(at::ETH_SRC, [0xff; 6]);
        self.look_at_tags();
        let (bridge, number) = (self.bridge, self.in_port());
        let input = self.input();
        if input.is_none() && !matches!(number, port::CONTROLLER | port::ANY) {
            self.trace_refusal(|| format!("received packet on unknown port {number}"));
            return self.trace_warning(|| "no input bundle, dropping".into());
        }
        let dst: [u8; 6] = self.key.get(at::ETH_DST);
        let tags = match input {
            Some(input) => match self.enter(input, dst) {
                Some(tags) => tags,
                None => return,
            },
            // A controller's own packet counts as received on a trunk, and no address is learned
            // from it.
            None => self.tags(),
        };
        if fields::begins_reserved(&dst) && !bridge.config.forward_bpdu {
            return self.trace_detail(|| "packet has reserved destination MAC, dropping".into());
        }
        if let Some(input) = input {
            // An address is learned as behind a bond, not behind one of its interfaces.
            self.learn(bridge.bundles[input.bundle].ports[0], tags.outer.vid);
        }
        let from = input.map(|p| p.bundle);
        if !self.send_to_group(from, &tags, dst) {
            self.forward(from, &tags, dst);
        }
    }

    /// The tags, in the bridge, of a packet that came in on a port; None: it may not come in there.
    fn enter(&mut self, input: &'a PortView, dst: [u8; 6]) -> Option<Tags> {
        let from = &self.bridge.bundles[input.bundle];
        if from.mirrors.output != 0 {
            self.trace_warning(|| "input port is mirror output port, dropping".into());
            return None;
        }
        let tags = self.tags();
        if !self.admits(from, input, &tags) {
            self.trace_warning(|| "disallowed VLAN VID for this input port, dropping".into());
            return None;
        }
        let tags = translate_in(&from.vlan, tags);
        self.bond_admits(from, input, dst, tags.outer.vid).then_some(tags)
    }

    /// Sends the packet to its destination's port, or floods it to all but the one on which it came
    /// in.
    fn forward(&mut self, input: Option<usize>, tags: &Tags, dst: [u8; 6]) {
        let bridge = self.bridge;
        let teaches = self.teaches();
        let learns = !bridge.config.flood_vlans.contains(&tags.outer.vid);
        let known = match dst[0] & 1 == 0 && learns {
            // What this packet taught holds for itself already.
            true => self
                .taught(tags.outer.vid, dst)
                .filter(|_| teaches)
                .or_else(|| bridge.macs.find(self.guard(), tags.outer.vid, dst)),
            false => None,
        };
        let Some(port) = known else {
            self.trace_detail(|| "no learned MAC for destination, flooding".into());
            return self.normal_flood(input, tags);
        };
        let protected = |b: usize| bridge.bundles[b].protected;
        match bridge.port(port) {
            None => {
                self.look_at_ports();
                self.trace_warning(|| "learned port is unknown, dropping".into());
            }
            Some(p) if bridge.bundles[p.bundle].mirrors.output != 0 => {
                self.trace_warning(|| "learned port is a mirror port, dropping".into())
            }
            Some(p) if Some(p.bundle) == input => {
                self.trace_detail(|| "learned port is input port, dropping".into())
            }
            Some(p) if protected(p.bundle) && input.is_some_and(protected) => {
                self.look_at_ports();
                self.trace_detail(|| "learned port is protected, dropping".into())
            }
            Some(p) => {
                self.trace_detail(|| "forwarding to learned port".into());
                self.output_bundle(&bridge.bundles[p.bundle], tags);
            }
        }
    }

    pub(super) fn normal_flood(&mut self, input: Option<usize>, tags: &Tags) {
        let bridge = self.bridge;
        self.look_at_ports();
        let from_protected = input.is_some_and(|b| bridge.bundles[b].protected);
        // The bridge's own port is its oldest, and ovs-vswitchd goes by age.
        let local = bridge.port(port::LOCAL).map(|p| p.bundle);
        let others = (0..bridge.bundles.len()).filter(|i| Some(*i) != local);
        for i in local.into_iter().chain(others) {
            let b = &bridge.bundles[i];
            if !self.spend(1) {
                return;
            }
            let floods = b.ports.iter().all(|p| {
                let open =
                    |p: &PortView| p.spec.config & port_config::NO_FLOOD == 0 && p.forwards();
                bridge.port(*p).is_some_and(open)
            });
            let apart = b.protected && from_protected;
            let open = floods && !apart && b.mirrors.output == 0;
            if Some(i) != input && open && includes(&b.vlan, tags) {
                self.output_bundle(b, tags);
            }
        }
        self.export_flooded();
    }

    /// Sends the packet with the tags that the port wants; afterwards the packet has its own again.
    pub(super) fn output_bundle(&mut self, b: &'a Bundle, tags: &Tags) {
        let own = self.key;
        let mut out = translate_out(&b.vlan, *tags);
        if b.priority_tags != PriorityTags::Never {
            out.outer.pcp = self.key.u16(at::VLAN) & PCP_BITS;
        }
        self.put_tags(&out, b.priority_tags);
        self.output_member(b);
        self.key = own;
    }

    /// Adds the VLAN tag to the bits that the decision reads.
    pub(super) fn look_at_tags(&mut self) {
        self.wc.set_u16(at::VLAN, self.wc.u16(at::VLAN) | 0x1fff);
        if self.key.u16(at::VLAN) & VLAN_PRESENT != 0 {
            self.wc.set_u16(at::VLAN1, 0xffff);
        }
    }

    pub(super) fn tags(&self) -> Tags {
        let flags = self.key.u8(at::FLAGS);
        Tags {
            outer: Tag::new(self.key.u16(at::VLAN), flags & flag::VLAN_88A8 != 0),
            inner: Tag::new(self.key.u16(at::VLAN1), flags & flag::VLAN1_88A8 != 0),
        }
    }

    fn put_tags(&mut self, t: &Tags, priority: PriorityTags) {
        let (now, before) = (self.tags(), self.key.u16(at::VLAN));
        let outer = match (t.outer.tci(), priority) {
            (0, PriorityTags::Always) => VLAN_PRESENT,
            (tci, _) => tci,
        };
        // A tag with neither VLAN id nor priority is removed.
        if before == outer && now.inner.tci() == t.inner.tci() {
            return;
        }
        self.key.set_u16(at::VLAN, outer);
        self.key.set_u16(at::VLAN1, t.inner.tci());
        let both = flag::VLAN_88A8 | flag::VLAN1_88A8;
        let mut flags = self.key.u8(at::FLAGS) & !both;
        if outer != 0 && t.outer.tpid == ETH_QINQ {
            flags |= flag::VLAN_88A8;
        }
        if t.inner.tci() != 0 && t.inner.tpid == ETH_QINQ {
            flags |= flag::VLAN1_88A8;
        }
        self.key.set_u8(at::FLAGS, flags);
    }

    /// True if a packet with these tags may come in on the port.
    pub(super) fn admits(&mut self, from: &Bundle, input: &PortView, tags: &Tags) -> bool {
        let vid = tags.outer.vid;
        let ok = match &from.vlan {
            VlanMode::Access(_) => vid == 0,
            VlanMode::Trunk(set) => set.contains(vid),
            VlanMode::NativeTagged { tag, trunks } | VlanMode::NativeUntagged { tag, trunks } => {
                vid == 0 || vid == *tag || trunks.contains(vid)
            }
            VlanMode::Dot1qTunnel { cvlans, .. } => cvlans.contains(vid),
        };
        if !ok {
            let name = &input.spec.bundle;
            self.trace_refusal(|| match &from.vlan {
                VlanMode::Access(tag) => format!(
                    "dropping VLAN {vid} tagged packet received on port {name} configured as VLAN {tag} access port"
                ),
                VlanMode::Dot1qTunnel { .. } => format!(
                    "dropping VLAN {vid} packet received on dot1q-tunnel port {name} that excludes this VLAN"
                ),
                _ => format!(
                    "dropping VLAN {vid} packet received on port {name} not configured for trunking VLAN {vid}"
                ),
            });
        }
        ok
    }

    /// The port behind which this translation has learned an address.
    pub(crate) fn taught(&self, vlan: u16, mac: [u8; 6]) -> Option<u32> {
        let here = |l: &&Learn| (l.bridge, l.vlan, l.mac) == (self.bridge.id, vlan, mac);
        self.answer.effects.learns.iter().rev().find(here).map(|l| l.port)
    }

    fn learn(&mut self, port: u32, vlan: u16) {
        let mac: [u8; 6] = self.key.get(at::ETH_SRC);
        if mac[0] & 1 != 0 || self.bridge.config.flood_vlans.contains(&vlan) {
            return;
        }
        self.note_learn(vlan, mac, port);
        if self.taught(vlan, mac) == Some(port) || !self.spend(self.answer.effects.learns.len()) {
            return;
        }
        self.answer.effects.learns.push(Learn { bridge: self.bridge.id, vlan, mac, port });
    }
}

/// True if a packet that came in on a port of mode `from` leaves a port of mode `to` with unchanged
/// tags.
pub(super) fn keeps_tags(from: &VlanMode, to: &VlanMode) -> bool {
    matches!(from, VlanMode::Trunk(_))
        && matches!(to, VlanMode::Trunk(_) | VlanMode::NativeTagged { .. })
}

/// Translates the tags of a received packet to those in the bridge.
pub(super) fn translate_in(mode: &VlanMode, t: Tags) -> Tags {
    match mode {
        VlanMode::Access(tag) => {
            Tags { outer: Tag { vid: *tag, ..t.outer }, inner: Tag::default() }
        }
        VlanMode::Trunk(_) => t,
        VlanMode::NativeTagged { tag, .. } | VlanMode::NativeUntagged { tag, .. } => {
            let vid = if t.outer.vid == 0 { *tag } else { t.outer.vid };
            Tags { outer: Tag { vid, ..t.outer }, ..t }
        }
        VlanMode::Dot1qTunnel { tag, ethertype, .. } => {
            Tags { outer: Tag { tpid: *ethertype, vid: *tag, pcp: 0 }, inner: t.outer }
        }
    }
}

/// Translates the tags in the bridge to those of a sent packet.
fn translate_out(mode: &VlanMode, t: Tags) -> Tags {
    match mode {
        VlanMode::Access(_) => Tags::default(),
        VlanMode::NativeUntagged { tag, .. } if t.outer.vid == *tag => {
            Tags { outer: t.inner, inner: Tag::default() }
        }
        VlanMode::Trunk(_) | VlanMode::NativeTagged { .. } | VlanMode::NativeUntagged { .. } => t,
        VlanMode::Dot1qTunnel { .. } => Tags { outer: t.inner, inner: Tag::default() },
    }
}

/// True if the port carries the VLAN.
pub(super) fn includes(mode: &VlanMode, t: &Tags) -> bool {
    let vid = t.outer.vid;
    match mode {
        VlanMode::Access(tag) => vid == *tag && t.inner.vid == 0,
        VlanMode::Trunk(set) => set.contains(vid),
        // A packet without a VLAN would be in the native VLAN behind the port (as in OVS).
        VlanMode::NativeTagged { tag, trunks } | VlanMode::NativeUntagged { tag, trunks } => {
            vid == *tag || vid != 0 && trunks.contains(vid)
        }
        VlanMode::Dot1qTunnel { tag, cvlans, .. } => vid == *tag && cvlans.contains(t.inner.vid),
    }
}
