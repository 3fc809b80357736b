//! The twin: a list of rules by priority.

use flow::{Key, Mask};

use crate::rule::Rule;

/// A linear scan that defines what a [`crate::Classifier`] must find.
#[derive(Default)]
pub struct Linear<T> {
    /// Rules by falling priority; of equal priority the newest is first.
    rules: Vec<std::sync::Arc<Rule<T>>>,
}

impl<T> Linear<T> {
    /// An empty list.
    pub fn new() -> Self {
        Linear { rules: Vec::new() }
    }

    /// Adds a rule.
    pub fn insert(&mut self, rule: std::sync::Arc<Rule<T>>) {
        let at = self.rules.partition_point(|r| r.priority() > rule.priority());
        self.rules.insert(at, rule);
    }

    /// Removes a rule; false if it is not in the list.
    pub fn remove(&mut self, rule: &std::sync::Arc<Rule<T>>) -> bool {
        let before = self.rules.len();
        self.rules.retain(|r| !std::sync::Arc::ptr_eq(r, rule));
        self.rules.len() < before
    }

    /// The rules, by falling priority.
    pub fn rules(&self) -> &[std::sync::Arc<Rule<T>>] {
        &self.rules
    }

    /// The first visible match. Marks every bit of every rule that it examines.
    pub fn lookup(&self, key: &Key, version: u64, wildcards: &mut Mask) -> Option<&Rule<T>> {
        let mut visible = self.rules.iter().filter(|r| r.visible(version));
        visible
            .find(|r| {
                wildcards.or(&r.mask());
                r.matches(key)
            })
            .map(|r| &**r)
    }
}
