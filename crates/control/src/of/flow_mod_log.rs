//! The line of the log that says how many flow-mods a connection sent.

use openflow::FlowModCommand;

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
}
