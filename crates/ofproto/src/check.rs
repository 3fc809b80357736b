//! Checks whether this switch can execute actions and instructions, and has the groups that they
//! use. [`openflow::check`] checks what the protocol demands.

use crate::bridge::Bridge;
use crate::tables::table::N_TABLES;
use crate::tables::tlv;
use openflow::{Action, GROUP_ANY, Instruction, Match, OfError, OfPort, Version, check, port};

type Checked = Result<(), OfError>;

/// Checks a flow's instructions, by the rules that hold in every version.
pub(crate) fn instructions(b: &Bridge, table: u8, m: &Match, list: &[Instruction]) -> Checked {
    check::check_instructions(list, m, Version::V10, N_TABLES as u8, table)?;
    list.iter().try_for_each(|i| match i {
        Instruction::Meter(id) => meter(b, *id),
        Instruction::Apply(a) | Instruction::Write(a) => supported(b, a, Groups::Existing),
        Instruction::Clear | Instruction::WriteMetadata { .. } | Instruction::Goto(_) => Ok(()),
    })
}

/// Checks the actions of a packet-out, whose prerequisites need not be met.
pub(crate) fn packet_out(b: &Bridge, list: &[Action]) -> Checked {
    check::check_any(list)?;
    supported(b, list, Groups::Existing)
}

/// Checks the actions of a group's bucket, whose prerequisites need not be met by all packets. A
/// bucket may use a group that does not exist yet, as in OVS; until it exists it drops packets.
pub(crate) fn bucket(b: &Bridge, list: &[Action]) -> Checked {
    check::check_any(list)?;
    supported(b, list, Groups::Any)
}

/// Which groups actions may use.
#[derive(Clone, Copy, PartialEq)]
enum Groups {
    Existing,
    Any,
}

fn supported(b: &Bridge, list: &[Action], groups: Groups) -> Checked {
    list.iter().try_for_each(|a| action(b, a, groups))
}

fn action(b: &Bridge, a: &Action, groups: Groups) -> Checked {
    use Action as A;
    match a {
        A::Output { port, .. } | A::Enqueue { port, .. } => output(*port),
        A::Group(id) if groups == Groups::Any && *id < GROUP_ANY => Ok(()),
        A::Group(id) => group(b, *id),
        A::Resubmit { table: Some(t), .. } if *t != 0xff && usize::from(*t) >= N_TABLES => {
            Err(OfError::BadTableId)
        }
        A::Ct(ct) => tlv::check(&b.options.tlv, a).and_then(|()| supported(b, &ct.actions, groups)),
        A::Clone(inner) => supported(b, inner, groups),
        A::Test(_) if !b.config.test_actions => Err(OfError::ActBadExpType),
        A::Meter(id) => meter(b, *id),
        A::OutputReg { .. }
        | A::Load { .. }
        | A::Move { .. }
        | A::Push(_)
        | A::Pop(_)
        | A::CheckPktLarger { .. }
        | A::SetTunMetadata(_)
        | A::DeleteField(_) => tlv::check(&b.options.tlv, a),
        A::Controller { .. }
        | A::Resubmit { .. }
        | A::Conjunction { .. }
        | A::FinTimeout { .. }
        | A::Learn(_)
        | A::Bundle(_)
        | A::Multipath { .. }
        | A::Sample { .. }
        | A::SetField { .. }
        | A::SetVlanVid { .. }
        | A::SetVlanPcp { .. }
        | A::StripVlan { .. }
        | A::PushVlan { .. }
        | A::PushMpls { .. }
        | A::PopMpls { .. }
        | A::SetQueue(_)
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
        | A::DecNshTtl
        | A::DecTtl { .. }
        | A::SetTunnel { .. }
        | A::CtClear
        | A::Encap(_)
        | A::Decap(_)
        | A::Nat(_)
        | A::Note(_)
        | A::Test(_)
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

fn meter(b: &Bridge, id: u32) -> Checked {
    match b.meters.by_id.contains_key(&id) {
        true => Ok(()),
        false => Err(OfError::MeterInvalid),
    }
}

fn group(b: &Bridge, id: u32) -> Checked {
    match id < GROUP_ANY && b.groups.by_id().contains_key(&id) {
        true => Ok(()),
        false => Err(OfError::ActBadOutGroup),
    }
}
