//! Which actions and instructions a flow-mod, group-mod or packet-out may carry.

use crate::bridge::Bridge;
use crate::fields::{self, ETH_MPLS, ETH_MPLS_MC, VLAN_PRESENT};
use crate::table::N_TABLES;
use flow::{Field, Key, at};
use openflow::{Action, GROUP_ANY, Instruction, Match, OfError, OfPort, Subfield, port};

type Checked = Result<(), OfError>;

/// Checks a flow's instructions against its match and the bridge's groups.
pub(crate) fn instructions(b: &Bridge, table: u8, m: &Match, list: &[Instruction]) -> Checked {
    let mut key = m.key;
    for i in list {
        match i {
            Instruction::Meter(_) => return Err(OfError::MeterInvalid),
            Instruction::Apply(a) => actions(b, &mut key, a)?,
            Instruction::Write(a) => action_set(b, &mut key, a)?,
            Instruction::Clear | Instruction::WriteMetadata { .. } => {}
            Instruction::Goto(t) if *t <= table || usize::from(*t) >= N_TABLES => {
                return Err(OfError::InstBadTableId);
            }
            Instruction::Goto(_) => {}
        }
    }
    Ok(())
}

/// Actions that an action set cannot hold.
fn action_set(b: &Bridge, key: &mut Key, list: &[Action]) -> Checked {
    use Action as A;
    for a in list {
        let bad = matches!(
            a,
            A::OutputReg { .. }
                | A::Clone(_)
                | A::Push(_)
                | A::Pop(_)
                | A::Exit
                | A::Note(_)
                | A::Enqueue { .. }
                | A::PopQueue
        );
        if bad {
            return Err(OfError::ActBadType);
        }
    }
    actions(b, key, list)
}

/// Checks actions in order; `key` follows the Ethertype and VLAN that they make.
pub(crate) fn actions(b: &Bridge, key: &mut Key, list: &[Action]) -> Checked {
    list.iter().try_for_each(|a| action(b, key, a))
}

fn action(b: &Bridge, key: &mut Key, a: &Action) -> Checked {
    use Action as A;
    match a {
        A::Output { port, .. } | A::Enqueue { port, .. } => output(*port),
        A::OutputReg { src, .. } => source(*src, key),
        A::Controller { pause, meter, .. } => match *pause || meter.is_some() {
            true => Err(OfError::ActBadType),
            false => Ok(()),
        },
        A::Group(id) => group(b, *id),
        A::SetField { field, .. } => writable(*field, key),
        A::Load { dst, .. } => dest(*dst, key),
        A::Move { src, dst } => match src.bits == dst.bits {
            true => source(*src, key).and(dest(*dst, key)),
            false => Err(OfError::ActBadArgument),
        },
        A::Push(s) => source(*s, key),
        A::Pop(d) => dest(*d, key),
        A::SetVlanVid { push_if_absent, .. } | A::SetVlanPcp { push_if_absent, .. } => {
            if *push_if_absent || key.u16(at::VLAN) & VLAN_PRESENT != 0 {
                key.set_u16(at::VLAN, VLAN_PRESENT);
            }
            Ok(())
        }
        A::StripVlan => {
            key.set_u16(at::VLAN, 0);
            Ok(())
        }
        A::PushVlan { ethertype: 0x8100 | 0x88a8 } => {
            key.set_u16(at::VLAN, VLAN_PRESENT);
            Ok(())
        }
        A::PushVlan { .. } => Err(OfError::ActBadArgument),
        A::PushMpls { ethertype } if matches!(*ethertype, ETH_MPLS | ETH_MPLS_MC) => {
            key.set_u16(at::ETH_TYPE, *ethertype);
            key.set_u8(at::PROTO, 0);
            Ok(())
        }
        A::PushMpls { .. } => Err(OfError::ActBadArgument),
        A::PopMpls { ethertype } => {
            match any_kind(key) || fields::is_mpls(key.u16(at::ETH_TYPE)) {
                true => key.set_u16(at::ETH_TYPE, *ethertype),
                false => return Err(OfError::ActMatchInconsistent),
            }
            Ok(())
        }
        A::Resubmit { table, ct, .. } => match (table, ct) {
            (_, true) => Err(OfError::ActBadType),
            (Some(t), _) if *t != 0xff && usize::from(*t) >= N_TABLES => Err(OfError::BadTableId),
            _ => Ok(()),
        },
        A::Clone(inner) => actions(b, &mut key.clone(), inner),
        A::FinTimeout { .. }
        | A::Conjunction { .. }
        | A::Multipath { .. }
        | A::Sample { .. }
        | A::CtClear
        | A::DeleteField(_) => Err(OfError::ActBadType),
        A::Meter(_) => Err(OfError::MeterInvalid),
        A::SetQueue(_)
        | A::PopQueue
        | A::SetEthSrc(_)
        | A::SetEthDst(_)
        | A::SetIpSrc(_)
        | A::SetIpDst(_)
        | A::SetIpDscp(_)
        | A::SetIpEcn(_)
        | A::SetIpTtl(_)
        | A::SetL4Src(_)
        | A::SetL4Dst(_)
        | A::SetMplsLabel(_)
        | A::SetMplsTc(_)
        | A::SetMplsTtl(_)
        | A::DecMplsTtl
        | A::DecTtl { .. }
        | A::SetTunnel { .. }
        | A::Note(_)
        | A::Exit => Ok(()),
    }
}

fn output(p: OfPort) -> Checked {
    let reserved = matches!(
        p,
        port::IN_PORT
            | port::TABLE
            | port::NORMAL
            | port::FLOOD
            | port::ALL
            | port::CONTROLLER
            | port::LOCAL
    );
    if reserved || p < 0xff00 { Ok(()) } else { Err(OfError::ActBadOutPort) }
}

fn group(b: &Bridge, id: u32) -> Checked {
    match id < GROUP_ANY && b.groups.contains_key(&id) {
        true => Ok(()),
        false => Err(OfError::ActBadOutGroup),
    }
}

fn writable(field: Field, key: &mut Key) -> Checked {
    if !exists(field) || !field.writable() {
        return Err(OfError::ActBadSetArgument);
    }
    present(field, key)?;
    if matches!(field, Field::VlanVid | Field::VlanTci) {
        key.set_u16(at::VLAN, VLAN_PRESENT);
    }
    Ok(())
}

/// A packet of every kind: the marker is in a bit that no prerequisite looks at.
const ANY_KIND: (usize, u8) = (at::FLAGS, 0x80);

/// Checks actions whose prerequisites are met or not per packet (groups, packet-outs).
pub(crate) fn lenient(b: &Bridge, list: &[Action]) -> Checked {
    let mut key = Key::ZERO;
    key.set_u8(ANY_KIND.0, ANY_KIND.1);
    actions(b, &mut key, list)
}

fn any_kind(key: &Key) -> bool {
    key.u8(ANY_KIND.0) & ANY_KIND.1 != 0
}

fn present(field: Field, key: &Key) -> Checked {
    if any_kind(key) {
        return Ok(());
    }
    // A match on later fragments may name what only first ones have.
    let mut key = *key;
    key.set_u8(at::FRAG, 0);
    match fields::met(fields::prereq(field), &key) {
        true => Ok(()),
        false => Err(OfError::ActMatchInconsistent),
    }
}

fn source(s: Subfield, key: &Key) -> Checked {
    range(s)?;
    present(s.field, key)
}

fn dest(s: Subfield, key: &mut Key) -> Checked {
    range(s)?;
    if !s.field.writable() {
        return Err(OfError::ActBadArgument);
    }
    present(s.field, key)
}

/// Registers that exist (a key has sixteen of 32 bits).
pub(crate) fn exists(field: Field) -> bool {
    match field {
        Field::Reg(i) => i < 16,
        Field::Xreg(i) => i < 8,
        Field::Xxreg(i) => i < 4,
        _ => true,
    }
}

fn range(s: Subfield) -> Checked {
    if !exists(s.field) {
        return Err(OfError::ActBadArgument);
    }
    let fits = s.bits > 0 && usize::from(s.ofs) + usize::from(s.bits) <= fields::wire_bits(s.field);
    if fits { Ok(()) } else { Err(OfError::ActBadArgument) }
}
