//! Groups: what they are, and which of them are live.

pub(crate) mod liveness;
