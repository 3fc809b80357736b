//! Names of what actions have numbers for.

use openflow::Reason;

/// Why packets go to controllers, as OVS writes it.
pub(super) const REASONS: [(Reason, &str); 6] = [
    (Reason::TableMiss, "no_match"),
    (Reason::Action, "action"),
    (Reason::InvalidTtl, "invalid_ttl"),
    (Reason::ActionSet, "action_set"),
    (Reason::Group, "group"),
    (Reason::PacketOut, "packet_out"),
];

/// What is hashed, by its number.
pub(super) const HASH_FIELDS: [&str; 7] = [
    "eth_src",
    "symmetric_l4",
    "symmetric_l3l4",
    "symmetric_l3l4+udp",
    "nw_src",
    "nw_dst",
    "symmetric_l3",
];

/// How multipath chooses, by its number.
pub(super) const MULTIPATH_ALGORITHMS: [&str; 4] =
    ["modulo_n", "hash_threshold", "hrw", "iter_hash"];

/// How bundles choose, by its number.
pub(super) const BUNDLE_ALGORITHMS: [&str; 2] = ["active_backup", "hrw"];
