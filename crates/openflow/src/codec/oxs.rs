//! OpenFlow eXtensible Statistics (1.5 section 7.2.5.2).

use crate::FlowStats;
use crate::buf::Put;

const CLASS_BASIC: u16 = 0x8002;

/// Statistics to write; `None` leaves the field out.
#[derive(Default)]
pub(super) struct Stats {
    pub duration_ns: Option<u64>,
    pub idle_secs: Option<u32>,
    pub flows: Option<u32>,
    pub packets: Option<u64>,
    pub bytes: Option<u64>,
}

impl Stats {
    /// A flow's. Counters that are not kept (`u64::MAX`) are left out.
    pub fn of_flow(s: &FlowStats) -> Stats {
        Stats {
            duration_ns: Some(s.duration_ns),
            idle_secs: s.idle_age,
            packets: Some(s.packets).filter(|n| *n != u64::MAX),
            bytes: Some(s.bytes).filter(|n| *n != u64::MAX),
            ..Stats::default()
        }
    }
}

/// Writes `ofp_stats` with its padding.
pub(super) fn put(s: &Stats, m: &mut Vec<u8>) {
    let start = m.len();
    m.pad(4);
    if let Some(ns) = s.duration_ns {
        header(0, 8, m);
        m.duration(ns);
    }
    if let Some(secs) = s.idle_secs {
        header(1, 8, m);
        m.duration(u64::from(secs) * 1_000_000_000);
    }
    if let Some(n) = s.flows {
        header(3, 4, m);
        m.u32(n);
    }
    for (field, value) in [(4, s.packets), (5, s.bytes)] {
        if let Some(n) = value {
            header(field, 8, m);
            m.u64(n);
        }
    }
    m.patch_len(start + 2, start);
    m.align8(start);
}

fn header(field: u8, len: u8, m: &mut Vec<u8>) {
    m.u16(CLASS_BASIC);
    m.u8(field << 1);
    m.u8(len);
}
