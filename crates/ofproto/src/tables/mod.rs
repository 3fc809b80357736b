//! Flow tables: rules, their matches on tunnel options, and their counters.

pub(crate) mod conjunction;
pub(crate) mod counters;
pub(crate) mod instructions;
pub(crate) mod memory;
pub(crate) mod table;
pub(crate) mod tlv;
pub(crate) mod users;
