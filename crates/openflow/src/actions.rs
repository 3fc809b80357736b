//! Actions from the wire.

use crate::{Action, OfError, Version};

/// Reads a list of actions that fills `buf`.
pub fn decode_actions(_version: Version, _buf: &[u8]) -> Result<Vec<Action>, OfError> {
    Err(OfError::ActBadType)
}
