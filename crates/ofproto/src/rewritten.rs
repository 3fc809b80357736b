//! What actions may have done to packets before a later table sees them, and so which packets a
//! change of a table affects.

use crate::mac_changes::Mac;
use crate::translate::ct;
use action::Region;
use flow::{Key, Mask, PACKET_LINES, at};
use openflow::{Action, Instruction};

/// True if a rule with this key may match a packet that was not tracked.
fn is_untracked(key: &Key) -> bool {
    let mut untracked = *key;
    ct::forget(&mut untracked);
    untracked == *key
}

/// Header bits that an action of some flow may have changed before a later table (or NORMAL) sees
/// the packet, and what else actions may have done. Only grows.
#[derive(Default)]
pub(crate) struct Rewritten {
    mask: Mask,
    /// True: a packet may enter table 0 a second time, or with another bridge's changes.
    reentered: bool,
    /// True: a flow may have changed the packet's tags.
    retagged: bool,
    /// True: a later table may see a packet as untracked that was tracked.
    untracked: bool,
    /// True: a flow chooses among ports by whether they are live.
    bundled: bool,
}

impl Rewritten {
    pub fn add_patch(&mut self) {
        self.reentered = true;
        self.untracked = true;
        self.vlan();
    }

    /// Records that NORMAL on VLAN ports changes tags.
    pub fn vlan(&mut self) {
        self.mask.set_u16(at::VLAN, 0xffff);
        self.mask.set_u16(at::VLAN1, 0xffff);
        self.mask.set_u8(at::FLAGS, 0xff);
    }

    fn layers(&mut self) {
        self.mask.set_u16(at::ETH_TYPE, 0xffff);
        self.mask.bytes_mut()[at::IP_SRC..at::VLAN1].fill(0xff);
        self.mask.bytes_mut()[at::IPV6_SRC..at::TUN_DST].fill(0xff);
        self.vlan();
    }

    pub fn add_instructions(&mut self, instructions: &[Instruction]) {
        for i in instructions {
            match i {
                Instruction::Apply(a) | Instruction::Write(a) => self.add_actions(a),
                _ => {}
            }
        }
    }

    pub fn add_actions(&mut self, actions: &[Action]) {
        let tags = |m: &Mask| (m.u16(at::VLAN), m.u16(at::VLAN1));
        let before = tags(&self.mask);
        self.mask.set_u16(at::VLAN, 0);
        self.mask.set_u16(at::VLAN1, 0);
        actions.iter().for_each(|a| self.add_action(a));
        let (outer, inner) = tags(&self.mask);
        self.retagged |= (outer, inner) != (0, 0);
        self.mask.set_u16(at::VLAN, outer | before.0);
        self.mask.set_u16(at::VLAN1, inner | before.1);
    }

    /// True if an action (`bundle`) may choose a port that is live.
    pub fn chooses_live(&self) -> bool {
        self.bundled
    }

    /// True if NORMAL sees the tags with which a packet came in.
    pub fn keeps_tags(&self) -> bool {
        !self.retagged && !self.reentered
    }

    fn add_action(&mut self, action: &Action) {
        use Action as A;
        let m = &mut self.mask;
        match action {
            A::SetField { field, .. } => field.unwildcard(m),
            A::Load { dst, .. } | A::Move { dst, .. } | A::Pop(dst) => dst.field.unwildcard(m),
            A::Multipath { dst, .. } => dst.field.unwildcard(m),
            A::Bundle(b) => {
                b.dst.iter().for_each(|dst| dst.field.unwildcard(m));
                self.bundled = true;
            }
            A::Learn(l) => l.result.iter().for_each(|dst| dst.field.unwildcard(m)),
            A::SetVlanVid { .. }
            | A::SetVlanPcp { .. }
            | A::StripVlan { .. }
            | A::PushVlan { .. } => self.vlan(),
            A::SetEthSrc(_) => m.set(at::ETH_SRC, [0xff; 6]),
            A::SetEthDst(_) => m.set(at::ETH_DST, [0xff; 6]),
            A::SetIpSrc(_) => m.set_u32(at::IP_SRC, !0),
            A::SetIpDst(_) => m.set_u32(at::IP_DST, !0),
            A::SetIpDscp(_) | A::SetIpEcn(_) => m.set_u8(at::TOS, 0xff),
            A::SetIpTtl(_) | A::DecTtl { .. } => m.set_u8(at::TTL, 0xff),
            A::SetL4Src(_) => m.set_u16(at::TP_SRC, 0xffff),
            A::SetL4Dst(_) => m.set_u16(at::TP_DST, 0xffff),
            A::PushMpls { .. } | A::PopMpls { .. } => {
                self.reentered = true;
                self.layers()
            }
            A::Encap(_) | A::Decap(_) => {
                m.set(at::ETH_DST, [0xff; 12]);
                self.reentered = true;
                self.layers()
            }
            A::SetMplsLabel(_) | A::SetMplsTc(_) | A::SetMplsTtl(_) | A::DecMplsTtl => {
                m.set_u32(at::MPLS, !0)
            }
            A::DecNshTtl => m.set_u8(at::NSH_TTL, 0xff),
            A::SetTunnel { .. } => m.set_u32(at::TUN_ID, !0),
            A::Resubmit { in_port, table, .. } => {
                if in_port.is_some() {
                    m.set_u32(at::OF_IN_PORT, !0);
                }
                self.reentered |= matches!(table, None | Some(0));
            }
            A::Output { port, .. } | A::Enqueue { port, .. } => {
                self.reentered |= *port == openflow::port::TABLE
            }
            // The register may hold the number of the table.
            A::OutputReg { .. } => self.reentered = true,
            A::Clone(inner) => self.add_actions(inner),
            A::CheckPktLarger { dst, .. } => dst.field.unwildcard(m),
            A::Ct(_) | A::CtClear => self.untracked = true,
            // A group's actions are added when the group is.
            A::Group(_) => {}
            A::Controller { .. } | A::SetQueue(_) | A::PopQueue | A::Meter(_) => {}
            A::Sample { .. } | A::Push(_) | A::Note(_) | A::Exit | A::Test(_) => {}
            A::FinTimeout { .. } | A::Conjunction { .. } => {}
            // Options are in no region; `nat` is a part of `ct`.
            A::SetTunMetadata(_) | A::DeleteField(_) | A::Nat(_) => {}
        }
    }

    /// The packets that a rule of `table` may decide about. `dp_port` gives the datapath port of an
    /// OpenFlow port.
    pub fn region(
        &self,
        table: u8,
        key: &Key,
        mask: &Mask,
        dp_port: impl Fn(u32) -> Option<u16>,
    ) -> Region {
        let mut out = Region::new(*key, *mask);
        if table > 0 || self.reentered {
            for i in 0..flow::WORDS {
                out.mask.words[i] &= !self.mask.words[i];
            }
            if self.untracked && is_untracked(key) {
                ct::forget(&mut out.mask);
            }
        }
        let in_port = (out.mask.u32(at::OF_IN_PORT) == u32::MAX)
            .then(|| dp_port(key.u32(at::OF_IN_PORT)))
            .flatten();
        for w in &mut out.mask.words[PACKET_LINES * 8..] {
            *w = 0;
        }
        if let Some(p) = in_port {
            out.mask.set_u16(at::IN_PORT, 0xffff);
            out.key.set_u16(at::IN_PORT, p);
        }
        out.key = out.key.masked(&out.mask);
        out
    }

    /// The packets, as received, that may be in a region when a later table, or NORMAL, sees them.
    pub fn before(&self, seen: &Region) -> Region {
        let mut out = Region::new(seen.key, seen.mask);
        for i in 0..flow::WORDS {
            out.mask.words[i] &= !self.mask.words[i];
        }
        out.key = out.key.masked(&out.mask);
        out
    }

    /// The packets whose decisions may change because an address moved: those to it, and if it was
    /// known those from it.
    pub fn mac_regions(&self, mac: Mac) -> impl Iterator<Item = Region> + '_ {
        let (mac, fields) = match mac {
            Mac::New(mac) => (mac, &[at::ETH_DST][..]),
            Mac::Known(mac) => (mac, &[at::ETH_DST, at::ETH_SRC][..]),
        };
        fields.iter().map(move |at| {
            let mut r = Region::new(Key::ZERO, Key::ZERO);
            r.mask.set(*at, [0xff; 6]);
            for i in 0..2 {
                r.mask.words[i] &= !self.mask.words[i];
            }
            r.key.set(*at, mac);
            r.key = r.key.masked(&r.mask);
            r
        })
    }
}
