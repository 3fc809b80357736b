//! The maintenance of the table, by one thread (OVS: `ct_clean`): ends expired connections, reuses
//! their entries once no worker can hold them, and lets memory and index grow ahead of need. All of
//! it goes in bounded pieces.

use super::entry::{CHUNK, bit};
use super::{READY_COUNT_MAX, Table};
use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use sync::{Domain, Grace};

/// Length of a tick of the timer wheel, milliseconds.
const TICK_MILLIS: u64 = 250;
/// Slots of the timer wheel, whose turn takes 64 s. An entry is examined once per turn at least, so
/// a connection that was ended before its timeout is found within a turn.
const SLOTS: usize = 256;
/// Ticks after which an entry that a worker took is first examined.
const FIRST_TICKS: u64 = 4;
/// Tuples per bucket, on average, up to which the index does not grow.
const LOAD_MAX: u64 = 3;
/// The end of a list.
const END: u32 = u32::MAX;
/// Entries that are examined together, so that their cache misses overlap. With a thread that opens
/// and ends 1M connections all the time (docs/perf/conntrack.md) the keeper's thread takes 0.16 of
/// a core, and 0.43 where each is examined alone.
const LOOKED_ENTRIES_MAX: usize = 16;

/// The table's keeper.
pub struct Keeper {
    table: Arc<Table>,
    domain: Domain,
    /// Free entries.
    free: Vec<u32>,
    /// Entries that workers may still hold, each list with the grace period after which none does.
    leaving: Vec<(Grace, Vec<u32>)>,
    /// The timer wheel: the first entry of the list of each slot.
    wheel: [u32; SLOTS],
    /// The entry behind each entry in its list.
    follows: Vec<u32>,
    /// The present tick.
    tick: u64,
    /// The first entry that is left of the list that is being examined.
    rest: u32,
    /// Slots that are still to be examined ahead of time: after a flush, or because too many
    /// entries have ended.
    rush: usize,
    /// The table's number of flushes when it was last read.
    flushes: u64,
    /// The second in which expectations of ended connections were last removed.
    tidied: u64,
    /// Number of taken entries that were put into the wheel, ever.
    noted: u64,
    /// Entries in the wheel.
    armed: usize,
}

impl Keeper {
    /// The keeper of a table whose workers are readers of `domain`; makes the table usable. `now`
    /// in milliseconds, as for packets.
    pub fn new(table: &Arc<Table>, domain: Domain, now: u64) -> Self {
        let mut keeper = Keeper {
            table: table.clone(),
            domain,
            free: Vec::new(),
            leaving: Vec::new(),
            wheel: [END; SLOTS],
            follows: Vec::new(),
            tick: now / TICK_MILLIS,
            rest: END,
            rush: 0,
            flushes: 0,
            tidied: 0,
            noted: 0,
            armed: 0,
        };
        keeper.provide();
        keeper
    }

    /// Does what is due, in about `steps` steps of some hundred nanoseconds each; false: there is
    /// more to do.
    pub fn tend(&mut self, now: u64, steps: usize) -> bool {
        self.take_back();
        self.provide();
        let second = now / 1000;
        if std::mem::replace(&mut self.tidied, second) != second {
            let table = &self.table;
            table.expectations.tidy(|name| table.lives(name));
        }
        let left = self.grow(steps);
        self.examine_due(now, left)
    }

    /// Has the next call examine all entries, due or not.
    #[cfg(test)]
    pub fn look_at_all(&mut self) {
        self.rush = SLOTS;
    }

    /// Frees entries whose grace period is over, and takes those that ended workers gave back.
    fn take_back(&mut self) {
        let passed = |(grace, _): &(Grace, Vec<u32>)| self.domain.passed(*grace);
        let n = self.leaving.iter().take_while(|l| passed(l)).count();
        for (_, entries) in self.leaving.drain(..n) {
            for n in entries {
                let entry = self.table.entries.get(n);
                let generation = (entry.control() >> bit::GENERATION_SHIFT).wrapping_add(1);
                entry.set_control(generation << bit::GENERATION_SHIFT);
                self.free.push(n);
            }
        }
        let mut workers = self.table.workers.lock().unwrap();
        // These entries are still in the wheel.
        let stock = std::mem::take(&mut workers.stock);
        drop(workers);
        self.idle(stock);
    }

    /// Marks entries dead that a worker took and gave back unused: they leave the wheel as ended
    /// ones do.
    fn idle(&mut self, entries: Vec<u32>) {
        for n in entries {
            let entry = self.table.entries.get(n);
            entry.set_control(super::dead(entry.control()));
        }
    }

    /// Fills the ring of free entries, as far as there is memory.
    fn provide(&mut self) {
        self.note_taken();
        self.table.index.provide();
        let mut room = self.table.free_entries.room(self.noted);
        while room > 0 {
            if self.free.is_empty() && !self.add_chunk() {
                break;
            }
            let Some(n) = self.free.pop() else { break };
            self.table.free_entries.put(n);
            room -= 1;
        }
    }

    /// Puts entries that workers took into the wheel.
    fn note_taken(&mut self) {
        let taken = self.table.free_entries.taken();
        while self.noted < taken {
            let n = self.table.free_entries.number(self.noted);
            self.arm(n, FIRST_TICKS);
            self.noted += 1;
            self.armed += 1;
        }
    }

    /// Allocates one more chunk of entries; false: there are enough, or there is no memory.
    fn add_chunk(&mut self) -> bool {
        let chunks = self.table.chunks.load(Relaxed);
        // Room for all connections that may be, for as many on their way out after a flush, and for
        // the entries that workers and the ring hold.
        let most = u64::from(self.table.limits.total()) * 2 + 2 * READY_COUNT_MAX as u64;
        let room =
            self.follows.try_reserve(CHUNK as usize).and(self.free.try_reserve(CHUNK as usize));
        if u64::from(chunks) * u64::from(CHUNK) >= most
            || room.is_err()
            || !self.table.entries.provide(chunks)
        {
            return false;
        }
        self.table.chunks.store(chunks + 1, Release);
        self.follows.resize((chunks as usize + 1) * CHUNK as usize, END);
        self.free.extend((chunks * CHUNK..(chunks + 1) * CHUNK).rev());
        true
    }

    /// Lets the index grow as far as its load demands; returns the steps that are left.
    fn grow(&mut self, mut steps: usize) -> usize {
        // The ring is full but for its room; memory may not suffice to fill it.
        let ready = READY_COUNT_MAX - self.table.free_entries.room(self.noted);
        let used = self.follows.len().saturating_sub(self.free.len() + ready);
        let used = used + self.table.twice.load(Relaxed) as usize;
        while steps > 0 && used as u64 > u64::from(self.table.index.size()) * LOAD_MAX {
            if !self.table.index.grow() {
                break;
            }
            steps -= 1;
        }
        steps
    }

    /// Puts an entry into the wheel, to be examined after so many ticks.
    fn arm(&mut self, n: u32, ticks: u64) {
        let slot = ((self.tick + ticks.clamp(1, SLOTS as u64 - 1)) % SLOTS as u64) as usize;
        self.follows[n as usize] = std::mem::replace(&mut self.wheel[slot], n);
    }

    /// Examines the entries that are due; false: some are left.
    fn examine_due(&mut self, now: u64, mut steps: usize) -> bool {
        let flushes = self.table.flushes.load(Acquire);
        if self.flushes != flushes {
            (self.flushes, self.rush) = (flushes, SLOTS);
        }
        if self.rush == 0 && self.is_crowded() {
            self.rush = SLOTS;
        }
        let mut ended = Vec::new();
        let mut due = Vec::with_capacity(LOOKED_ENTRIES_MAX);
        let done = loop {
            self.take_due(steps, &mut due);
            if !due.is_empty() {
                steps -= due.len();
                self.look(&mut due, now, &mut ended);
            } else if steps == 0 {
                break false;
            } else if !self.next_list(now) {
                break true;
            }
        };
        if !ended.is_empty() {
            self.leaving.push((self.domain.grace(), ended));
        }
        done
    }

    /// True if so many entries in the wheel have ended that all are examined ahead of time. Without
    /// this, connections that use the same ports again and again would hold all memory for a turn
    /// of the wheel. At most three entries are examined for one that is freed.
    fn is_crowded(&self) -> bool {
        let (live, most) = (self.table.len() as usize, self.table.limits.total() as usize);
        self.armed > live + live / 2 + most / 8 + READY_COUNT_MAX
    }

    /// Begins the next list of the wheel; false: none is due.
    fn next_list(&mut self, now: u64) -> bool {
        let slot = if self.rush > 0 {
            // Ahead of time: entries that are alive get another place in the wheel.
            self.rush -= 1;
            (self.tick as usize + SLOTS - self.rush) % SLOTS
        } else if self.tick < now / TICK_MILLIS {
            self.tick += 1;
            self.tick as usize % SLOTS
        } else {
            return false;
        };
        self.rest = std::mem::replace(&mut self.wheel[slot], END);
        true
    }

    /// Takes up to `steps` entries off the list under way, and prefetches their lines.
    fn take_due(&mut self, steps: usize, due: &mut Vec<u32>) {
        while self.rest != END && due.len() < steps.min(LOOKED_ENTRIES_MAX) {
            self.table.entries.prefetch(self.rest, false);
            due.push(self.rest);
            self.rest = self.follows[self.rest as usize];
        }
    }

    /// Examines the entries of `due`; those that have ended are removed from the index and appended
    /// to `ended`.
    fn look(&mut self, due: &mut Vec<u32>, now: u64, ended: &mut Vec<u32>) {
        let first = ended.len();
        let mut linked = [None; LOOKED_ENTRIES_MAX];
        for n in due.drain(..) {
            match self.end_if_due(n, now) {
                Err(ticks) => self.arm(n, ticks),
                Ok(hashes) => {
                    for hash in hashes.iter().flatten() {
                        self.table.index.prefetch(*hash);
                    }
                    linked[ended.len() - first] = hashes;
                    ended.push(n);
                }
            }
        }
        for (n, hashes) in ended[first..].iter().zip(linked) {
            let Some([a, b]) = hashes else { continue };
            self.table.index.remove(a, *n);
            if a != b && self.table.index.remove(b, *n) {
                self.table.twice.fetch_sub(1, Relaxed);
            }
        }
        self.armed -= ended.len() - first;
    }

    /// Ends an entry's connection if it has expired. If it has ended, returns the hashes under
    /// which the index has it; None: the index does not have it any more. The error is the number
    /// of ticks after which the entry is examined again.
    fn end_if_due(&self, n: u32, now: u64) -> Result<Option<[u32; 2]>, u64> {
        let table = &*self.table;
        let entry = table.entries.get(n);
        let control = entry.control();
        if control & (bit::LIVE | bit::DEAD) == 0 {
            return Err(FIRST_TICKS);
        }
        if control & bit::LIVE != 0 {
            if table.is_alive(&entry, control, now as u32) {
                let left = u64::from(entry.expiry().wrapping_sub(now as u32));
                return Err(left / TICK_MILLIS + 1);
            }
            if !table.end_entry(&entry, control) {
                return Err(1);
            }
        }
        if control & bit::DEAD != 0 && control & bit::UNLINKED != 0 {
            return Ok(None);
        }
        let conn = entry.conn(control, 0);
        Ok(Some([conn.orig, conn.reply].map(|t| table.secret.hash(&t))))
    }
}
