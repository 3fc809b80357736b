//! The rule table of an adapter: rules that mark received packets, and rules that forward them
//! without the host.

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

/// First bytes of a packet that a rule can match on.
pub const PATTERN_BYTES: usize = 64;

/// The packets of a rule: those that begin with these headers, and have `value` where `mask` has
/// bits. All bytes are in network order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pattern {
    /// The headers, outermost first; each begins where the one before ends.
    pub headers: Vec<Header>,
    /// The packet's first bytes; zero where `mask` is.
    pub value: [u8; PATTERN_BYTES],
    /// The bits that are matched.
    pub mask: [u8; PATTERN_BYTES],
}

/// A rule that sets a packet's mark, and does not change the receive queue that it gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkRule {
    /// The packets that it matches.
    pub pattern: Pattern,
    /// The mark: 24 bits, not 0.
    pub mark: u32,
}

/// Bytes of the longest header.
pub const HEADER_BYTES_MAX: usize = 40;
/// The byte of an Ethernet item whose lowest bit says that a tag follows. If it is 0, only the next
/// item says so.
pub const TAGGED: usize = 14;

/// A header of a forwarding rule: packets have `value` where `mask` has bits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Item {
    /// The header that is changed.
    pub header: Header,
    /// Bytes of the header in network order; zero where `mask` is, and behind the header (except
    /// [`TAGGED`]).
    pub value: [u8; HEADER_BYTES_MAX],
    /// The bits that are matched.
    pub mask: [u8; HEADER_BYTES_MAX],
}

/// What a forwarding rule changes in a packet before it is sent. Checksums are updated.
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
    /// Remove the outer tag.
    PopVlan,
    /// Insert an outer tag; bit 12 of `tci` is 0.
    PushVlan {
        /// 0x8100 or 0x88a8.
        tpid: u16,
        /// Priority and VLAN.
        tci: u16,
    },
    /// Remove Ethernet, IP, UDP and VXLAN headers; later edits are about the inner packet.
    VxlanDecap,
    /// Put these headers in front: Ethernet, IPv4 or IPv6, UDP without checksum, VXLAN. The adapter
    /// fills in lengths, IPv4's checksum and a UDP source port of its own choice.
    VxlanEncap(Box<[u8]>),
}

/// Where a forwarding rule sends packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// Packets go to a port of the same adapter, by its number there ([`AdapterPort::port`]).
    Port(u16),
    /// The packets are dropped.
    Drop,
    /// Packets go to the host, as if there were no rule.
    Host,
}

/// A forwarding rule: the adapter handles the packets that it matches, and counts them; the host
/// does not see them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ForwardRule {
    /// The headers, outermost first.
    pub items: Vec<Item>,
    /// The edits, in order.
    pub edits: Vec<Edit>,
    /// Where packets are sent after the edits.
    pub fate: Fate,
}

/// The counters of a rule since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCount {
    /// Packets.
    pub packets: u64,
    /// Bytes of these packets as received, without FCS.
    pub bytes: u64,
}

/// A port of an adapter. Rules forward between ports of one adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AdapterPort {
    /// The adapter.
    pub adapter: u16,
    /// The port's number in rules.
    pub port: u16,
}

/// Identity of a rule in the table, until it is destroyed, the table is flushed, or the device
/// stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RuleId(pub u64);

/// An adapter's refusal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message} (errno {errno}, error type {kind})")]
pub struct RuleError {
    /// A positive error number of errno.h.
    pub errno: i32,
    /// The part of the rule that the driver names: `enum rte_flow_error_type` of DPDK, 0 for none.
    pub kind: i32,
    /// The driver's message, or the text of the error number.
    pub message: String,
}

/// An adapter's rule table. Calls may block for as long as the adapter takes, so they belong on a
/// thread of their own, never on one that forwards packets or controls the switch. The table of a
/// closed device returns ENODEV.
pub trait RuleTable: Send {
    /// Makes a rule.
    fn create(&mut self, rule: &MarkRule) -> Result<RuleId, RuleError>;
    /// Removes a rule; after an error its state is unknown.
    fn destroy(&mut self, rule: RuleId) -> Result<(), RuleError>;
    /// Removes all rules of the device.
    fn flush(&mut self) -> Result<(), RuleError>;
    /// The adapter and number of the port; None: it is on no adapter that forwards.
    fn place(&self) -> Option<AdapterPort> {
        None
    }
    /// Makes a forwarding rule.
    fn forward(&mut self, _: &ForwardRule) -> Result<RuleId, RuleError> {
        Err(RuleError { errno: libc::ENOSYS, kind: 0, message: "no such rules".into() })
    }
    /// The counters of a forwarding rule.
    fn count(&mut self, _: RuleId) -> Result<RuleCount, RuleError> {
        Err(RuleError { errno: libc::ENOSYS, kind: 0, message: "no such rules".into() })
    }
}
