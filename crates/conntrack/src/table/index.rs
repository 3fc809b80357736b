//! The index: finds the connections that may have a tuple, by its hash. It is a hash table with
//! linear hashing (Litwin, 1980), whose buckets are one cache line each.
//!
//! Readers take no lock and write nothing. A thread that inserts or removes locks one bucket for
//! some tens of nanoseconds; a worker that finds a bucket locked tries a bounded number of times.
//! One thread, the keeper, adds one bucket at a time to the index. An entry that moves to the new
//! bucket is in both buckets until the new size is published, and leaves the old one after that. A
//! reader that finds nothing looks again if the size has changed.

use super::atomics::{
    AtomicU32, AtomicU64, CacheLine, CacheLines, Ordering::*, prefetch, upper_halves, wait,
};
use std::ops::Range;
use std::sync::OnceLock;

/// Entries of a bucket; the first word of its line is the head.
const BUCKET_ENTRIES: usize = 7;
/// Number of further buckets that are allocated at once. A full bucket goes on in a further bucket.
const SPARE_PIECE: usize = 1 << 10;
/// Pieces of further buckets, at most.
const SPARE_PIECES: usize = 1 << 10;
/// Lines of a bucket with its further ones, at most: a reader looks at 56 entries.
const CHAIN_LINES_MAX: usize = 8;
/// Attempts to lock a bucket: about a microsecond.
const LOCK_ATTEMPTS_MAX: usize = 256;
/// Attempts of a reader while the index grows.
const LOOKS_COUNT_MAX: usize = 8;

/// Bit of a bucket's head: a thread has locked the bucket. The upper half of the head is 1 + the
/// number of the further bucket that follows, 0: none.
const LOCKED: u64 = 1;

/// The index. Entries are numbers below 2^32 - 1.
pub struct Index {
    /// The buckets, a line each. How many of them have memory is a power of two.
    buckets: CacheLines,
    /// The further buckets, piece by piece.
    spare: Box<[OnceLock<CacheLines>]>,
    /// Further buckets in use; `spare_ready`: further buckets that have memory.
    spare_used: AtomicU32,
    spare_ready: AtomicU32,
    /// Buckets in use; further ones are not counted.
    size: AtomicU32,
}

/// How an entry was put into the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// In a place that was free.
    Beside,
    /// In the place of another entry.
    Instead,
}

/// Number of buckets of an index, and the mask of hashes that goes with it.
#[derive(Clone, Copy)]
pub struct Buckets {
    size: u32,
    wrap: u32,
}

impl Buckets {
    #[inline]
    fn new(size: u32) -> Buckets {
        Buckets { size, wrap: size.next_power_of_two() - 1 }
    }

    /// The bucket of a hash.
    #[inline]
    fn place(self, hash: u32) -> u32 {
        let bucket = hash & self.wrap;
        // No branch: for half of the sizes it could not be predicted.
        bucket & self.wrap >> u32::from(bucket >= self.size)
    }
}

/// The bucket of a hash in an index of `size` buckets.
#[inline]
fn place(hash: u32, size: u32) -> u32 {
    Buckets::new(size).place(hash)
}

/// The word of an entry in a bucket.
fn word(hash: u32, entry: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(entry + 1)
}

/// A locked bucket, which the holder may change; dropping this unlocks it.
pub struct Locked<'a> {
    index: &'a Index,
    bucket: u32,
}

impl Index {
    /// Makes an empty index of `size` buckets, which may grow to `most`, both powers of two; to
    /// fewer where there is less address space.
    ///
    /// # Panics
    /// When there is no memory for the first buckets.
    pub fn new(size: u32, most: u32) -> Self {
        let halves = std::iter::successors(Some(most), |n| Some(n / 2).filter(|n| *n >= size));
        let reserved = halves.map(|n| CacheLines::reserved(n as usize)).find_map(|lines| lines);
        let index = Index {
            buckets: reserved.expect("address space for the index of connections"),
            spare: (0..SPARE_PIECES).map(|_| OnceLock::new()).collect(),
            spare_used: AtomicU32::new(0),
            spare_ready: AtomicU32::new(0),
            size: AtomicU32::new(size),
        };
        assert!(index.buckets.provide(size as usize), "memory for the index of connections");
        index
    }

    /// Buckets in use.
    pub fn size(&self) -> u32 {
        self.size.load(Relaxed)
    }

    #[inline]
    fn bucket(&self, bucket: u32) -> &CacheLine {
        &self.buckets[bucket as usize]
    }

    fn spare(&self, number: u32) -> Option<&CacheLine> {
        let n = number as usize;
        self.spare.get(n / SPARE_PIECE)?.get()?.get(n % SPARE_PIECE)
    }

    /// Prefetches the first line of a hash's bucket; returns the bucket's present number.
    #[inline]
    pub fn prefetch(&self, hash: u32) -> u32 {
        self.prefetch_in(self.present(), hash)
    }

    /// The buckets that there are now.
    #[inline]
    pub fn present(&self) -> Buckets {
        Buckets::new(self.size.load(Acquire))
    }

    /// Does what [`Index::prefetch`] does, by the buckets that there were before.
    #[inline]
    pub fn prefetch_in(&self, buckets: Buckets, hash: u32) -> u32 {
        let bucket = buckets.place(hash);
        prefetch(self.bucket(bucket));
        bucket
    }

    /// Calls `says` for each entry under this hash in the first line of its bucket.
    #[inline]
    pub fn first_line(&self, hash: u32, mut says: impl FnMut(u32)) {
        let line = self.bucket(place(hash, self.size.load(Acquire)));
        for word in &line.0[1..] {
            let word = word.load(Relaxed);
            if (word >> 32) as u32 == hash && word as u32 != 0 {
                says(word as u32 - 1);
            }
        }
    }

    /// 1 + the first entry under this hash in the bucket that [`Index::prefetch`] returned; whether
    /// it has the tuple is for the caller to compare. 0: there is none, or the index grew
    /// meanwhile.
    #[inline]
    pub fn candidate(&self, bucket: u32, hash: u32) -> u32 {
        let mut line = self.bucket(bucket);
        for _ in 0..CHAIN_LINES_MAX {
            // Without a branch for each entry, which would be predicted wrongly.
            let fitting = upper_halves(line, hash) & !1;
            if fitting != 0 {
                return line.0[fitting.trailing_zeros() as usize & BUCKET_ENTRIES].load(Acquire)
                    as u32;
            }
            let Some(next) = self.next(line) else { break };
            line = next;
        }
        0
    }

    /// The line that follows in a bucket.
    #[inline]
    fn next(&self, line: &CacheLine) -> Option<&CacheLine> {
        self.spare((line.0[0].load(Acquire) >> 32).checked_sub(1)? as u32)
    }

    /// The lines of a bucket, one after the other.
    #[inline]
    fn chain(&self, bucket: u32) -> impl Iterator<Item = &CacheLine> {
        std::iter::successors(Some(self.bucket(bucket)), |line| self.next(line))
            .take(CHAIN_LINES_MAX)
    }

    /// The first entry under this hash that `is` accepts.
    #[inline]
    pub fn find(&self, hash: u32, mut is: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut size = self.size.load(Acquire);
        for _ in 0..LOOKS_COUNT_MAX {
            let bucket = place(hash, size);
            if let Some(found) = self.find_in(bucket, hash, &mut is) {
                return Some(found);
            }
            size = self.size.load(Acquire);
            if place(hash, size) == bucket {
                break;
            }
        }
        None
    }

    #[inline]
    fn find_in(&self, bucket: u32, hash: u32, is: &mut impl FnMut(u32) -> bool) -> Option<u32> {
        for line in self.chain(bucket) {
            for word in &line.0[1..] {
                let word = word.load(Acquire);
                if (word >> 32) as u32 == hash && word as u32 != 0 && is(word as u32 - 1) {
                    return Some(word as u32 - 1);
                }
            }
        }
        None
    }

    /// Locks the bucket of a hash; None: other threads held it for too long.
    pub fn lock(&self, hash: u32) -> Option<Locked<'_>> {
        self.lock_within(hash, LOCK_ATTEMPTS_MAX)
    }

    fn lock_within(&self, hash: u32, attempts: usize) -> Option<Locked<'_>> {
        for attempt in 0..attempts {
            let bucket = place(hash, self.size.load(Acquire));
            if self.lock_bucket(bucket) {
                let locked = Locked { index: self, bucket };
                if place(hash, self.size.load(Acquire)) == bucket {
                    return Some(locked);
                }
            }
            wait(attempt);
        }
        None
    }

    /// Locks the buckets of two hashes, which may be the same bucket; None: other threads held one
    /// of them for too long.
    pub fn lock_both(&self, a: u32, b: u32) -> Option<(Locked<'_>, Option<Locked<'_>>)> {
        let first = self.lock(a)?;
        if place(b, self.size.load(Acquire)) == first.bucket {
            return Some((first, None));
        }
        // The thread that holds the second bucket may wait for the first: this one gives up early,
        // so that the other goes on.
        let second = self.lock_within(b, LOCK_ATTEMPTS_MAX / 8)?;
        Some((first, Some(second)))
    }

    fn lock_bucket(&self, bucket: u32) -> bool {
        let head = &self.bucket(bucket).0[0];
        let now = head.load(Relaxed);
        now & LOCKED == 0 && head.compare_exchange(now, now | LOCKED, Acquire, Relaxed).is_ok()
    }

    /// Removes an entry; false: the index does not have it. Called by the keeper, as it waits for
    /// the lock.
    pub fn remove(&self, hash: u32, entry: u32) -> bool {
        let locked = loop {
            if let Some(locked) = self.lock(hash) {
                break locked;
            }
        };
        let word = word(hash, entry);
        for line in self.chain(locked.bucket) {
            if let Some(s) = line.0[1..].iter().find(|s| s.load(Relaxed) == word) {
                s.store(0, Release);
                return true;
            }
        }
        false
    }

    /// Adds a bucket; false: the index cannot grow. Called by the keeper, as it waits for the lock.
    pub fn grow(&self) -> bool {
        let size = self.size.load(Relaxed);
        if size as usize >= self.buckets.len() {
            return false;
        }
        if size.is_power_of_two() && !self.buckets.provide(2 * size as usize) {
            return false;
        }
        let old = place(size, size);
        let mut attempt = 0;
        while !self.lock_bucket(old) {
            attempt += 1;
            wait(attempt);
        }
        let from = Locked { index: self, bucket: old };
        // No other thread can find the new bucket yet; once it is published, others may want to
        // lock it.
        self.lock_bucket(size);
        let to = Locked { index: self, bucket: size };
        let moves = |word: u64| word as u32 != 0 && place((word >> 32) as u32, size + 1) == size;
        for word in self.chain(old).flat_map(|l| &l.0[1..]).map(|s| s.load(Relaxed)) {
            if moves(word) && !to.put_word(word) {
                // No further bucket is left. Nothing was published, so nothing moves.
                self.chain(size).flat_map(|l| &l.0[1..]).for_each(|s| s.store(0, Relaxed));
                return false;
            }
        }
        self.size.store(size + 1, Release);
        for s in self.chain(old).flat_map(|l| &l.0[1..]) {
            if moves(s.load(Relaxed)) {
                s.store(0, Release);
            }
        }
        drop((from, to));
        true
    }

    /// Allocates further buckets, if few are left. Called by the keeper.
    pub fn provide(&self) {
        let ready = self.spare_ready.load(Relaxed);
        let piece = ready as usize / SPARE_PIECE;
        if ready - self.spare_used.load(Relaxed).min(ready) < SPARE_PIECE as u32 / 2
            && piece < SPARE_PIECES
            && let Some(lines) = CacheLines::dense(SPARE_PIECE)
        {
            let _ = self.spare[piece].set(lines);
            self.spare_ready.store(ready + SPARE_PIECE as u32, Release);
        }
    }

    /// Number of entries in each of these buckets, for `ct-bkts`.
    pub fn loads(&self, which: Range<u32>) -> impl Iterator<Item = usize> {
        let full = |l: &CacheLine| l.0[1..].iter().filter(|s| s.load(Relaxed) as u32 != 0).count();
        which.map(move |bucket| self.chain(bucket).map(full).sum())
    }
}

impl Locked<'_> {
    /// The first entry under this hash that `is` accepts.
    pub fn find(&self, hash: u32, mut is: impl FnMut(u32) -> bool) -> Option<u32> {
        self.index.find_in(self.bucket, hash, &mut is)
    }

    /// Puts an entry into the bucket, in the place of another one under the same hash if that is
    /// there; None: there is no room.
    pub fn put(&self, hash: u32, entry: u32, instead_of: Option<u32>) -> Option<Put> {
        let is = |s: &&AtomicU64, old| s.load(Relaxed) == word(hash, old);
        let mut words = self.index.chain(self.bucket).flat_map(|line| &line.0[1..]);
        if let Some(s) = instead_of.and_then(|old| words.find(|s| is(s, old))) {
            s.store(word(hash, entry), Release);
            return Some(Put::Instead);
        }
        self.put_word(word(hash, entry)).then_some(Put::Beside)
    }

    /// Puts a word into a free place of the bucket, with a further bucket if need be; false: there
    /// is no room.
    fn put_word(&self, word: u64) -> bool {
        let (mut last, mut count) = (None, 0);
        for line in self.index.chain(self.bucket) {
            if let Some(free) = line.0[1..].iter().find(|s| s.load(Relaxed) as u32 == 0) {
                free.store(word, Release);
                return true;
            }
            (last, count) = (Some(line), count + 1);
        }
        match last {
            Some(line) if count < CHAIN_LINES_MAX => self.extend(line, word),
            _ => false,
        }
    }

    /// Appends a further bucket to a full one, with this word in it; false: there is none.
    fn extend(&self, behind: &CacheLine, word: u64) -> bool {
        let index = self.index;
        let take = |used: u32| (used < index.spare_ready.load(Acquire)).then_some(used + 1);
        let Ok(number) = index.spare_used.fetch_update(Relaxed, Relaxed, take) else {
            return false;
        };
        let Some(line) = index.spare(number) else { return false };
        line.0[1].store(word, Relaxed);
        // Only the holder of the lock changes the upper half; the lock's bit stays as it is.
        behind.0[0].fetch_or((u64::from(number) + 1) << 32, Release);
        true
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.index.bucket(self.bucket).0[0].fetch_and(!LOCKED, Release);
    }
}

const _: () = assert!(BUCKET_ENTRIES + 1 == 8);
