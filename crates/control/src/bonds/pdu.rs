//! LACP's packets (IEEE 802.1AX-2008, section 5.4.2), and the frames that they travel in.

/// Bytes of an LACPDU behind the Ethernet header.
const PDU_BYTES: usize = 110;
/// The group that stations which speak Slow Protocols listen to.
const SLOW_PROTOCOLS_MAC: [u8; 6] = [0x01, 0x80, 0xc2, 0, 0, 2];
/// Subtypes of Slow Protocols.
const LACP: u8 = 1;
const MARKER: u8 = 2;
/// Bytes of one party's information, with its type and length.
const INFO_BYTES: u8 = 20;

/// Bits of [`Info::state`].
pub mod state {
    /// Sends without being asked.
    pub const ACTIVITY: u8 = 0x01;
    /// Wants to hear every second, not every 30.
    pub const TIMEOUT: u8 = 0x02;
    /// The link may be one of several.
    pub const AGGREGATION: u8 = 0x04;
    /// The link is in the right aggregate.
    pub const SYNCHRONIZED: u8 = 0x08;
    /// Takes packets.
    pub const COLLECTING: u8 = 0x10;
    /// Sends packets.
    pub const DISTRIBUTING: u8 = 0x20;
    /// Has not heard of its partner and assumes a default.
    pub const DEFAULTED: u8 = 0x40;
    /// Has not heard of its partner for too long.
    pub const EXPIRED: u8 = 0x80;
    /// All, in the order of their bits, as OVS prints them.
    pub const NAMES: [&str; 8] = [
        "activity",
        "timeout",
        "aggregation",
        "synchronized",
        "collecting",
        "distributing",
        "defaulted",
        "expired",
    ];
}

/// What one end of a link says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Info {
    pub sys_priority: u16,
    pub sys_id: [u8; 6],
    pub key: u16,
    pub port_priority: u16,
    pub port_id: u16,
    pub state: u8,
}

impl Info {
    fn bytes(&self) -> [u8; 15] {
        let mut out = [0; 15];
        out[..2].copy_from_slice(&self.sys_priority.to_be_bytes());
        out[2..8].copy_from_slice(&self.sys_id);
        out[8..10].copy_from_slice(&self.key.to_be_bytes());
        out[10..12].copy_from_slice(&self.port_priority.to_be_bytes());
        out[12..14].copy_from_slice(&self.port_id.to_be_bytes());
        out[14] = self.state;
        out
    }

    fn read(b: &[u8]) -> Info {
        let half = |i: usize| u16::from_be_bytes([b[i], b[i + 1]]);
        Info {
            sys_priority: half(0),
            sys_id: std::array::from_fn(|i| b[2 + i]),
            key: half(8),
            port_priority: half(10),
            port_id: half(12),
            state: b[14],
        }
    }
}

/// A packet of Slow Protocols.
#[derive(Debug, PartialEq, Eq)]
pub enum Pdu {
    /// What the sender says of itself, and what it knows of the receiver.
    Lacp { actor: Info, partner: Info },
    /// A question of the marker protocol, which is not answered.
    Marker,
    /// Anything else.
    Bad,
}

/// Reads a frame, whose tags are passed over.
pub fn read(frame: &[u8]) -> Pdu {
    let is_tag = |at: usize| matches!(frame.get(at..at + 2), Some([0x81, 0] | [0x88, 0xa8]));
    let at = (12..).step_by(4).find(|at| !is_tag(*at)).unwrap_or(12) + 2;
    let Some(pdu) = frame.get(at..).filter(|pdu| pdu.len() >= PDU_BYTES) else { return Pdu::Bad };
    match pdu[0] {
        LACP if pdu[2..4] == [1, INFO_BYTES] && pdu[22..24] == [2, INFO_BYTES] => {
            Pdu::Lacp { actor: Info::read(&pdu[4..19]), partner: Info::read(&pdu[24..39]) }
        }
        MARKER => Pdu::Marker,
        _ => Pdu::Bad,
    }
}

/// The frame of an LACPDU.
pub fn frame(source: [u8; 6], actor: &Info, partner: &Info) -> Vec<u8> {
    let mut out = [&SLOW_PROTOCOLS_MAC[..], &source, &wire::ETH_SLOW.to_be_bytes()].concat();
    out.extend([LACP, 1, 1, INFO_BYTES]);
    out.extend(actor.bytes());
    out.extend([0, 0, 0, 2, INFO_BYTES]);
    out.extend(partner.bytes());
    // The collector: no delay.
    out.extend([0, 0, 0, 3, 16]);
    out.resize(14 + PDU_BYTES, 0);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(n: u8) -> Info {
        Info {
            sys_priority: 0x0100 + u16::from(n),
            sys_id: [n; 6],
            key: 0x0200 + u16::from(n),
            port_priority: 0x0300 + u16::from(n),
            port_id: 0x0400 + u16::from(n),
            state: n,
        }
    }

    #[test]
    fn what_is_sent_is_read() {
        let (actor, partner) = (info(1), info(2));
        let sent = frame([9; 6], &actor, &partner);
        assert_eq!(sent.len(), 124);
        assert_eq!(read(&sent), Pdu::Lacp { actor, partner });
        let tagged = [&sent[..12], &[0x81, 0, 0, 7], &sent[12..]].concat();
        assert_eq!(read(&tagged), Pdu::Lacp { actor, partner });
    }

    #[test]
    fn what_is_not_whole_is_bad() {
        let sent = frame([9; 6], &info(1), &info(2));
        (0..sent.len()).for_each(|n| assert_eq!(read(&sent[..n]), Pdu::Bad));
        let with = |at: usize, byte: u8| {
            let mut bytes = sent.clone();
            bytes[at] = byte;
            read(&bytes)
        };
        assert_eq!(with(14, 2), Pdu::Marker);
        assert_eq!(with(14, 3), Pdu::Bad);
        assert_eq!(with(17, 19), Pdu::Bad);
        assert_eq!(with(36, 1), Pdu::Bad);
    }
}
