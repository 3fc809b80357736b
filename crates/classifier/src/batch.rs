//! Lookups of several keys together, for callers that do not need the bits that decided: each step
//! prefetches what the next one reads, for all keys.

use flow::{Key, Mask};
use sync::Guard;

use crate::Classifier;
use crate::chain::Handle;
use crate::prefix_trie;
use crate::rule::{Rule, significant};
use crate::search::Search;

/// Keys that are looked up together, at most.
pub const BATCH: usize = 16;

/// Subtables up to which each is searched for all keys, without asking filters and tries first.
const UNFILTERED_SUBTABLES_MAX: usize = 8;

/// What is known so far of the keys of a batch.
pub(crate) struct Batch<'k, 'a, T> {
    pub keys: &'k [&'k Key],
    pub version: u64,
    pub best: [Option<Handle<'a, T>>; BATCH],
    /// Words of keys that were read, a bit each.
    pub looked: u64,
}

impl<T> Batch<'_, '_, T> {
    /// The least priority that a rule for key `i` must have.
    #[inline]
    pub fn least(&self, i: usize) -> u32 {
        self.best[i].map_or(0, |b| u32::from(b.priority()) + 1)
    }
}

impl<T: Send + Sync + 'static> Classifier<T> {
    /// Writes the rules that [`Classifier::lookup`] finds for each of these keys, at most
    /// [`BATCH`], to `found`. Returns which words of keys decided, bit i for word i: the words of
    /// rules that were found, and for every rule that does not match one word in which it differs.
    pub fn lookup_all<'a>(
        &'a self,
        guard: Guard<'a>,
        keys: &[&Key],
        version: u64,
        found: &mut [Option<&'a Rule<T>>],
    ) -> u64 {
        let list = self.list.read(guard);
        let mut batch = Batch { keys, version, best: [None; BATCH], looked: 0 };
        if list.len() > UNFILTERED_SUBTABLES_MAX {
            self.one_by_one(guard, &mut batch);
        } else {
            for entry in list.iter() {
                let max = u32::from(entry.max_priority);
                if (0..keys.len()).all(|i| batch.least(i) > max) {
                    break;
                }
                match &entry.subtable {
                    Some(subtable) => subtable.lookup_all(guard, &mut batch),
                    None => self.in_prefix_trie(guard, &mut batch),
                }
            }
        }
        for (found, best) in found.iter_mut().zip(&batch.best[..keys.len()]) {
            *found = best.map(Handle::get);
        }
        batch.looked
    }

    #[inline(never)]
    fn one_by_one<'a>(&'a self, guard: Guard<'a>, batch: &mut Batch<'_, 'a, T>) {
        let mut marks = Mask::ZERO;
        self.prepare(guard, batch.keys);
        for (best, key) in batch.best.iter_mut().zip(batch.keys) {
            *best = self.best(guard, key, batch.version, &mut marks, &mut 0);
        }
        batch.looked = significant(&marks);
    }

    #[inline(never)]
    fn in_prefix_trie<'a>(&'a self, guard: Guard<'a>, batch: &mut Batch<'_, 'a, T>) {
        let Batch { keys, version, best, looked } = batch;
        let mut search = Search { keys, version: *version, best };
        self.prefix_trie.lookup_all::<BATCH>(guard, &mut search);
        *looked |= prefix_trie::LOOKED_WORDS;
    }
}
