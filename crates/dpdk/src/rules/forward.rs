//! Rules that forward without the host: `rte_flow`'s transfer rules.

use super::{kind, no_error, refused};
use dpdk_sys as sys;
use port::{Edit, Fate, ForwardRule, HEADER_BYTES_MAX, Item, RuleCount, RuleError};

/// Makes one; the port is open.
pub(super) fn create(port: u16, rule: &ForwardRule) -> Result<*mut sys::rte_flow, RuleError> {
    let items: Vec<sys::weft_header> = rule.items.iter().map(item).collect();
    let edits = rule.edits.iter().map(edit).collect::<Result<Vec<_>, _>>()?;
    let to = match rule.fate {
        Fate::Port(to) => i32::from(to),
        Fate::Drop => sys::WEFT_TO_NOBODY,
        Fate::Host => sys::WEFT_TO_HOST,
    };
    let (mut flow, mut error) = (std::ptr::null_mut(), no_error());
    let (n, n_edits) = (items.len() as u32, edits.len() as u32);
    // SAFETY: the port is open; the arrays have the lengths given and are copied.
    let ret = unsafe {
        let (items, edits) = (items.as_ptr(), edits.as_ptr());
        sys::weft_flow_forward(port, items, n, edits, n_edits, to, &mut flow, &mut error)
    };
    refused(ret, &error).map(|()| flow)
}

/// What one had so far.
pub(super) fn count(port: u16, flow: *mut sys::rte_flow) -> Result<RuleCount, RuleError> {
    let (mut n, mut error) = (RuleCount::default(), no_error());
    // SAFETY: the port is open and was not stopped since the rule was made, nor was the rule
    // destroyed.
    let ret = unsafe { sys::weft_flow_count(port, flow, &mut n.packets, &mut n.bytes, &mut error) };
    refused(ret, &error).map(|()| n)
}

fn item(item: &Item) -> sys::weft_header {
    const { assert!(HEADER_BYTES_MAX == sys::WEFT_HEADER_MAX as usize) };
    let any = item.mask.iter().all(|m| *m == 0).into();
    sys::weft_header { kind: kind(item.header) as u16, any, spec: item.value, mask: item.mask }
}

fn edit(edit: &Edit) -> Result<sys::weft_edit, RuleError> {
    let (kind, value): (u32, &[u8]) = match edit {
        Edit::MacSrc(v) => (sys::WEFT_EDIT_MAC_SRC, v),
        Edit::MacDst(v) => (sys::WEFT_EDIT_MAC_DST, v),
        Edit::Ipv4Src(v) => (sys::WEFT_EDIT_IPV4_SRC, v),
        Edit::Ipv4Dst(v) => (sys::WEFT_EDIT_IPV4_DST, v),
        Edit::Ipv6Src(v) => (sys::WEFT_EDIT_IPV6_SRC, v),
        Edit::Ipv6Dst(v) => (sys::WEFT_EDIT_IPV6_DST, v),
        Edit::Ttl(v) => (sys::WEFT_EDIT_TTL, &[*v]),
        Edit::TpSrc(v) => (sys::WEFT_EDIT_TP_SRC, &v.to_be_bytes()),
        Edit::TpDst(v) => (sys::WEFT_EDIT_TP_DST, &v.to_be_bytes()),
        Edit::PopVlan => (sys::WEFT_EDIT_POP_VLAN, &[]),
        Edit::PushVlan { tpid, tci } => {
            let value = u32::from(*tpid) << 16 | u32::from(*tci);
            (sys::WEFT_EDIT_PUSH_VLAN, &value.to_be_bytes())
        }
        Edit::VxlanDecap => (sys::WEFT_EDIT_VXLAN_DECAP, &[]),
        Edit::VxlanEncap(headers) => (sys::WEFT_EDIT_VXLAN_ENCAP, headers),
    };
    let mut bytes = [0; sys::WEFT_EDIT_MAX as usize];
    let Some(room) = bytes.get_mut(..value.len()) else {
        let message = "the headers are too long".into();
        return Err(RuleError { errno: libc::EINVAL, kind: 0, message });
    };
    room.copy_from_slice(value);
    Ok(sys::weft_edit { kind: kind as u16, size: value.len() as u16, bytes })
}
