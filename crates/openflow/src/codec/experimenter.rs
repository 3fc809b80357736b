//! Experimenter messages: Nicira's and ONF's.

use super::{
    Dialect, Form, NX, ONF, ReplyTo, bundle, config, continuation_codec, ct_flush, flow_mod,
};
use super::{group, lengths, tlv};
use crate::buf::{Rd, Result};
use crate::{FlowFormat, OfError, PacketInFormat, Request, Version};

/// An EXPERIMENTER (1.0: VENDOR) message. Says in `to` which form the reply takes.
pub(super) fn decode(
    dialect: Dialect,
    mut rd: Rd<'_>,
    to: &mut ReplyTo,
    depth: u8,
) -> Result<Request> {
    let vendor = rd.u32()?;
    if vendor != NX && vendor != ONF {
        return Err(OfError::BadExperimenter);
    }
    let subtype = rd.u32()?;
    let (form, length) = match vendor {
        NX => (Form::Nicira, lengths::of_nicira(dialect.version, subtype)),
        _ => (Form::Onf, lengths::of_onf(dialect.version, subtype)),
    };
    to.form = form;
    if !length.ok_or(OfError::BadExpType)?.fits(rd.left()) {
        return Err(OfError::BadLen);
    }
    match (vendor, subtype) {
        (NX, _) => nicira(dialect, subtype, rd),
        (_, 1870) => Ok(Request::MonitorCancel(rd.u32()?)),
        (_, 2300) => bundle::decode_control(rd),
        (_, 2301) => bundle::decode_add(dialect, to.xid, rd, depth),
        // What a switch sends.
        _ => Err(OfError::BadType),
    }
}

fn nicira(dialect: Dialect, subtype: u32, mut rd: Rd<'_>) -> Result<Request> {
    let version = dialect.version;
    let request = match subtype {
        10 => return config::decode_role_nx(rd),
        12 => Request::SetFlowFormat(match rd.u32()? {
            0 => FlowFormat::OpenFlow10,
            2 => FlowFormat::Nxm,
            _ => return Err(OfError::RequestEperm),
        }),
        13 => return flow_mod::decode_nx(dialect, rd),
        15 => {
            let set = rd.u8()?;
            rd.skip(7)?;
            Request::FlowModTableId(match set {
                0 => false,
                1 => true,
                _ => return Err(OfError::RequestEperm),
            })
        }
        16 => Request::SetPacketInFormat(match rd.u32()? {
            0 => PacketInFormat::Standard,
            1 => PacketInFormat::Nxt,
            2 => PacketInFormat::Nxt2,
            _ => return Err(OfError::RequestEperm),
        }),
        19 => return config::decode_async13(rd),
        18 => Request::FlowAge,
        20 => {
            if rd.array::<6>()? != [0; 6] {
                return Err(OfError::RequestMustBeZero);
            }
            Request::SetControllerId(rd.u16()?)
        }
        21 => Request::MonitorCancel(rd.u32()?),
        24 => return tlv::decode_mod(rd),
        25 => Request::TlvTable,
        27 => return config::decode_async14(version, rd),
        31 => return group::decode_mod_form(Version::V15, version, rd).map(Request::GroupMod),
        28 => return continuation_codec::decode_resume(dialect, rd),
        29 => return ct_flush::decode_zone(rd),
        32 => return ct_flush::decode(rd),
        // What a switch sends.
        _ => return Err(OfError::BadType),
    };
    Ok(request)
}
