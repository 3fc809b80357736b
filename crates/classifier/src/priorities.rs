//! The number of rules of each priority, as the writer keeps it.

use std::collections::BTreeMap;

/// Number of rules by priority.
#[derive(Default)]
pub(crate) struct Priorities(BTreeMap<u16, u32>);

impl Priorities {
    /// The highest priority; None: there is no rule.
    pub fn max(&self) -> Option<u16> {
        self.0.last_key_value().map(|(p, _)| *p)
    }

    /// Counts a rule.
    pub fn add(&mut self, priority: u16) {
        *self.0.entry(priority).or_default() += 1;
    }

    /// Removes a rule from the count.
    pub fn sub(&mut self, priority: u16) {
        if let Some(n) = self.0.get_mut(&priority) {
            *n -= 1;
            if *n == 0 {
                self.0.remove(&priority);
            }
        }
    }

    /// True if there is a rule of this priority.
    pub fn has(&self, priority: u16) -> bool {
        self.0.contains_key(&priority)
    }
}
