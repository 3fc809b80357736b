//! Matches on the wire: OpenFlow 1.0's fixed match, `ofp_match` of 1.2 and later, and Nicira's.

use crate::{Match, OfError, Version};

/// Reads an `ofp_match` (1.2 and later, type OXM). Returns the match and the bytes it takes with
/// its padding.
pub fn decode_match(_version: Version, _buf: &[u8]) -> Result<(Match, usize), OfError> {
    Err(OfError::MatchBadType)
}

/// Writes an `ofp_match` (1.2 and later) with its header and padding.
pub fn encode_match(_version: Version, _m: &Match, _out: &mut Vec<u8>) {}

/// Reads OXM/NXM entries that fill `buf` (no header, no padding; the length is given outside).
pub fn decode_oxm_list(_buf: &[u8]) -> Result<Match, OfError> {
    Err(OfError::MatchBadType)
}

/// Writes OXM/NXM entries without header and padding.
pub fn encode_oxm_list(_version: Version, _m: &Match, _out: &mut Vec<u8>) {}

/// A Nicira match, which may hold a cookie to compare with (`NXM_NX_COOKIE`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NxMatch {
    /// The match.
    pub matching: Match,
    /// Cookie bits to compare with; zero where `cookie_mask` is.
    pub cookie: u64,
    /// Cookie bits that count.
    pub cookie_mask: u64,
}

/// Reads a Nicira match (`nx_flow_mod`, `nx_flow_stats_request`) without its padding.
pub fn decode_nx_match(_buf: &[u8]) -> Result<NxMatch, OfError> {
    Err(OfError::MatchBadType)
}

/// Writes a Nicira match and pads it to a multiple of 8. Returns its length without padding.
pub fn encode_nx_match(_m: &NxMatch, _out: &mut Vec<u8>) -> usize {
    0
}

/// Reads OpenFlow 1.0's match.
pub fn decode_match10(_buf: &[u8; 40]) -> Result<Match, OfError> {
    Err(OfError::MatchBadType)
}

/// Writes OpenFlow 1.0's match; what it cannot express is left out.
pub fn encode_match10(_m: &Match) -> [u8; 40] {
    [0; 40]
}
