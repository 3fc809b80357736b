//! Models: the crate's own index and ring of free entries, compiled with loom's atomics, run in
//! every order that the memory model allows.

#[allow(dead_code)]
#[path = "../src/table/free_entries.rs"]
mod free_entries;
#[allow(dead_code)]
#[path = "../src/table/index.rs"]
mod index;

/// What `src/table/atomics.rs` is outside a model.
mod atomics {
    pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};

    pub struct CacheLine(pub [AtomicU64; 8]);

    pub struct CacheLines(Box<[CacheLine]>);

    impl CacheLines {
        pub fn dense(n: usize) -> Option<Self> {
            let line = |_| CacheLine(std::array::from_fn(|_| AtomicU64::new(0)));
            Some(CacheLines((0..n).map(line).collect()))
        }

        pub fn reserved(n: usize) -> Option<Self> {
            Self::dense(n)
        }

        pub fn provide(&self, _: usize) -> bool {
            true
        }
    }

    impl std::ops::Deref for CacheLines {
        type Target = [CacheLine];

        fn deref(&self) -> &[CacheLine] {
            &self.0
        }
    }

    pub fn prefetch(_: &CacheLine) {}

    pub fn upper_halves(line: &CacheLine, half: u32) -> u32 {
        let fits = |i: usize| line.0[i].load(Ordering::Relaxed) >> 32 == u64::from(half);
        (0..8).fold(0, |all, i| all | u32::from(fits(i)) << i)
    }

    pub fn wait(_attempts: usize) {
        loom::thread::yield_now();
    }
}

use free_entries::FreeEntries;
use index::{Index, Put};
use loom::sync::Arc;
use loom::thread;

/// Times that a thread is interrupted where it need not be, in one execution.
const PREEMPTIONS_MAX: usize = 3;
/// Hashes that an index of one bucket has in it, and of which two buckets have one each.
const HASHES: [u32; 2] = [0, 1];

fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS_MAX);
    builder.check(model);
}

/// As a worker that commits a connection: only if no entry has the tuple.
fn insert(index: &Index, hash: u32, entry: u32) -> bool {
    let bucket = index.lock(hash).expect("no thread keeps it");
    bucket.find(hash, |_| true).is_none() && bucket.put(hash, entry, None).is_some()
}

/// Runs both on threads of their own: loom tries no other order for what the first thread does
/// itself while another one never waits.
fn both<A: 'static, B: 'static>(
    a: impl FnOnce() -> A + 'static,
    b: impl FnOnce() -> B + 'static,
) -> (A, B) {
    let (a, b) = (thread::spawn(a), thread::spawn(b));
    (a.join().unwrap(), b.join().unwrap())
}

/// An index of one bucket, for two threads and the model itself.
fn index() -> [Arc<Index>; 3] {
    let index = Arc::new(Index::new(1, 4));
    [index.clone(), index.clone(), index]
}

#[test]
fn of_two_workers_with_one_tuple_one_inserts_it() {
    check(|| {
        let [a, b, index] = index();
        let (first, second) = both(move || insert(&a, 7, 1), move || insert(&b, 7, 2));
        assert!(first != second);
        assert_eq!(index.find(7, |_| true), Some(if first { 1 } else { 2 }));
        assert_eq!(index.loads(0..index.size()).sum::<usize>(), 1);
    });
}

#[test]
fn what_is_there_is_found_while_the_index_grows() {
    check(|| {
        let [a, b, index] = index();
        assert!(HASHES.iter().all(|hash| insert(&index, *hash, *hash)));
        let look = move || HASHES.map(|hash| b.find(hash, |_| true));
        let (grown, found) = both(move || a.grow(), look);
        assert!(grown);
        assert_eq!(found, HASHES.map(Some), "while it moves");
        assert_eq!((index.size(), index.loads(0..index.size()).sum::<usize>()), (2, 2));
    });
}

#[test]
fn what_is_inserted_while_the_index_grows_is_found_afterwards() {
    check(|| {
        let [a, b, index] = index();
        assert!(insert(&index, HASHES[1], 1));
        let twice = move || (insert(&b, HASHES[1], 2), insert(&b, HASHES[1] + 2, 3));
        let (grown, inserted) = both(move || a.grow(), twice);
        assert!(grown);
        assert_eq!(inserted, (false, true), "one is there, wherever it is");
        assert_eq!(index.find(HASHES[1] + 2, |_| true), Some(3));
        assert_eq!(index.loads(0..index.size()).sum::<usize>(), 2);
    });
}

#[test]
fn an_entry_in_the_place_of_an_ended_one_stays_when_that_is_removed() {
    check(|| {
        let [a, b, index] = index();
        assert!(insert(&index, 4, 1));
        let instead = move || b.lock(4).expect("no thread keeps it").put(4, 2, Some(1));
        let (removed, put) = both(move || a.remove(4, 1), instead);
        assert_eq!(put, Some(if removed { Put::Beside } else { Put::Instead }));
        assert_eq!(index.find(4, |_| true), Some(2));
        assert_eq!(index.loads(0..index.size()).sum::<usize>(), 1);
    });
}

#[test]
fn a_removal_takes_nothing_else_along() {
    check(|| {
        let [a, b, index] = index();
        assert!(insert(&index, 4, 1));
        let (removed, inserted) = both(move || a.remove(4, 1), move || insert(&b, 6, 2));
        assert!(removed && inserted);
        assert_eq!((index.find(4, |_| true), index.find(6, |_| true)), (None, Some(2)));
    });
}

#[test]
fn no_two_workers_get_one_free_entry() {
    check(|| {
        let free_entries = Arc::new(FreeEntries::new(2));
        free_entries.put(10);
        free_entries.put(11);
        let (a, b) = (free_entries.clone(), free_entries);
        let take = |free_entries: &FreeEntries| {
            let mut out = [0];
            (free_entries.take(&mut out) == 1).then_some(out[0])
        };
        let (mine, theirs) = both(move || take(&a), move || take(&b));
        assert!(mine.is_some() && theirs.is_some() && mine != theirs, "{mine:?}, {theirs:?}");
    });
}
