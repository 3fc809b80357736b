//! What all messages that are encoded begin and end with.

use super::kinds::Kind;
use super::{Form, NX, ONF};
use crate::Version;
use crate::buf::Put;

/// The largest message.
pub(super) const MAX_LEN: usize = 0xffff;

/// A message begun: its header, the length still zero.
pub(super) fn begin(version: Version, kind: Kind, xid: u32) -> Vec<u8> {
    let mut m = vec![version as u8, kind.wire(version), 0, 0];
    m.u32(xid);
    m
}

/// An experimenter message begun.
pub(super) fn begin_exp(version: Version, xid: u32, vendor: u32, subtype: u32) -> Vec<u8> {
    let mut m = begin(version, Kind::Experimenter, xid);
    m.u32(vendor);
    m.u32(subtype);
    m
}

/// Stores the length. The writers keep messages below 64 KiB; what is longer is cut.
pub(super) fn finish(mut m: Vec<u8>) -> Vec<u8> {
    debug_assert!(m.len() <= MAX_LEN, "message of {} bytes", m.len());
    m.truncate(MAX_LEN);
    m.patch_len(2, 0);
    m
}

/// Adds as much of `data` as fits.
pub(super) fn append(m: &mut Vec<u8>, data: &[u8]) {
    let room = MAX_LEN.saturating_sub(m.len());
    m.raw(&data[..data.len().min(room)]);
}

/// The experimenter of a form, `None` for OpenFlow's own messages.
pub(super) fn vendor(form: Form) -> Option<u32> {
    match form {
        Form::Nicira => Some(NX),
        Form::Onf => Some(ONF),
        Form::Standard | Form::FlowStats15 => None,
    }
}
