//! Bytes that actions take, for limits of what is kept.

use openflow::{Action, Header, NshProperty};

/// Bytes of actions, about.
pub(super) fn bytes_of_all(list: &[Action]) -> usize {
    size_of_val(list) + list.iter().map(bytes_of).sum::<usize>()
}

/// Bytes of an action that are not in its own place, about.
pub(super) fn bytes_of(a: &Action) -> usize {
    const EACH: usize = 64;
    match a {
        Action::Controller { userdata, .. } => userdata.len(),
        Action::Note(bytes) => bytes.len(),
        Action::Clone(list) => list.iter().map(|a| EACH + bytes_of(a)).sum(),
        Action::Ct(ct) => EACH + ct.actions.iter().map(|a| EACH + bytes_of(a)).sum::<usize>(),
        Action::Learn(l) => EACH + l.specs.len() * EACH,
        Action::Bundle(b) => EACH + size_of_val(&*b.members),
        Action::DecTtl { ids } => ids.as_deref().map_or(0, size_of_val),
        Action::SetTunMetadata(_) => 2 * EACH,
        Action::Encap(Header::Nsh(properties)) => {
            let value = |p: &NshProperty| match p {
                NshProperty::Tlv { value, .. } => value.len(),
                NshProperty::MdType(_) => 0,
            };
            properties.iter().map(|p| EACH + value(p)).sum()
        }
        _ => 0,
    }
}
