//! A stand-in for crate `classifier` until it lands: one published list per table, searched in
//! order of priority. Same calls, no speed.

use flow::{Key, Mask};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use sync::{Domain, Published};

pub const NEVER: u64 = u64::MAX;

pub struct Rule<T> {
    key: Key,
    mask: Mask,
    priority: u16,
    add: AtomicU64,
    remove: AtomicU64,
    value: T,
}

impl<T> Rule<T> {
    pub fn with_version(key: &Key, mask: &Mask, priority: u16, add: u64, value: T) -> Self {
        Rule {
            key: key.masked(mask),
            mask: *mask,
            priority,
            add: add.into(),
            remove: NEVER.into(),
            value,
        }
    }
    pub fn value(&self) -> &T {
        &self.value
    }
    pub fn priority(&self) -> u16 {
        self.priority
    }
    pub fn key(&self) -> Key {
        self.key
    }
    pub fn mask(&self) -> Mask {
        self.mask
    }
    pub fn set_remove_version(&self, v: u64) {
        self.remove.store(v, Ordering::Release);
    }
    pub fn visible(&self, v: u64) -> bool {
        self.add.load(Ordering::Acquire) <= v && v < self.remove.load(Ordering::Acquire)
    }
    pub fn within(&self, key: &Key, mask: &Mask) -> bool {
        mask.subset_of(&self.mask) && self.key.matches(key, mask)
    }
    pub fn overlaps(&self, key: &Key, mask: &Mask) -> bool {
        self.key.overlaps(&self.mask, key, mask)
    }
}

pub struct Classifier<T: Send + Sync + 'static> {
    rules: Published<Vec<Arc<Rule<T>>>>,
}

impl<T: Send + Sync + 'static> Classifier<T> {
    pub fn new(domain: Domain) -> Self {
        Classifier { rules: Published::new(domain, Vec::new()) }
    }
    fn now(&self) -> &Vec<Arc<Rule<T>>> {
        // SAFETY: callers are the writer or online readers that stay inside a quiescent period.
        unsafe { self.rules.read() }
    }
    pub fn insert(&self, rule: Arc<Rule<T>>) {
        let mut list = self.now().clone();
        let at = list.partition_point(|r| r.priority >= rule.priority);
        list.insert(at, rule);
        self.rules.publish(list);
    }
    pub fn remove(&self, rule: &Arc<Rule<T>>) {
        let mut list = self.now().clone();
        list.retain(|r| !Arc::ptr_eq(r, rule));
        self.rules.publish(list);
    }
    pub fn find_exact(&self, key: &Key, mask: &Mask, prio: u16, v: u64) -> Option<Arc<Rule<T>>> {
        self.now()
            .iter()
            .find(|r| {
                r.priority == prio && r.visible(v) && r.mask == *mask && r.key == key.masked(mask)
            })
            .cloned()
    }
    pub fn all(&self) -> Vec<Arc<Rule<T>>> {
        self.now().clone()
    }
    pub fn lookup(&self, key: &Key, v: u64, wc: &mut Mask) -> Option<&Rule<T>> {
        for r in self.now().iter().filter(|r| r.visible(v)) {
            wc.or(&r.mask);
            if key.matches(&r.key, &r.mask) {
                return Some(r);
            }
        }
        None
    }
}
