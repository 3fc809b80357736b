//! BPDUs (IEEE 802.1D-2004, clause 9) and the frames that they travel in.

use crate::BridgeId;

/// The group that bridges listen to.
pub const GROUP_MAC: [u8; 6] = [0x01, 0x80, 0xc2, 0, 0, 0];
/// LLC: the address of the bridges' protocol, twice, and unnumbered information.
const LLC: [u8; 3] = [0x42, 0x42, 0x03];
const ETHERNET_BYTES: usize = 14;
/// Bytes of a BPDU behind LLC.
const CONFIG_BYTES: usize = 35;
const TCN_BYTES: usize = 4;
const RST_BYTES: usize = 36;
/// Types of BPDUs.
const CONFIG: u8 = 0;
const TCN: u8 = 0x80;
const RST: u8 = 2;
/// The version that has RST BPDUs.
const RSTP_VERSION: u8 = 2;
/// Flags.
const TOPOLOGY_CHANGE: u8 = 0x01;
const PROPOSAL: u8 = 0x02;
/// Two bits for the role.
const ROLE_SHIFT: u32 = 2;
const LEARNING: u8 = 0x10;
const FORWARDING: u8 = 0x20;
const AGREEMENT: u8 = 0x40;
const TOPOLOGY_CHANGE_ACK: u8 = 0x80;

/// A time in a BPDU: 256 are a second.
pub fn to_ms(ticks: u16) -> u64 {
    u64::from(ticks) * 1000 / 256
}

/// Milliseconds as a BPDU has them, at most 255 s.
pub fn from_ms(ms: u64) -> u16 {
    (ms * 256 / 1000).min(u64::from(u16::MAX)) as u16
}

/// What the sender knows of the tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// The topology changes: learned addresses are to be forgotten.
    pub topology_change: bool,
    /// The sender has heard of a change.
    pub topology_change_ack: bool,
    /// The root.
    pub root: BridgeId,
    /// The cost of the sender's way to the root.
    pub cost: u32,
    /// The sender.
    pub bridge: BridgeId,
    /// The port that sent it.
    pub port: u16,
    /// How old the root's word is, in 1/256 s.
    pub message_age: u16,
    /// When it is too old, in 1/256 s.
    pub max_age: u16,
    /// How often the root sends, in 1/256 s.
    pub hello_time: u16,
    /// How long a port listens, and how long it learns, in 1/256 s.
    pub forward_delay: u16,
}

/// The role of the port that sent a BPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RstRole {
    /// Not one that is known.
    Unknown,
    /// Alternate or backup.
    Alternate,
    /// Root.
    Root,
    /// Designated.
    Designated,
}

/// What the sender knows of the tree, with what RSTP adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rst {
    /// As in STP; `topology_change_ack` is false.
    pub config: Config,
    /// The sender's role.
    pub role: RstRole,
    /// The sender would forward at once if the receiver agrees.
    pub proposal: bool,
    /// The sender agrees.
    pub agreement: bool,
    /// The sender learns.
    pub learning: bool,
    /// The sender forwards.
    pub forwarding: bool,
}

impl Rst {
    /// What a neighbour says that speaks STP.
    pub fn of_config(config: Config) -> Rst {
        let role = RstRole::Designated;
        Rst { config, role, proposal: false, agreement: false, learning: false, forwarding: false }
    }
}

/// A BPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bpdu {
    /// What the sender knows of the tree.
    Config(Config),
    /// What the sender of RSTP knows of the tree, with its port's role and flags.
    Rst(Rst),
    /// A bridge tells the root that the topology changes.
    TopologyChange,
}

/// Why a BPDU is passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It has fewer bytes than any BPDU.
    Runt(usize),
    /// It is of another protocol.
    Protocol(u16),
    /// A configuration BPDU has this many bytes.
    ConfigBytes(usize),
    /// A topology change notification has this many bytes.
    TcnBytes(usize),
    /// There is no such type.
    Type(u8),
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::Runt(n) => write!(f, "received runt {n}-byte BPDU"),
            Refusal::Protocol(id) => write!(f, "received BPDU with unexpected protocol ID {id}"),
            Refusal::ConfigBytes(n) => {
                write!(f, "received config BPDU with invalid size {n}")
            }
            Refusal::TcnBytes(n) => write!(f, "received TCN BPDU with invalid size {n}"),
            Refusal::Type(kind) => write!(f, "received BPDU of unexpected type {kind}"),
        }
    }
}

/// Reads a frame to [`GROUP_MAC`]. Higher versions of the protocol are read as far as they are
/// known (9.3.3).
pub fn read(frame: &[u8]) -> Result<Bpdu, Refusal> {
    let llc_end = ETHERNET_BYTES + LLC.len();
    // The length in the header: short frames are filled up.
    let length = frame.get(12..14).map_or(0, |l| usize::from(u16::from_be_bytes([l[0], l[1]])));
    let end = (ETHERNET_BYTES + length).min(frame.len());
    let Some(b) = frame.get(llc_end..end).filter(|b| b.len() >= TCN_BYTES) else {
        return Err(Refusal::Runt(end.saturating_sub(llc_end)));
    };
    if frame[ETHERNET_BYTES..llc_end] != LLC {
        return Err(Refusal::Protocol(u16::from_be_bytes([frame[14], frame[15]])));
    }
    match (u16::from_be_bytes([b[0], b[1]]), b[3]) {
        (0, CONFIG) if b.len() < CONFIG_BYTES => Err(Refusal::ConfigBytes(b.len())),
        (0, CONFIG) => Ok(Bpdu::Config(Config::read(b))),
        (0, RST) if b[2] >= RSTP_VERSION && b.len() < RST_BYTES => {
            Err(Refusal::ConfigBytes(b.len()))
        }
        (0, RST) if b[2] >= RSTP_VERSION => Ok(Bpdu::Rst(Rst::read(b))),
        (0, TCN) if b.len() != TCN_BYTES => Err(Refusal::TcnBytes(b.len())),
        (0, TCN) => Ok(Bpdu::TopologyChange),
        (0, kind) => Err(Refusal::Type(kind)),
        (id, _) => Err(Refusal::Protocol(id)),
    }
}

/// The frame of a BPDU, from the port's own address.
pub fn frame(source: [u8; 6], bpdu: &Bpdu) -> Vec<u8> {
    let rapid = matches!(bpdu, Bpdu::Rst(_));
    let mut pdu = vec![0, 0, if rapid { RSTP_VERSION } else { 0 }];
    match bpdu {
        Bpdu::Rst(rst) => {
            pdu.push(RST);
            rst.write(&mut pdu);
        }
        Bpdu::Config(config) => {
            pdu.push(CONFIG);
            config.write(&mut pdu);
        }
        Bpdu::TopologyChange => pdu.push(TCN),
    }
    let length = (LLC.len() + pdu.len()) as u16;
    [&GROUP_MAC[..], &source, &length.to_be_bytes(), &LLC, &pdu].concat()
}

impl Rst {
    fn read(b: &[u8]) -> Rst {
        let flags = b[4];
        let config = Config { topology_change_ack: false, ..Config::read(b) };
        let roles = [RstRole::Unknown, RstRole::Alternate, RstRole::Root, RstRole::Designated];
        Rst {
            config,
            role: roles[usize::from(flags >> ROLE_SHIFT & 3)],
            proposal: flags & PROPOSAL != 0,
            agreement: flags & AGREEMENT != 0,
            learning: flags & LEARNING != 0,
            forwarding: flags & FORWARDING != 0,
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        let at = out.len();
        self.config.write(out);
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        out[at] |= flag(self.proposal, PROPOSAL)
            | (self.role as u8) << ROLE_SHIFT
            | flag(self.learning, LEARNING)
            | flag(self.forwarding, FORWARDING)
            | flag(self.agreement, AGREEMENT);
        // Nothing of version 1.
        out.push(0);
    }
}

impl Config {
    fn read(b: &[u8]) -> Config {
        let half = |at: usize| u16::from_be_bytes([b[at], b[at + 1]]);
        let number = |at: usize, n: usize| {
            b[at..at + n].iter().fold(0u64, |all, byte| all << 8 | u64::from(*byte))
        };
        Config {
            topology_change: b[4] & TOPOLOGY_CHANGE != 0,
            topology_change_ack: b[4] & TOPOLOGY_CHANGE_ACK != 0,
            root: BridgeId(number(5, 8)),
            cost: number(13, 4) as u32,
            bridge: BridgeId(number(17, 8)),
            port: half(25),
            message_age: half(27),
            max_age: half(29),
            hello_time: half(31),
            forward_delay: half(33),
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        out.push(
            flag(self.topology_change, TOPOLOGY_CHANGE)
                | flag(self.topology_change_ack, TOPOLOGY_CHANGE_ACK),
        );
        out.extend(self.root.0.to_be_bytes());
        out.extend(self.cost.to_be_bytes());
        out.extend(self.bridge.0.to_be_bytes());
        let times = [self.message_age, self.max_age, self.hello_time, self.forward_delay];
        [self.port].into_iter().chain(times).for_each(|half| out.extend(half.to_be_bytes()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        Config {
            topology_change: true,
            topology_change_ack: false,
            root: BridgeId::new(0x1234, [1, 2, 3, 4, 5, 6]),
            cost: 0x01020304,
            bridge: BridgeId::new(0x8000, [9; 6]),
            port: 0x8003,
            message_age: 256,
            max_age: 5120,
            hello_time: 512,
            forward_delay: 3840,
        }
    }

    #[test]
    fn what_is_sent_is_read_and_padding_is_passed_over() {
        let rst = Rst {
            config: config(),
            role: RstRole::Root,
            proposal: false,
            agreement: true,
            learning: true,
            forwarding: false,
        };
        for bpdu in [Bpdu::Config(config()), Bpdu::TopologyChange, Bpdu::Rst(rst)] {
            let mut sent = frame([7; 6], &bpdu);
            assert_eq!(read(&sent), Ok(bpdu));
            sent.resize(60, 0);
            assert_eq!(read(&sent), Ok(bpdu));
        }
        let sent = frame([7; 6], &Bpdu::Rst(rst));
        assert_eq!((sent.len(), &sent[17..22]), (53, &[0, 0, 2, 2, 0x59][..]));
        let sent = frame([7; 6], &Bpdu::Config(config()));
        assert_eq!(sent.len(), 52);
        assert_eq!(sent[..21], *b"\x01\x80\xc2\0\0\0\x07\x07\x07\x07\x07\x07\0\x26BB\x03\0\0\0\0");
        assert_eq!(sent[21..31], [1, 0x12, 0x34, 1, 2, 3, 4, 5, 6, 1]);
    }

    #[test]
    fn what_is_not_whole_is_refused() {
        let sent = frame([7; 6], &Bpdu::Config(config()));
        (0..sent.len()).for_each(|n| assert!(read(&sent[..n]).is_err(), "{n}"));
        let with = |at: usize, byte: u8| {
            let mut bytes = sent.clone();
            bytes[at] = byte;
            read(&bytes)
        };
        assert_eq!(with(13, 37), Err(Refusal::ConfigBytes(34)));
        assert_eq!(with(13, 5), Err(Refusal::Runt(2)));
        assert_eq!(with(17, 1), Err(Refusal::Protocol(0x100)));
        assert_eq!(with(20, 1), Err(Refusal::Type(1)));
        assert_eq!(with(20, 0x80), Err(Refusal::TcnBytes(35)));
        assert!(with(14, 0x43).is_err());
        assert_eq!(with(19, 9), Ok(Bpdu::Config(config())), "a later version");
    }
}
