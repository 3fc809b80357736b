//! Meters (1.3+): meter-mod, statistics, configuration.

use crate::buf::{Put, Rd, Result};
use crate::{Band, MeterCommand, MeterMod, MeterStats, OfError, Request};

/// KBPS and PKTPS exclude each other; BURST and STATS.
const FLAGS: u16 = 0xf;
/// All bands have this length, behind their type and length.
const BAND_BODY_BYTES: usize = 12;

/// METER_MOD.
pub(super) fn decode_mod(mut rd: Rd<'_>) -> Result<Request> {
    let command = match rd.u16()? {
        0 => MeterCommand::Add,
        1 => MeterCommand::Modify,
        2 => MeterCommand::Delete,
        _ => return Err(OfError::MeterBadCommand),
    };
    let flags = rd.u16()?;
    let id = rd.u32()?;
    let bands = if command == MeterCommand::Delete {
        Vec::new()
    } else {
        if flags & !FLAGS != 0 || flags & 3 == 3 {
            return Err(OfError::MeterBadFlags);
        }
        decode_bands(rd)?
    };
    Ok(Request::MeterMod(MeterMod { command, id, flags, bands }))
}

fn decode_bands(mut rd: Rd<'_>) -> Result<Vec<Band>> {
    let mut bands = Vec::new();
    while !rd.is_empty() {
        let (kind, mut body) = rd.property().map_err(|_| OfError::BadLen)?;
        if body.left() != BAND_BODY_BYTES {
            return Err(OfError::BadLen);
        }
        let (rate, burst) = (body.u32()?, body.u32()?);
        bands.push(match kind {
            1 => Band::Drop { rate, burst },
            2 => Band::DscpRemark { rate, burst, prec: body.u8()? },
            _ => return Err(OfError::MeterBadBand),
        });
    }
    Ok(bands)
}

/// One meter of a statistics reply.
pub(super) fn put_stats(s: &MeterStats, m: &mut Vec<u8>) {
    let start = m.len();
    m.u32(s.id);
    m.pad(8); // the length and padding
    m.u32(s.flow_count);
    m.u64(s.packets);
    m.u64(s.bytes);
    m.duration(s.duration_ns);
    for (packets, bytes) in &s.bands {
        m.u64(*packets);
        m.u64(*bytes);
    }
    m.patch_len(start + 4, start);
}

/// One meter of a configuration reply.
pub(super) fn put_config(c: &MeterMod, m: &mut Vec<u8>) {
    let start = m.len();
    m.pad(2);
    m.u16(c.flags);
    m.u32(c.id);
    for band in &c.bands {
        match band {
            Band::Drop { rate, burst } => m.property(1, |m| {
                m.u32(*rate);
                m.u32(*burst);
                m.pad(4);
            }),
            Band::DscpRemark { rate, burst, prec } => m.property(2, |m| {
                m.u32(*rate);
                m.u32(*burst);
                m.u8(*prec);
                m.pad(3);
            }),
        }
    }
    m.patch_len(start, start);
}
