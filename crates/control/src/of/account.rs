//! What OpenFlow connections may have the switch keep for them, and how much of the control
//! thread's time they take before others have their turn.

use crate::vlog;
use std::time::{Duration, Instant};

/// Bytes that may be kept for one connection: received and not yet read, in bundles, in flow
/// monitors, in lists of flows that a reply has yet to name, and waiting to be sent. A bundle of a
/// million flows, or the messages that so many are gone, is 100 to 150 MB.
pub const CONNECTION_BYTES_MAX: usize = 256 << 20;
/// Bytes that may be kept for all connections together; beyond it the connection that has most is
/// closed.
pub const ALL_CONNECTIONS_BYTES_MAX: usize = 1 << 30;
/// What a connection has whatever it does: its read buffer and a message that is not complete, each
/// at most 64 KiB, and the room that they grow into.
pub const CONNECTION_BYTES_MIN: usize = 256 << 10;
/// Bytes of replies that may wait for a peer before more of its requests are read.
pub const REPLY_BYTES_MAX: usize = 8 << 20;
/// Part of a connection's bytes that bundles may not use, so that replies have room: a bundle that
/// is too large ends in an error and not with the connection.
pub const REPLY_SHARE_BYTES: usize = 2 * REPLY_BYTES_MAX;
/// Flow monitors of one connection: each is compared with every change of a flow.
pub const MONITORS_MAX: usize = 1024;
/// Flow monitors of all connections of a bridge.
pub const MONITORS_BRIDGE_MAX: usize = 4 * MONITORS_MAX;
/// Connections that one listener (`.mgmt`, `.snoop`, `ptcp:`, `punix:`) serves at once.
pub const CONNECTIONS_MAX: usize = 512;

/// Messages of a turn, as many as ovs-vswitchd takes from one connection.
const TURN_MESSAGES_MAX: u32 = 50;
/// How long a turn may take if messages are costly.
const TURN_TIME_MAX: Duration = Duration::from_millis(5);

/// One connection's turn at the control thread.
pub struct Turn {
    messages: u32,
    since: Instant,
}

impl Turn {
    /// A turn that begins.
    pub fn begin() -> Self {
        Turn { messages: 0, since: Instant::now() }
    }

    /// Counts a message; true if others have their turn now.
    pub fn is_over(&mut self) -> bool {
        self.messages += 1;
        self.messages >= TURN_MESSAGES_MAX || self.since.elapsed() > TURN_TIME_MAX
    }
}

/// What went wrong on connections, since the start of the daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages that could not be read.
    pub malformed: u64,
    /// Messages that could be read, and were refused.
    pub refused: u64,
    /// Packet-ins that were not sent because the peer did not read.
    pub packet_ins_dropped: u64,
    /// Connections that a listener had no place for.
    pub not_served: u64,
    /// Connections that ended because too much was kept for them.
    pub overdrawn: u64,
}

impl Counts {
    /// Adds those of a connection that ended, and says so if there are any.
    pub fn add(&mut self, name: &str, ended: &Counts) {
        let Counts { malformed, refused, packet_ins_dropped, .. } = *ended;
        if ended != &Counts::default() {
            vlog::info!(
                "connmgr",
                "{name}: {malformed} malformed messages, {refused} refused ones, {packet_ins_dropped} packet-ins not sent"
            );
        }
        self.malformed += malformed;
        self.refused += refused;
        self.packet_ins_dropped += packet_ins_dropped;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_a_number_of_messages() {
        let mut turn = Turn::begin();
        // Fewer on a machine so busy that the time is over first; never more.
        let messages = (1..).find(|_| turn.is_over());
        assert!(messages.is_some_and(|n| n <= TURN_MESSAGES_MAX), "{messages:?}");
    }
}
