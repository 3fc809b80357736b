//! What an adapter's rule table can be asked for: rules that mark received packets.

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
}

impl Header {
    /// Bytes on the wire.
    pub fn len(self) -> usize {
        match self {
            Header::Ethernet => 14,
            Header::Vlan | Header::Icmp6 => 4,
            Header::Ipv4 | Header::Tcp => 20,
            Header::Ipv6 => 40,
            Header::Udp | Header::Icmp => 8,
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

/// Which packets a rule is for: those that begin with these headers and have `value` where `mask` has
/// bits. All bytes in network order.
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

/// An adapter's rule table. Calls may block for as long as the adapter likes, so they belong on a thread of
/// their own; never on one that forwards packets or controls the switch. A table whose device was closed answers
/// ENODEV.
pub trait RuleTable: Send {
    /// Asks whether a rule would be taken, without making it. The answer may be outdated at once.
    fn validate(&mut self, rule: &MarkRule) -> Result<(), RuleError>;
    /// Makes a rule.
    fn create(&mut self, rule: &MarkRule) -> Result<RuleId, RuleError>;
    /// Ends a rule; after an error its state is unknown.
    fn destroy(&mut self, rule: RuleId) -> Result<(), RuleError>;
    /// Ends all rules of the device.
    fn flush(&mut self) -> Result<(), RuleError>;
}
