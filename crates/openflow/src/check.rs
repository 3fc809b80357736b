//! Are actions consistent with each other and with the flow's match?

use crate::{Action, Instruction, Match, OfError, Version};

/// Checks actions of a flow (or packet-out: table 0) against its match.
pub fn check_actions(
    _actions: &[Action],
    _m: &Match,
    _version: Version,
    _n_tables: u8,
    _table: u8,
) -> Result<(), OfError> {
    Ok(())
}

/// Checks a flow's instructions against its match and table.
pub fn check_instructions(
    _instructions: &[Instruction],
    _m: &Match,
    _version: Version,
    _n_tables: u8,
    _table: u8,
) -> Result<(), OfError> {
    Ok(())
}
