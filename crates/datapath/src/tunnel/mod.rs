//! Tunnel headers: removed from received packets, put in front of sent ones.

pub(crate) mod decap;
pub(crate) mod decap_rules;
pub(crate) mod encap;
pub(crate) mod header;

pub(crate) use header::*;
