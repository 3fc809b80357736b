//! Are actions consistent with each other and with the flow's match? What the protocol says of
//! them; what a switch can do, and which groups and meters it has, it checks itself.
//!
//! The checks go through the actions in order and keep what is known of the packet: its Ethernet
//! type, IP protocol and VLAN tags, as pushes and pops change them. What may come to nothing
//! (setting a TCP port in a flow that is not TCP) is refused from 1.1 on and allowed in 1.0, where
//! such an action has no effect; set-field, moves and the stack are refused in all versions.

use crate::actions::check_output_port;
use crate::conntrack::{ALG_FTP, ALG_TFTP, Conntrack, Zone};
use crate::prereq::{self, VLAN_PRESENT, eth, ip, is_mpls};
use crate::{
    Action, Header, Instruction, LearnSource, LearnTarget, Match, OfError, OfPort, Subfield,
    Version, meter_id, packet_type, port,
};
use flow::{Field, TUN_METADATA_MAX, at, frag};
use std::net::IpAddr;

/// A table number that stands for "not known": nothing is checked against it.
pub const ANY_TABLE: u8 = 0xff;
/// Bit of `ct_state`: the packet belongs to no connection.
const INVALID: u8 = 0x10;

/// Checks actions whose packets nothing is known of (groups, packet-outs): what an action needs is
/// there or not, packet by packet.
///
/// Errors: as [`check_instructions`], without `ActMatchInconsistent`.
pub fn check_any(actions: &[Action]) -> Result<(), OfError> {
    Packet { m: Match::default(), rules: Rules::Any }.check_all(actions)
}

/// Checks the `ct` actions of a list against what is known of its packets, be it in clones.
///
/// Errors: `ActMatchInconsistent`.
pub fn check_conntrack(actions: &[Action], m: &Match) -> Result<(), OfError> {
    actions.iter().try_for_each(|a| match a {
        Action::Ct(ct) => Packet { m: m.clone(), rules: Rules::Lenient }.conntrack(ct),
        Action::Clone(list) => check_conntrack(list, m),
        _ => Ok(()),
    })
}

/// Checks a flow's instructions against its match and table. Goto must lead to a later table below
/// `n_tables`; [`ANY_TABLE`] for `n_tables` or `table` leaves that out. What is refused in 1.0 is
/// refused in every version.
///
/// A write-actions list is executed in its own order and maybe in another table, so that a missing
/// prerequisite is an error there only where it is one in 1.0. As in OVS it is looked for in the
/// packet that the actions to apply make.
///
/// Errors: `ActMatchInconsistent` where a prerequisite is missing, `ActBadTag` for a third VLAN
/// tag, `ActBadOutPort`, `MeterInvalid`, `ActBadArgument`, `ActBadSetArgument`, `ActBadType` for
/// what an action set cannot hold, `InstBadTableId`.
pub fn check_instructions(
    instructions: &[Instruction],
    m: &Match,
    version: Version,
    n_tables: u8,
    table: u8,
) -> Result<(), OfError> {
    let apply = if version == Version::V10 { Rules::Lenient } else { Rules::Strict };
    let mut known = m.clone();
    for instruction in instructions {
        match instruction {
            Instruction::Apply(list) => {
                let mut packet = Packet { m: known, rules: apply };
                list.iter().try_for_each(|a| packet.check(a))?;
                known = packet.m;
            }
            Instruction::Write(list) => {
                check_set(list)?;
                Packet { m: known.clone(), rules: Rules::Lenient }.check_all(list)?;
            }
            Instruction::Meter(id) => check_meter(*id)?,
            Instruction::Goto(next) => check_goto(*next, n_tables, table)?,
            Instruction::Clear | Instruction::WriteMetadata { .. } => {}
        }
    }
    Ok(())
}

/// What an action set cannot hold.
fn check_set(list: &[Action]) -> Result<(), OfError> {
    use Action as A;
    let held = |a: &A| {
        !matches!(
            a,
            A::OutputReg { .. }
                | A::Clone(_)
                | A::Push(_)
                | A::Pop(_)
                | A::Exit
                | A::Test(_)
                | A::Note(_)
                | A::Enqueue { .. }
                | A::PopQueue
                | A::Nat(_)
                | A::CheckPktLarger { .. }
        )
    };
    if list.iter().all(held) { Ok(()) } else { Err(OfError::ActBadType) }
}

/// True if there is such a register: a key has sixteen of 32 bits.
pub fn exists(field: Field) -> bool {
    match field {
        Field::Reg(i) => i < 16,
        Field::Xreg(i) => i < 8,
        Field::Xxreg(i) => i < 4,
        _ => true,
    }
}

/// Bits that a subfield may span: some fields are wider in messages than in keys.
pub fn wire_bits(field: Field) -> usize {
    match field {
        Field::ArpOp => 16,
        Field::CtState => 32,
        Field::TunMetadata(_) => 8 * TUN_METADATA_MAX,
        f => f.bits(),
    }
}

fn check_range(s: Subfield) -> Result<(), OfError> {
    let inside = s.bits > 0 && usize::from(s.ofs) + usize::from(s.bits) <= wire_bits(s.field);
    if exists(s.field) && inside { Ok(()) } else { Err(OfError::ActBadArgument) }
}

fn check_goto(next: u8, n_tables: u8, table: u8) -> Result<(), OfError> {
    let backwards = table != ANY_TABLE && next <= table;
    let beyond = n_tables != ANY_TABLE && next >= n_tables;
    if backwards || beyond { Err(OfError::InstBadTableId) } else { Ok(()) }
}

fn check_meter(id: u32) -> Result<(), OfError> {
    if (1..=meter_id::MAX).contains(&id) { Ok(()) } else { Err(OfError::MeterInvalid) }
}

/// What a missing prerequisite means.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rules {
    /// An error.
    Strict,
    /// An error, but for actions that just have no effect then.
    Lenient,
    /// Nothing: it may be there.
    Any,
}

/// What is known of a packet between two actions.
struct Packet {
    m: Match,
    rules: Rules,
}

impl Packet {
    fn check_all(mut self, actions: &[Action]) -> Result<(), OfError> {
        actions.iter().try_for_each(|a| self.check(a))
    }

    fn check(&mut self, action: &Action) -> Result<(), OfError> {
        use Action::*;
        match action {
            Output { port, .. } => check_output_port(*port).map(|_| ()),
            OutputReg { src, .. } | Push(src) => self.reads(*src),
            Move { src, dst } if src.bits != dst.bits => Err(OfError::ActBadArgument),
            Move { src, dst } => self.reads(*src).and_then(|()| self.writes(*dst)),
            Load { dst, value } => {
                self.writes(*dst)?;
                if dst.field == Field::VlanTci && dst.bits == 16 {
                    self.m.key.set_u16(at::VLAN, *value as u16);
                }
                Ok(())
            }
            Pop(dst) | Multipath { dst, .. } => self.writes(*dst),
            Bundle(b) => {
                let known = |p: &OfPort| *p == port::ANY || check_output_port(*p).is_ok();
                if !b.members.iter().all(known) {
                    return Err(OfError::ActBadOutPort);
                }
                b.dst.map_or(Ok(()), |dst| self.writes(dst))
            }
            Learn(l) => self.learn(l),
            SetField { field, value, .. } => self.set_field(*field, *value),
            SetVlanVid { push_if_absent, .. } | SetVlanPcp { push_if_absent, .. } => {
                self.expect(self.has_vlan() || *push_if_absent)?;
                self.set_vlan(VLAN_PRESENT);
                Ok(())
            }
            StripVlan { .. } => self.pop_vlan(),
            PushVlan { ethertype: eth::VLAN | eth::SVLAN } => self.push_vlan(),
            PushVlan { .. } => Err(OfError::ActBadArgument),
            SetIpSrc(_) | SetIpDst(_) => self.expect(prereq::eth_type(&self.m) == eth::IP),
            SetIpDscp(_) | SetIpEcn(_) | SetIpTtl(_) | DecTtl { .. } => self.expect(self.is_ip()),
            SetL4Src(_) | SetL4Dst(_) => self.expect(self.has_ports()),
            FinTimeout { .. } => self.expect(self.m.key.u8(at::PROTO) == ip::TCP),
            SetMplsLabel(_) | SetMplsTc(_) | SetMplsTtl(_) | DecMplsTtl => {
                self.expect(is_mpls(prereq::eth_type(&self.m)))
            }
            DecNshTtl => self.expect(prereq::eth_type(&self.m) == eth::NSH),
            PushMpls { ethertype } if !is_mpls(*ethertype) => Err(OfError::ActBadArgument),
            PushMpls { ethertype } => {
                self.expect(prereq::is_ethernet(&self.m.key))?;
                self.m.key.set_u16(at::ETH_TYPE, *ethertype);
                self.m.key.set_u8(at::PROTO, 0);
                Ok(())
            }
            PopMpls { ethertype } => {
                let ethernet = prereq::is_ethernet(&self.m.key);
                self.expect(ethernet && is_mpls(prereq::eth_type(&self.m)))?;
                self.m.key.set_u16(at::ETH_TYPE, *ethertype);
                Ok(())
            }
            Encap(header) => {
                self.encap(header);
                Ok(())
            }
            Decap(_) => {
                self.decap();
                Ok(())
            }
            Resubmit { ct: true, .. } => self.need(prereq::holds(Field::CtNwProto, &self.m)),
            Ct(ct) => self.conntrack(ct),
            Nat(nat) => self.need(self.is_ip() && nat.first.is_none_or(|a| self.is_family(a))),
            Clone(list) => Packet { m: self.m.clone(), rules: self.rules }.check_all(list),
            Meter(id) => check_meter(*id),
            DeleteField(Field::TunMetadata(_)) => Ok(()),
            DeleteField(_) => Err(OfError::ActBadArgument),
            _ => Ok(()),
        }
    }

    /// What is read is the packet's; what is matched and written is the learned flow's, as its
    /// parts before say.
    fn learn(&self, l: &crate::Learn) -> Result<(), OfError> {
        let mut learned = Packet { m: Match::default(), rules: self.rules };
        for spec in &l.specs {
            if let LearnSource::Field(src) = spec.src {
                self.reads(src)?;
            }
            match (spec.dst, spec.src) {
                (LearnTarget::Match(d), src) => {
                    learned.reads(d)?;
                    if let LearnSource::Value(v) = src
                        && !matches!(d.field, Field::TunMetadata(_))
                    {
                        let mask = (u128::MAX >> (128 - d.bits)) << d.ofs;
                        d.field.set_masked(&mut learned.m.key, v << d.ofs, mask);
                        d.field.set_masked(&mut learned.m.mask, mask, mask);
                    }
                }
                (LearnTarget::Load(d), _) => learned.writes(d)?,
                (LearnTarget::Output, _) => {}
            }
        }
        l.result.map_or(Ok(()), |dst| self.writes(dst))
    }

    /// An action that would have no effect unless `condition` holds.
    fn expect(&self, condition: bool) -> Result<(), OfError> {
        let fine = condition || self.rules != Rules::Strict;
        if fine { Ok(()) } else { Err(OfError::ActMatchInconsistent) }
    }

    /// Something that means nothing unless `condition` holds.
    fn need(&self, condition: bool) -> Result<(), OfError> {
        let fine = condition || self.rules == Rules::Any;
        if fine { Ok(()) } else { Err(OfError::ActMatchInconsistent) }
    }

    fn reads(&self, s: Subfield) -> Result<(), OfError> {
        check_range(s)?;
        self.need(prereq::holds(s.field, &self.m))
    }

    fn writes(&self, s: Subfield) -> Result<(), OfError> {
        self.reads(s)?;
        if s.field.writable() { Ok(()) } else { Err(OfError::ActBadSetArgument) }
    }

    fn set_field(&mut self, field: Field, value: u128) -> Result<(), OfError> {
        if !exists(field) || !field.writable() {
            return Err(OfError::ActBadSetArgument);
        }
        let no_tag = field == Field::VlanVid && !self.has_vlan();
        self.need(!no_tag && prereq::holds(field, &self.m))?;
        if field == Field::VlanTci {
            self.m.key.set_u16(at::VLAN, value as u16);
        }
        Ok(())
    }

    /// True if the packets of this protocol have addresses of this family.
    fn is_family(&self, address: IpAddr) -> bool {
        let family = if address.is_ipv4() { eth::IP } else { eth::IPV6 };
        prereq::eth_type(&self.m) == family
    }

    /// Only IP packets have connections; a packet that has none can begin none; and helpers have
    /// their protocols. That is looked at in all versions, as in OVS.
    fn conntrack(&self, ct: &Conntrack) -> Result<(), OfError> {
        let proto = self.m.key.u8(at::PROTO);
        let invalid = self.m.key.u8(at::CT_STATE) & INVALID != 0;
        let helped = match ct.alg {
            ALG_FTP => proto == ip::TCP,
            ALG_TFTP => proto == ip::UDP,
            _ => true,
        };
        self.need(self.is_ip() && !(invalid && ct.commits()) && helped)?;
        match ct.zone {
            Zone::Field(s) => self.reads(s),
            Zone::Number(_) => {
                Packet { m: self.m.clone(), rules: self.rules }.check_all(&ct.actions)
            }
        }
    }

    fn has_vlan(&self) -> bool {
        self.m.key.u16(at::VLAN) & VLAN_PRESENT != 0
    }

    fn set_vlan(&mut self, bits: u16) {
        let tci = self.m.key.u16(at::VLAN);
        self.m.key.set_u16(at::VLAN, tci | bits);
    }

    fn push_vlan(&mut self) -> Result<(), OfError> {
        if self.m.key.u16(at::VLAN1) & VLAN_PRESENT != 0 {
            return Err(OfError::ActBadTag);
        }
        let outer = self.m.key.u16(at::VLAN);
        self.m.key.set_u16(at::VLAN1, outer);
        self.m.key.set_u16(at::VLAN, VLAN_PRESENT);
        Ok(())
    }

    fn pop_vlan(&mut self) -> Result<(), OfError> {
        self.expect(self.has_vlan())?;
        let inner = self.m.key.u16(at::VLAN1);
        self.m.key.set_u16(at::VLAN, inner);
        self.m.key.set_u16(at::VLAN1, 0);
        Ok(())
    }

    fn encap(&mut self, header: &Header) {
        let kind = header.packet_type();
        self.m.key.set_u32(at::PACKET_TYPE, kind);
        if let Some(ethertype) = packet_type::ethertype(kind) {
            self.m.key.set_u16(at::ETH_TYPE, ethertype);
            self.m.key.set_u8(at::PROTO, 0);
        }
    }

    /// Behind an Ethernet header is what its type says; behind others, as in OVS, something
    /// unknown, whatever the action says it is.
    fn decap(&mut self) {
        let kind = match prereq::is_ethernet(&self.m.key) {
            true => packet_type::of_ethertype(self.m.key.u16(at::ETH_TYPE)),
            false => {
                self.m.key.set_u16(at::ETH_TYPE, 0);
                packet_type::UNKNOWN
            }
        };
        self.m.key.set_u32(at::PACKET_TYPE, kind);
    }

    fn is_ip(&self) -> bool {
        matches!(prereq::eth_type(&self.m), eth::IP | eth::IPV6)
    }

    fn has_ports(&self) -> bool {
        let proto = self.m.key.u8(at::PROTO);
        self.is_ip()
            && self.m.key.u8(at::FRAG) & frag::LATER == 0
            && matches!(proto, ip::TCP | ip::UDP | ip::SCTP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Version::{V10, V13};

    fn tcp() -> Match {
        let mut m = Match::default();
        for (f, v) in [(Field::EthType, 0x800), (Field::IpProto, 6)] {
            f.set(&mut m.key, v);
            f.unwildcard(&mut m.mask);
        }
        m
    }

    fn check(version: Version, m: &Match, actions: &[Action]) -> Result<(), OfError> {
        check_instructions(&[Instruction::Apply(actions.to_vec())], m, version, 254, 0)
    }

    const INCONSISTENT: Result<(), OfError> = Err(OfError::ActMatchInconsistent);

    #[test]
    fn actions_without_effect_are_errors_from_11_on() {
        let any = Match::default();
        for a in [
            Action::SetL4Src(1),
            Action::SetIpTtl(3),
            Action::DecMplsTtl,
            Action::StripVlan { pop: true },
        ] {
            assert_eq!(check(V13, &any, std::slice::from_ref(&a)), INCONSISTENT, "{a:?}");
            assert_eq!(check(V10, &any, &[a]), Ok(()));
        }
        assert_eq!(check(V13, &tcp(), &[Action::SetL4Src(1), Action::SetIpTtl(3)]), Ok(()));
    }

    #[test]
    fn set_field_needs_its_protocol_in_every_version() {
        let set = |field, value| Action::SetField { field, value, mask: u128::MAX };
        for v in [V10, V13] {
            assert_eq!(check(v, &Match::default(), &[set(Field::TcpSrc, 1)]), INCONSISTENT);
            assert_eq!(check(v, &tcp(), &[set(Field::TcpSrc, 1)]), Ok(()));
            assert_eq!(check(v, &tcp(), &[set(Field::UdpSrc, 1)]), INCONSISTENT);
        }
    }

    #[test]
    fn pushes_and_pops_change_what_is_known() {
        let vid = Action::SetField { field: Field::VlanVid, value: 0x1005, mask: 0x1fff };
        let push = Action::PushVlan { ethertype: 0x8100 };
        let m = tcp();
        assert_eq!(check(V13, &m, std::slice::from_ref(&vid)), INCONSISTENT);
        assert_eq!(check(V13, &m, &[push.clone(), vid.clone()]), Ok(()));
        assert_eq!(
            check(V13, &m, &[push.clone(), push.clone(), push.clone()]),
            Err(OfError::ActBadTag)
        );
        let two = [
            push.clone(),
            push,
            Action::StripVlan { pop: true },
            Action::StripVlan { pop: true },
            vid,
        ];
        assert_eq!(check(V13, &m, &two), INCONSISTENT);
        let mpls = Action::PushMpls { ethertype: 0x8847 };
        assert_eq!(check(V13, &m, &[mpls.clone(), Action::SetL4Src(1)]), INCONSISTENT);
        let back = [mpls, Action::DecMplsTtl, Action::PopMpls { ethertype: 0x800 }];
        assert_eq!(check(V13, &m, &back), Ok(()));
    }

    #[test]
    fn packets_of_any_kind_may_be_what_an_action_needs() {
        let dst = Subfield { field: Field::IpTtl, ofs: 0, bits: 8 };
        let load = Action::Load { dst, value: 1 };
        assert_eq!(check(V10, &Match::default(), std::slice::from_ref(&load)), INCONSISTENT);
        assert_eq!(
            check_any(&[load, Action::StripVlan { pop: true }, Action::SetL4Src(1)]),
            Ok(())
        );
        let push = Action::Push(Subfield { field: Field::Reg(200), ..dst });
        assert_eq!(check_any(&[push]), Err(OfError::ActBadArgument));
        let beyond = Action::Push(Subfield { ofs: 1, ..dst });
        assert_eq!(check_any(&[beyond]), Err(OfError::ActBadArgument));
    }

    /// Each as ovs-ofctl 3.1 judges it.
    #[test]
    fn encap_and_decap_change_what_is_known() {
        use Action::{Decap, Encap};
        let (label, addr) = (Action::SetMplsLabel(3), Action::SetIpSrc([1; 4]));
        let mac = Action::SetField { field: Field::EthDst, value: 1, mask: Field::EthDst.full() };
        let ethernet = || Encap(Header::Ethernet);
        let inner = |kind| Decap(Some(kind));
        let fine = [
            vec![Encap(Header::Mpls), label.clone(), ethernet(), label.clone(), mac.clone()],
            vec![Encap(Header::Mpls), ethernet(), Action::PopMpls { ethertype: eth::IP }],
            vec![Decap(None), addr.clone(), ethernet(), addr.clone(), mac.clone()],
            vec![Decap(None), Decap(None), Encap(Header::Mpls), label.clone()],
        ];
        for list in fine {
            assert_eq!(check(V13, &tcp(), &list), Ok(()), "{list:?}");
        }
        let wrong = [
            vec![Encap(Header::Mpls), mac.clone()],
            vec![Encap(Header::Mpls), addr.clone()],
            vec![Encap(Header::Mpls), Action::PushMpls { ethertype: eth::MPLS }],
            vec![Encap(Header::Mpls), Action::PopMpls { ethertype: eth::IP }],
            vec![Decap(None), mac.clone()],
            vec![Decap(None), inner(packet_type::ETHERNET), mac],
            vec![Decap(None), inner(packet_type::of_ethertype(eth::IP)), ethernet(), addr],
        ];
        for list in wrong {
            assert_eq!(check(V13, &tcp(), &list), INCONSISTENT, "{list:?}");
        }
    }

    #[test]
    fn an_action_set_does_not_hold_everything() {
        let write = |a| check_instructions(&[Instruction::Write(vec![a])], &tcp(), V13, 254, 0);
        assert_eq!(write(Action::Exit), Err(OfError::ActBadType));
        assert_eq!(write(Action::output(1)), Ok(()));
        assert_eq!(write(Action::PushVlan { ethertype: 0x800 }), Err(OfError::ActBadArgument));
    }

    #[test]
    fn goto_leads_forward_and_to_a_table() {
        let goto = |next, table| {
            check_instructions(&[Instruction::Goto(next)], &Match::default(), V13, 254, table)
        };
        assert_eq!(goto(1, 0), Ok(()));
        assert_eq!(goto(253, 0), Ok(()));
        for (next, table) in [(0, 0), (3, 4), (254, 0)] {
            assert_eq!(goto(next, table), Err(OfError::InstBadTableId));
        }
    }

    #[test]
    fn meters_have_numbers() {
        for id in [0, 0xffff_0001] {
            assert_eq!(check(V13, &tcp(), &[Action::Meter(id)]), Err(OfError::MeterInvalid));
        }
    }
}
