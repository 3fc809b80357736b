//! Continuity check messages (IEEE 802.1ag, 21.6) with what OVS's extended mode adds in bytes that
//! ITU-T Y.1731 reserves.

use crate::bonds::lacp::mac_text;
use wire::{CCM_EXTENDED_MAC, CCM_MAC, ETH_CFM, ETH_VLAN};

/// Bytes behind the Ethernet header. Old versions of OVS left the last one out.
const LEN: usize = 75;
const LEN_MIN: usize = 74;
const OPCODE: u8 = 1;
/// Where the first TLV is, counted from the byte that says so.
const TLV_OFFSET: u8 = 70;
const RDI: u8 = 0x80;
const INTERVAL_BITS: u8 = 7;
/// Where what is in a message begins.
mod at {
    pub const SEQ: usize = 4;
    pub const MPID: usize = 8;
    pub const MAID: usize = 10;
    pub const INTERVAL_MS: usize = 58;
    pub const MPID64: usize = 60;
    pub const DOWN: usize = 68;
}
/// The maintenance association's identifier begins with the names of domain and association, "ovs"
/// both, each with its form and length; zeros follow.
const MAID: [u8; 48] = {
    let mut maid = [0; 48];
    let names = [4, 3, b'o', b'v', b's', 2, 3, b'o', b'v', b's'];
    let mut i = 0;
    while i < names.len() {
        maid[i] = names[i];
        i += 1;
    }
    maid
};
/// MPIDs of the standard are 1 to this.
pub const MPID_MAX: u64 = 8191;

/// Why a frame is no continuity check message, in ovs-vswitchd's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("Received an unparseable 802.1ag CCM heartbeat.")]
    Short,
    #[error("Received an unsupported 802.1ag message. (opcode {0})")]
    Opcode(u8),
    #[error("Received unexpected remote MAID from MAC {}", mac_text(*.0))]
    Maid(wire::Mac),
}

/// What a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ccm {
    pub seq: u32,
    /// The sender's MPID.
    pub mpid: u64,
    /// The sender receives no messages.
    pub rdi: bool,
    /// The standard's number of the interval between messages; 0: `interval_ms` says it.
    pub interval: u8,
    /// ms; 0 where `interval` says it.
    pub interval_ms: u16,
    /// Extended: the sender is operationally down.
    pub down: bool,
}

impl Ccm {
    /// Reads a frame.
    pub fn read(frame: &[u8], extended: bool) -> Result<Ccm, Refusal> {
        let l3 = wire::l3(frame).ok_or(Refusal::Short)?;
        let b = frame.get(l3.at..).and_then(|b| b.first_chunk::<LEN_MIN>());
        let b = b.ok_or(Refusal::Short)?;
        if b[1] != OPCODE {
            return Err(Refusal::Opcode(b[1]));
        }
        if b[at::MAID..][..MAID.len()] != MAID {
            let mut mac = [0; 6];
            mac.copy_from_slice(&frame[6..12]);
            return Err(Refusal::Maid(mac));
        }
        let short = |at: usize| u16::from_be_bytes([b[at], b[at + 1]]);
        let word = |at: usize| u32::from(short(at)) << 16 | u32::from(short(at + 2));
        let wide = u64::from(word(at::MPID64)) << 32 | u64::from(word(at::MPID64 + 4));
        Ok(Ccm {
            seq: word(at::SEQ),
            mpid: if extended { wide } else { short(at::MPID).into() },
            rdi: b[2] & RDI != 0,
            interval: b[2] & INTERVAL_BITS,
            interval_ms: short(at::INTERVAL_MS),
            down: extended && b[at::DOWN] != 0,
        })
    }

    /// The frame that an interface with address `mac` sends, with a tag if `tci` is not zero.
    pub fn frame(&self, mac: [u8; 6], tci: u16, extended: bool) -> Vec<u8> {
        let mut f = Vec::with_capacity(wire::ETH_LEN + wire::VLAN_LEN + LEN);
        f.extend(if extended { CCM_EXTENDED_MAC } else { CCM_MAC });
        f.extend(mac);
        if tci != 0 {
            f.extend(ETH_VLAN.to_be_bytes());
            f.extend(tci.to_be_bytes());
        }
        f.extend(ETH_CFM.to_be_bytes());
        let mut b = [0; LEN];
        b[1] = OPCODE;
        b[2] = self.interval | if self.rdi { RDI } else { 0 };
        b[3] = TLV_OFFSET;
        b[at::SEQ..][..4].copy_from_slice(&self.seq.to_be_bytes());
        b[at::MAID..][..MAID.len()].copy_from_slice(&MAID);
        b[at::INTERVAL_MS..][..2].copy_from_slice(&self.interval_ms.to_be_bytes());
        let mut mpid = self.mpid;
        if extended {
            b[at::MPID64..][..8].copy_from_slice(&mpid.to_be_bytes());
            b[at::DOWN] = self.down.into();
            mpid = 1 + mpid % MPID_MAX;
        }
        b[at::MPID..][..2].copy_from_slice(&(mpid as u16).to_be_bytes());
        f.extend(b);
        f
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written() {
        let ccm = |mpid, interval, interval_ms, down| Ccm {
            seq: 0x01020304,
            mpid,
            rdi: true,
            interval,
            interval_ms,
            down,
        };
        let mac = [2, 0, 0, 0, 0, 1];
        for (ccm, extended) in [
            (ccm(8191, 4, 0, false), false),
            (ccm(u64::MAX - 7, 0, 300, true), true),
            (ccm(1, 3, 0, false), true),
        ] {
            for tci in [0, 0x6007] {
                let frame = ccm.frame(mac, tci, extended);
                let tag = if tci == 0 { 0 } else { 4 };
                assert_eq!(frame.len(), 14 + tag + 75);
                assert_eq!(Ccm::read(&frame, extended), Ok(ccm));
                assert_eq!(Ccm::read(&frame[..frame.len() - 1], extended), Ok(ccm));
                let short = Ccm::read(&frame[..frame.len() - 2], extended);
                assert_eq!(short, Err(Refusal::Short));
                let mut other = frame.clone();
                other[14 + tag + at::MAID + 1] += 1;
                assert_eq!(Ccm::read(&other, extended), Err(Refusal::Maid(mac)));
                other[14 + tag + 1] = 3;
                assert_eq!(Ccm::read(&other, extended), Err(Refusal::Opcode(3)));
            }
        }
    }
}
