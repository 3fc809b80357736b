//! Multicast snooping (RFC 4541): which ports of a bridge have members of a group behind them, and
//! which have multicast routers, by the messages of IGMP and MLD that hosts and routers send.

pub(crate) mod members;
pub(crate) mod messages;
