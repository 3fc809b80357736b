//! Are actions consistent with each other and with the flow's match?
//!
//! The checks go through the actions in order and keep what is known of the packet: its Ethernet
//! type, IP protocol and VLAN tags, as pushes and pops change them. What may come to nothing
//! (setting a TCP port in a flow that is not TCP) is refused from 1.1 on and allowed in 1.0, where
//! such an action has no effect; set-field, moves and the stack are refused in all versions.

use crate::actions::check_output_port;
use crate::prereq::{self, VLAN_PRESENT, eth, ip, is_mpls};
use crate::{Action, Instruction, Match, OfError, Subfield, Version};
use flow::{Field, at, frag};

/// A table number that stands for "not known": nothing is checked against it.
pub const ANY_TABLE: u8 = 0xff;
const METER_MAX: u32 = 0xffff_0000;

/// Checks actions of a flow (or of a packet-out: a match of its in_port) against its match.
///
/// Errors: `ActMatchInconsistent` where a prerequisite is missing, `ActBadTag` for a third VLAN
/// tag, `ActBadOutPort`, `MeterInvalid`, `ActBadArgument`.
pub fn check_actions(
    actions: &[Action],
    m: &Match,
    version: Version,
    _n_tables: u8,
    _table: u8,
) -> Result<(), OfError> {
    Packet { m: m.clone(), strict: version != Version::V10 }.check_all(actions)
}

/// Checks a flow's instructions against its match and table, as [`check_actions`] and: goto must
/// lead to a later table below `n_tables` (else `InstBadTableId`). [`ANY_TABLE`] for `n_tables` or
/// `table` leaves that out.
///
/// A write-actions list is executed in its own order and maybe in another table, so that a missing
/// prerequisite is an error there only where it is one in 1.0.
pub fn check_instructions(
    instructions: &[Instruction],
    m: &Match,
    version: Version,
    n_tables: u8,
    table: u8,
) -> Result<(), OfError> {
    for instruction in instructions {
        match instruction {
            Instruction::Apply(list) => check_actions(list, m, version, n_tables, table)?,
            Instruction::Write(list) => {
                Packet { m: m.clone(), strict: false }.check_all(list)?;
            }
            Instruction::Meter(id) => check_meter(*id)?,
            Instruction::Goto(next) => check_goto(*next, n_tables, table)?,
            Instruction::Clear | Instruction::WriteMetadata { .. } => {}
        }
    }
    Ok(())
}

fn check_goto(next: u8, n_tables: u8, table: u8) -> Result<(), OfError> {
    let backwards = table != ANY_TABLE && next <= table;
    let beyond = n_tables != ANY_TABLE && next >= n_tables;
    if backwards || beyond { Err(OfError::InstBadTableId) } else { Ok(()) }
}

fn check_meter(id: u32) -> Result<(), OfError> {
    if (1..=METER_MAX).contains(&id) { Ok(()) } else { Err(OfError::MeterInvalid) }
}

/// What is known of a packet between two actions.
struct Packet {
    m: Match,
    /// Is an action without effect an error?
    strict: bool,
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
            Move { src, dst } => self.reads(*src).and_then(|()| self.writes(*dst)),
            Load { dst, value } => {
                self.writes(*dst)?;
                if dst.field == Field::VlanTci && dst.bits == 16 {
                    self.m.key.set_u16(at::VLAN, *value as u16);
                }
                Ok(())
            }
            Pop(dst) | Multipath { dst, .. } => self.writes(*dst),
            SetField { field, value, .. } => self.set_field(*field, *value),
            SetVlanVid { push_if_absent, .. } | SetVlanPcp { push_if_absent, .. } => {
                self.expect(self.has_vlan() || *push_if_absent)?;
                self.set_vlan(VLAN_PRESENT);
                Ok(())
            }
            StripVlan => self.pop_vlan(),
            PushVlan { .. } => self.push_vlan(),
            SetIpSrc(_) | SetIpDst(_) => self.expect(prereq::eth_type(&self.m) == eth::IP),
            SetIpDscp(_) | SetIpEcn(_) | SetIpTtl(_) | DecTtl { .. } => self.expect(self.is_ip()),
            SetL4Src(_) | SetL4Dst(_) => self.expect(self.has_ports()),
            FinTimeout { .. } => self.expect(self.m.key.u8(at::PROTO) == ip::TCP),
            SetMplsLabel(_) | SetMplsTc(_) | SetMplsTtl(_) | DecMplsTtl => {
                self.expect(is_mpls(prereq::eth_type(&self.m)))
            }
            PushMpls { ethertype } => {
                self.expect(self.m.key.u32(at::PACKET_TYPE) == 0)?;
                self.m.key.set_u16(at::ETH_TYPE, *ethertype);
                self.m.key.set_u8(at::PROTO, 0);
                Ok(())
            }
            PopMpls { ethertype } => {
                self.expect(is_mpls(prereq::eth_type(&self.m)))?;
                self.m.key.set_u16(at::ETH_TYPE, *ethertype);
                Ok(())
            }
            Resubmit { ct: true, .. } if !prereq::holds(Field::CtNwProto, &self.m) => {
                Err(OfError::ActMatchInconsistent)
            }
            Clone(list) => Packet { m: self.m.clone(), strict: self.strict }.check_all(list),
            Meter(id) => check_meter(*id),
            DeleteField(_) => Err(OfError::ActBadArgument),
            _ => Ok(()),
        }
    }

    /// An action that would have no effect unless `condition` holds.
    fn expect(&self, condition: bool) -> Result<(), OfError> {
        if condition || !self.strict { Ok(()) } else { Err(OfError::ActMatchInconsistent) }
    }

    fn reads(&self, s: Subfield) -> Result<(), OfError> {
        if prereq::holds(s.field, &self.m) { Ok(()) } else { Err(OfError::ActMatchInconsistent) }
    }

    fn writes(&self, s: Subfield) -> Result<(), OfError> {
        self.reads(s)?;
        if s.field.writable() { Ok(()) } else { Err(OfError::ActBadSetArgument) }
    }

    fn set_field(&mut self, field: Field, value: u128) -> Result<(), OfError> {
        let no_tag = field == Field::VlanVid && !self.has_vlan();
        if no_tag || !prereq::holds(field, &self.m) {
            return Err(OfError::ActMatchInconsistent);
        }
        if field == Field::VlanTci {
            self.m.key.set_u16(at::VLAN, value as u16);
        }
        Ok(())
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
        check_actions(actions, m, version, 254, 0)
    }

    const INCONSISTENT: Result<(), OfError> = Err(OfError::ActMatchInconsistent);

    #[test]
    fn actions_without_effect_are_errors_from_11_on() {
        let any = Match::default();
        for a in [Action::SetL4Src(1), Action::SetIpTtl(3), Action::DecMplsTtl, Action::StripVlan] {
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
        let two = [push.clone(), push, Action::StripVlan, Action::StripVlan, vid];
        assert_eq!(check(V13, &m, &two), INCONSISTENT);
        let mpls = Action::PushMpls { ethertype: 0x8847 };
        assert_eq!(check(V13, &m, &[mpls.clone(), Action::SetL4Src(1)]), INCONSISTENT);
        let back = [mpls, Action::DecMplsTtl, Action::PopMpls { ethertype: 0x800 }];
        assert_eq!(check(V13, &m, &back), Ok(()));
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
