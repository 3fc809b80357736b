//! Experimenter messages: Nicira's and ONF's.

use super::{Dialect, Form, NX, ONF, ReplyTo, bundle, config, flow_mod, group, tlv};
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
    if vendor == NX {
        to.form = Form::Nicira;
        return nicira(dialect, subtype, rd);
    }
    to.form = Form::Onf;
    match subtype {
        2300 if dialect.version == Version::V13 => bundle::decode_control(rd),
        2301 if dialect.version == Version::V13 => bundle::decode_add(dialect, to.xid, rd, depth),
        _ => Err(OfError::BadExpType),
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
        20 => {
            rd.skip(6)?;
            Request::SetControllerId(rd.u16()?)
        }
        21 => Request::MonitorCancel(rd.u32()?),
        24 => return tlv::decode_mod(rd),
        25 => Request::TlvTable,
        27 => return config::decode_async14(version, rd),
        31 => return group::decode_mod_form(Version::V15, version, rd).map(Request::GroupMod),
        // Continuations, connection tracking: known, not supported.
        28 | 29 | 32 => Request::Unsupported(OfError::BadExpType),
        _ => return Err(OfError::BadExpType),
    };
    if rd.is_empty() || matches!(request, Request::Unsupported(_)) {
        Ok(request)
    } else {
        Err(OfError::BadLen)
    }
}
