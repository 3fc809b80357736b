//! What OpenFlow connections may have the switch keep for them, and how much of the control
//! thread's time they take before others have their turn.

use crate::vlog;
use openflow::FlowModCommand;
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

/// Time from the first flow-mod until the log has their number, ms.
const FLOW_MODS_REPORT_MS: u64 = 10_000;
/// Time between two such messages of one connection, ms.
const FLOW_MODS_PAUSE_MS: u64 = 60_000;

/// Flow-mods of one connection that the log does not know of; times in ms.
#[derive(Clone, Debug, Default)]
pub struct FlowMods {
    /// Adds, deletes, modifications.
    counts: [u64; 3],
    first: u64,
    last: u64,
    report_at: u64,
    /// When the next report may come.
    not_before: u64,
}

impl FlowMods {
    /// Counts one.
    pub fn count(&mut self, command: FlowModCommand, now: u64) {
        let which = match command {
            FlowModCommand::Add => 0,
            FlowModCommand::Delete | FlowModCommand::DeleteStrict => 1,
            FlowModCommand::Modify | FlowModCommand::ModifyStrict => 2,
        };
        let mut one = [0; 3];
        one[which] = 1;
        self.add(one, now);
    }

    /// Counts those of a bundle.
    pub fn count_all(&mut self, bundle: &FlowMods, now: u64) {
        self.add(bundle.counts, now);
    }

    fn add(&mut self, counts: [u64; 3], now: u64) {
        if counts == [0; 3] {
            return;
        }
        if self.counts == [0; 3] {
            self.first = now;
            self.report_at = self.not_before.max(now + FLOW_MODS_REPORT_MS);
            self.not_before = self.report_at + FLOW_MODS_PAUSE_MS;
        }
        self.last = now;
        self.counts.iter_mut().zip(counts).for_each(|(sum, n)| *sum += n);
    }

    /// True if the log is to have them now.
    pub fn is_due(&self, now: u64) -> bool {
        self.counts != [0; 3] && now >= self.report_at
    }

    /// What the log is to say, and begins again; None: there were none.
    pub fn take(&mut self, now: u64) -> Option<String> {
        let counts = std::mem::take(&mut self.counts);
        let sum: u64 = counts.iter().sum();
        let seconds = |since: u64| since.saturating_sub(self.first) / 1000;
        let (ago, interval) = (seconds(now), seconds(self.last));
        let when = match interval {
            _ if interval == ago => format!("in the last {ago} s"),
            0 => format!("{ago} s ago"),
            _ => format!("in the {interval} s starting {ago} s ago"),
        };
        let parts = counts.iter().zip(["adds", "deletes", "modifications"]);
        let parts = parts.filter(|(n, _)| **n > 0).map(|(n, what)| format!("{n} {what}"));
        let parts = parts.collect::<Vec<_>>().join(", ");
        (sum > 0).then(|| format!("{sum} flow_mods {when} ({parts})"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flow_mods_are_reported_after_ten_seconds_and_then_once_a_minute() {
        let mut all = FlowMods::default();
        assert!(!all.is_due(1_000_000) && all.take(1_000_000).is_none());
        all.count(FlowModCommand::Add, 5_000);
        all.count(FlowModCommand::DeleteStrict, 7_000);
        all.count(FlowModCommand::Add, 8_500);
        assert!(!all.is_due(14_999) && all.is_due(15_000));
        let text = "3 flow_mods in the 3 s starting 10 s ago (2 adds, 1 deletes)";
        assert_eq!(all.take(15_000).unwrap(), text);
        assert!(all.take(15_000).is_none());
        let mut bundle = FlowMods::default();
        (0..4).for_each(|_| bundle.count(FlowModCommand::Modify, 1));
        all.count_all(&bundle, 16_000);
        assert!(!all.is_due(74_999) && all.is_due(75_000));
        assert_eq!(
            all.clone().take(16_500).unwrap(),
            "4 flow_mods in the last 0 s (4 modifications)"
        );
        assert_eq!(all.take(75_000).unwrap(), "4 flow_mods 59 s ago (4 modifications)");
    }

    #[test]
    fn a_turn_is_a_number_of_messages() {
        let mut turn = Turn::begin();
        // Fewer on a machine so busy that the time is over first; never more.
        let messages = (1..).find(|_| turn.is_over());
        assert!(messages.is_some_and(|n| n <= TURN_MESSAGES_MAX), "{messages:?}");
    }
}
