//! OpenFlow connections: who is connected, what each asked for, and what it is sent.

pub mod account;
pub mod async_msgs;
pub mod bundle;
pub mod change;
pub mod conn;
pub mod connect;
pub mod controller;
pub mod ct_flush;
pub mod dispatch;
pub mod encoded;
pub mod flow_mod_log;
pub mod injected;
pub mod io;
pub mod message_text;
pub mod multipart;
pub mod open_bundles;
pub mod pace;
pub mod paused;
pub mod queues;
pub mod role;
pub mod room;
pub mod server;
pub mod snoop;
pub mod snoops;
pub mod table_features;
pub mod timing;
pub mod turns;

pub use conn::{Conn, ConnId, Kind};
