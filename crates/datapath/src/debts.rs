//! What ports owe a worker for time beyond their share, nanoseconds.

use flow::PortNo;

/// Most ports that are remembered. When there are more, the port that owes least is forgotten.
const PORTS_COUNT_MAX: usize = 64;

/// Part of the time of other ports with which debts are paid: 1 / 2^4, a sixteenth.
pub(crate) const SHARE_SHIFT: u32 = 4;

/// What one port owes.
struct Debt {
    port: PortNo,
    ns: u64,
    /// When the debt became larger.
    charged_ms: u64,
}

/// The debts of a worker's ports.
#[derive(Default)]
pub(crate) struct Debts {
    ports: Vec<Debt>,
    /// Debts of this iteration.
    made: u64,
}

impl Debts {
    /// True if no port is remembered.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }

    /// What a port owes; None: it is not remembered.
    pub fn of(&self, port: PortNo) -> Option<u64> {
        self.ports.iter().find(|d| d.port == port).map(|d| d.ns)
    }

    /// All debts that were made in this iteration.
    pub fn made(&self) -> u64 {
        self.made
    }

    /// Adds to a port's debt.
    #[cold]
    pub fn charge(&mut self, port: PortNo, ns: u64, now_ms: u64) {
        self.made += ns;
        let found = self.ports.iter().position(|d| d.port == port);
        let i = found.unwrap_or_else(|| self.remember(port));
        let debt = &mut self.ports[i];
        (debt.ns, debt.charged_ms) = (debt.ns + ns, now_ms);
    }

    fn remember(&mut self, port: PortNo) -> usize {
        if self.ports.len() >= PORTS_COUNT_MAX {
            self.ports.sort_unstable_by_key(|d| std::cmp::Reverse(d.ns));
            self.ports.pop();
        }
        self.ports.push(Debt { port, ns: 0, charged_ms: 0 });
        self.ports.len() - 1
    }

    /// Pays the debts of all ports, the same of each.
    pub fn pay(&mut self, ns: u64) {
        let owing = self.ports.iter().filter(|d| d.ns > 0).count() as u64;
        let each = ns.checked_div(owing).unwrap_or(0);
        self.ports.iter_mut().for_each(|d| d.ns = d.ns.saturating_sub(each));
    }

    /// Ends an iteration, and forgets ports that owe nothing and were last charged `ms` ago;
    /// returns what debts it made.
    pub fn end_iteration(&mut self, now_ms: u64, ms: u64) -> u64 {
        self.ports.retain(|d| d.ns > 0 || now_ms < d.charged_ms + ms);
        std::mem::take(&mut self.made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn very_many_ports_are_not_remembered() {
        let mut debts = Debts::default();
        (0..200).for_each(|port| debts.charge(port, 1 + u64::from(port), 5));
        assert!(debts.ports.len() <= PORTS_COUNT_MAX && debts.of(199) == Some(200));
    }

    #[test]
    fn all_pay_the_same_and_are_forgotten_when_they_owe_nothing() {
        let mut debts = Debts::default();
        debts.charge(1, 10, 5);
        debts.charge(2, 30, 5);
        debts.pay(40);
        assert_eq!((debts.of(1), debts.of(2)), (Some(0), Some(10)));
        assert_eq!((debts.end_iteration(14, 10), debts.end_iteration(15, 10)), (40, 0));
        assert_eq!((debts.of(1), debts.of(2)), (None, Some(10)));
    }
}
