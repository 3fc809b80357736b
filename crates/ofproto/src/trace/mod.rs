//! Traces: what a translation notes of its steps, and how that is printed.

mod notes;
pub(crate) mod recorder;

use crate::translate::effects::{BfdContext, LacpContext, PacketInContext};
use action::Punt;
use flow::TunMetadata;
use openflow::Reason;

/// Options of the header of a traced packet's tunnel.
pub enum Options {
    /// The options' bytes, as in the header.
    Bytes(Vec<u8>),
    /// Fields `tun_metadataN` that the options are mapped to.
    Fields(Vec<TunMetadata>),
}

impl Default for Options {
    fn default() -> Self {
        Options::Bytes(Vec::new())
    }
}

/// `userspace(...)` as OVS's datapath prints it, for packets to controllers.
pub fn punt_text(p: &Punt) -> String {
    if p.context.is::<BfdContext>() {
        return "userspace(pid=0,slow_path(bfd))".into();
    }
    if p.context.is::<LacpContext>() {
        return "userspace(pid=0,slow_path(lacp))".into();
    }
    let Some(c) = p.context.downcast_ref::<PacketInContext>() else {
        return "userspace(pid=0)".into();
    };
    let reason = match c.reason {
        Reason::ActionSet | Reason::Group | Reason::PacketOut => Reason::Action,
        r => r,
    } as u8;
    let cookie = match c.cookie {
        0 => "0".into(),
        c => format!("{c:#x}"),
    };
    format!(
        "userspace(pid=0,controller(reason={reason},dont_send=0,continuation={},recirc_id=0,\
         rule_cookie={cookie},controller_id={},max_len={}))",
        u8::from(c.continuation.is_some()),
        c.controller_id,
        c.max_len
    )
}
