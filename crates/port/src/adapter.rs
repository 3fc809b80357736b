//! What an adapter's rule table can be asked for: rules that mark received packets, and rules that
//! forward them without the host.

/// A header of a pattern, in wire format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Header {
    /// Destination, source, Ethertype (or the tag's TPID): 14 bytes.
    Ethernet,
    /// Tag control information and the Ethertype behind the tag: 4 bytes.
    Vlan,
    /// 20 bytes, no options.
    Ipv4,
    /// 40 bytes.
    Ipv6,
    /// 20 bytes.
    Tcp,
    /// 8 bytes.
    Udp,
    /// 12 bytes.
    Sctp,
    /// Type, code and the rest: 8 bytes.
    Icmp,
    /// Type, code, checksum: 4 bytes.
    Icmp6,
    /// Flags, VNI: 8 bytes (RFC 7348). An Ethernet header follows.
    Vxlan,
}

impl Header {
    /// Bytes on the wire.
    pub fn len(self) -> usize {
        match self {
            Header::Ethernet => 14,
            Header::Vlan | Header::Icmp6 => 4,
            Header::Ipv4 | Header::Tcp => 20,
            Header::Ipv6 => 40,
            Header::Udp | Header::Icmp | Header::Vxlan => 8,
            Header::Sctp => 12,
        }
    }

    /// No header is empty.
    pub fn is_empty(self) -> bool {
        false
    }
}

/// Bytes of a packet that a rule can look at.
pub const PATTERN_BYTES: usize = 64;

/// Which packets a rule is for: those that begin with these headers and have `value` where `mask`
/// has bits. All bytes in network order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pattern {
    /// Headers, outermost first; each begins where the one before ends.
    pub headers: Vec<Header>,
    /// The packet's first bytes; zero where `mask` is.
    pub value: [u8; PATTERN_BYTES],
    /// Bits that count.
    pub mask: [u8; PATTERN_BYTES],
}

/// A rule that sets a packet's mark and leaves its way to a receive queue as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkRule {
    /// Which packets.
    pub pattern: Pattern,
    /// 24 bits, not 0.
    pub mark: u32,
}

/// Bytes of the longest header.
pub const HEADER_BYTES_MAX: usize = 40;
/// Of an Ethernet item the byte whose lowest bit says that a tag follows. Without it, the next item
/// says so.
pub const TAGGED: usize = 14;

/// A header of a rule that forwards: packets have `value` where `mask` has bits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Item {
    /// Which header.
    pub header: Header,
    /// As on the wire; zero where `mask` is, and behind the header (but [`TAGGED`]).
    pub value: [u8; HEADER_BYTES_MAX],
    /// Bits that count.
    pub mask: [u8; HEADER_BYTES_MAX],
}

/// What a rule that forwards does to a packet before it is sent. Checksums follow.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Edit {
    /// Ethernet source.
    MacSrc([u8; 6]),
    /// Ethernet destination.
    MacDst([u8; 6]),
    /// IPv4 source.
    Ipv4Src([u8; 4]),
    /// IPv4 destination.
    Ipv4Dst([u8; 4]),
    /// IPv6 source.
    Ipv6Src([u8; 16]),
    /// IPv6 destination.
    Ipv6Dst([u8; 16]),
    /// TTL or hop limit.
    Ttl(u8),
    /// TCP's or UDP's source port.
    TpSrc(u16),
    /// TCP's or UDP's destination port.
    TpDst(u16),
    /// The outer tag goes.
    PopVlan,
    /// An outer tag comes; bit 12 of `tci` is 0.
    PushVlan {
        /// 0x8100 or 0x88a8.
        tpid: u16,
        /// Priority and VLAN.
        tci: u16,
    },
    /// Ethernet, IP, UDP and VXLAN go; what follows is about the inner packet.
    VxlanDecap,
    /// These headers come: Ethernet, IPv4 or IPv6, UDP without checksum, VXLAN. The adapter fills
    /// in lengths, IPv4's checksum and a UDP source port of its own choice.
    VxlanEncap(Box<[u8]>),
}

/// Where a rule that forwards sends its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// Out of a port of the same adapter, by its number there ([`AdapterPort::port`]).
    Port(u16),
    /// Nowhere.
    Drop,
    /// To the host, where they would come in without the rule.
    Host,
}

/// A rule by which the adapter treats packets that a port receives; the host does not see them. It
/// counts them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ForwardRule {
    /// Headers, outermost first.
    pub items: Vec<Item>,
    /// In order.
    pub edits: Vec<Edit>,
    /// And then.
    pub fate: Fate,
}

/// What a rule had since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCount {
    /// Packets.
    pub packets: u64,
    /// Their bytes as they came in, without FCS.
    pub bytes: u64,
}

/// Which port of which adapter it is. Rules forward between ports of one adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AdapterPort {
    /// The adapter.
    pub adapter: u16,
    /// The port's number in rules.
    pub port: u16,
}

/// A rule in the table, until it is destroyed, the table is flushed, or the device stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RuleId(pub u64);

/// Why the adapter refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message} (errno {errno}, error type {kind})")]
pub struct RuleError {
    /// A positive error number of errno.h.
    pub errno: i32,
    /// Which part of the rule the driver names: `enum rte_flow_error_type` of DPDK, 0 for none.
    pub kind: i32,
    /// The driver's own words, or those of the error number.
    pub message: String,
}

/// An adapter's rule table. Calls may block for as long as the adapter likes, so they belong on a
/// thread of their own; never on one that forwards packets or controls the switch. A table whose
/// device was closed answers ENODEV.
pub trait RuleTable: Send {
    /// Asks whether a rule would be taken, without making it. The answer may be outdated at once.
    fn validate(&mut self, rule: &MarkRule) -> Result<(), RuleError>;
    /// Makes a rule.
    fn create(&mut self, rule: &MarkRule) -> Result<RuleId, RuleError>;
    /// Ends a rule; after an error its state is unknown.
    fn destroy(&mut self, rule: RuleId) -> Result<(), RuleError>;
    /// Ends all rules of the device.
    fn flush(&mut self) -> Result<(), RuleError>;
    /// Where the port is; None: it is on no adapter that forwards.
    fn place(&self) -> Option<AdapterPort> {
        None
    }
    /// Makes a rule that forwards.
    fn forward(&mut self, _: &ForwardRule) -> Result<RuleId, RuleError> {
        Err(RuleError { errno: libc::ENOSYS, kind: 0, message: "no such rules".into() })
    }
    /// What a rule that forwards had.
    fn count(&mut self, _: RuleId) -> Result<RuleCount, RuleError> {
        Err(RuleError { errno: libc::ENOSYS, kind: 0, message: "no such rules".into() })
    }
}
