//! Groups, and which of them are live.

pub(crate) mod group;
pub(crate) mod history;
pub(crate) mod liveness;
pub(crate) mod replaced;
