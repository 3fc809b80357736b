//! Flow tables: rules, what they say about tunnel options, and their counters.

pub(crate) mod conjunction;
pub(crate) mod counters;
pub(crate) mod instructions;
pub(crate) mod table;
pub(crate) mod tlv;
