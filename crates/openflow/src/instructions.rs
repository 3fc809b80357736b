//! Instructions from and to the wire.

use crate::{Instruction, OfError, Version};

/// Reads the instructions (1.1 and later) or the actions (1.0) that fill `buf`.
pub fn decode_instructions(_version: Version, _buf: &[u8]) -> Result<Vec<Instruction>, OfError> {
    Err(OfError::InstUnknown)
}

/// Writes instructions (1.1 and later) or actions (1.0).
pub fn encode_instructions(_version: Version, _list: &[Instruction], _out: &mut Vec<u8>) {}
