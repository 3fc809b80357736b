//! Counters of exceptions: invalid packets, and connections that are not stored.

/// Why a connection is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Another connection has one of its tuples.
    Exists,
    /// The limit of all connections is reached, or the table has no room left.
    Full,
    /// The limit of the zone's connections is reached.
    ZoneFull,
    /// The zone has as many half-open connections as its share.
    HalfOpen,
    /// Packets of the input port began as many half-open connections as are left of the zone's
    /// share.
    PortHalfOpen,
    /// Other threads held the same bucket of the index, or the zone's counter, for too long.
    Busy,
}

/// An exception that is counted; [`COUNT_NAMES`] has their names.
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

/// Number of counters.
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
