//! What is counted of packets and connections that did not go the common way.

/// Why a connection is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Another one has one of its tuples.
    Exists,
    /// There are as many connections as there may be.
    Full,
    /// The zone has as many connections as it may have.
    ZoneFull,
    /// The zone has as many half-open ones as its share.
    HalfOpen,
    /// The port has as many half-open ones as the zone's share has left.
    PortHalfOpen,
    /// Another thread was at the same place for too long.
    Busy,
}

/// What is counted of packets and connections that did not go the common way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Count {
    Invalid,
    IpChecksum,
    L4Checksum,
    TcpFlags,
    SequenceFailed,
    SequenceBypassed,
    Full,
    ZoneFull,
    HalfOpen,
    PortHalfOpen,
    Busy,
    NatExhausted,
    NatMiss,
    NotExpected,
    FragmentFull,
    FragmentBusy,
}

/// How many kinds there are.
pub const COUNTS: usize = 16;

/// Names of counters (`coverage/show`), in order of [`Count`]: OVS's where it has one.
pub const COUNT_NAMES: [&str; COUNTS] = [
    "conntrack_invalid",
    "conntrack_l3csum_err",
    "conntrack_l4csum_err",
    "conntrack_invalid_tcp_flags",
    "conntrack_tcp_seq_chk_failed",
    "conntrack_tcp_seq_chk_bypass",
    "conntrack_full",
    "conntrack_zone_full",
    "conntrack_half_open",
    "conntrack_half_open_port",
    "conntrack_busy",
    "conntrack_nat_exhausted",
    "conntrack_lookup_natted_miss",
    "conntrack_not_expected",
    "conntrack_fragment_full",
    "conntrack_fragment_busy",
];
