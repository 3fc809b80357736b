//! What one thread does for the table: ends what has expired, reuses entries once no worker can
//! hold them, lets memory and index grow ahead of need. All in bounded pieces.

use super::entry::{CHUNK, bit};
use super::{READY_COUNT_MAX, Table};
use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use sync::{Domain, Grace};

/// How often the wheel turns on, in milliseconds.
const TICK_MILLIS: u64 = 250;
/// Slots of the wheel: 64 s. A connection that lives longer is looked at once in a turn, so one
/// that was ended otherwise is found within one, too.
const SLOTS: usize = 256;
/// Ticks after which an entry that a worker has just got is looked at.
const FIRST_TICKS: u64 = 4;
/// Connections' tuples per bucket up to which the index does not grow.
const LOAD_MAX: u64 = 3;
/// The end of a list.
const END: u32 = u32::MAX;
/// Entries that are looked at together, so that their cache lines are waited for at once. With a
/// thread that opens and ends 1M connections all the time (docs/perf/conntrack.md) the keeper's
/// thread takes 0.16 of a core, and 0.43 where each is looked at alone.
const LOOKED_ENTRIES_MAX: usize = 16;

/// The table's keeper.
pub struct Keeper {
    table: Arc<Table>,
    domain: Domain,
    /// Free entries.
    free: Vec<u32>,
    /// Entries that workers may still look at, until the grace period is over.
    leaving: Vec<(Grace, Vec<u32>)>,
    /// Entries by the tick at which they are looked at: first of each list, and who follows.
    wheel: [u32; SLOTS],
    follows: Vec<u32>,
    /// The tick that is worked on, and what is left of its list.
    tick: u64,
    rest: u32,
    /// Slots to look at because of a flush.
    rush: usize,
    flushes: u64,
    /// The second in which announced connections were last looked at.
    tidied: u64,
    /// How many of the taken entries were put into the wheel.
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

    /// Does what is due, in about `steps` steps of some hundred nanoseconds; false: there is more
    /// to do.
    pub fn tend(&mut self, now: u64, steps: usize) -> bool {
        self.take_back();
        self.provide();
        let second = now / 1000;
        if std::mem::replace(&mut self.tidied, second) != second {
            let table = &self.table;
            table.expectations.tidy(|name| table.lives(name));
        }
        let left = self.grow(steps);
        self.turn(now, left)
    }

    /// Looks at all entries at the next call, due or not.
    #[cfg(test)]
    pub fn look_at_all(&mut self) {
        self.rush = SLOTS;
    }

    /// Frees what no worker can hold any more.
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
        // These are in the wheel still, so they are looked at like those in stock: as unused ones.
        let stock = std::mem::take(&mut workers.stock);
        drop(workers);
        self.idle(stock);
    }

    /// Entries that a worker took and gave back unused stay in the wheel: they leave it like dead
    /// ones.
    fn idle(&mut self, entries: Vec<u32>) {
        for n in entries {
            let entry = self.table.entries.get(n);
            entry.set_control(entry.control() | bit::DEAD);
        }
    }

    /// Makes sure that free entries are ready.
    fn provide(&mut self) {
        self.note_taken();
        self.table.index.provide();
        let mut room = self.table.issue.room(self.noted);
        while room > 0 {
            if self.free.is_empty() && !self.add_chunk() {
                break;
            }
            let Some(n) = self.free.pop() else { break };
            self.table.issue.put(n);
            room -= 1;
        }
    }

    /// Puts entries that workers took into the wheel.
    fn note_taken(&mut self) {
        let taken = self.table.issue.taken();
        while self.noted < taken {
            let n = self.table.issue.number(self.noted);
            self.arm(n, FIRST_TICKS);
            self.noted += 1;
            self.armed += 1;
        }
    }

    fn add_chunk(&mut self) -> bool {
        let chunks = self.table.chunks.load(Relaxed);
        // Room for all that may be, those that workers and the ring hold, and as many again on
        // their way out after a flush.
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

    /// Lets the index grow as far as its load asks for; the steps that are left.
    fn grow(&mut self, mut steps: usize) -> usize {
        // Those that are ready are all but the ring's room, which memory may not suffice to fill.
        let ready = READY_COUNT_MAX - self.table.issue.room(self.noted);
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

    /// Looks at an entry again after so many ticks.
    fn arm(&mut self, n: u32, ticks: u64) {
        let slot = ((self.tick + ticks.clamp(1, SLOTS as u64 - 1)) % SLOTS as u64) as usize;
        self.follows[n as usize] = std::mem::replace(&mut self.wheel[slot], n);
    }

    /// Looks at what is due.
    fn turn(&mut self, now: u64, mut steps: usize) -> bool {
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

    /// True if so many connections in the wheel have ended that all of them are looked at before
    /// their time. Without it, connections that use the same ports again and again would hold all
    /// memory for a turn of the wheel. At most three entries are looked at for one that is freed.
    fn is_crowded(&self) -> bool {
        let (live, most) = (self.table.len() as usize, self.table.limits.total() as usize);
        self.armed > live + live / 2 + most / 8 + READY_COUNT_MAX
    }

    /// The next list to work on; false: nothing is due.
    fn next_list(&mut self, now: u64) -> bool {
        let slot = if self.rush > 0 {
            // Ahead of time: what is alive gets another place.
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

    /// Takes up to `steps` entries off the list that is worked on, and asks for their lines.
    fn take_due(&mut self, steps: usize, due: &mut Vec<u32>) {
        while self.rest != END && due.len() < steps.min(LOOKED_ENTRIES_MAX) {
            self.table.entries.prefetch(self.rest, false);
            due.push(self.rest);
            self.rest = self.follows[self.rest as usize];
        }
    }

    /// Looks at the entries of `due`; those that have ended leave the index and go to `ended`.
    fn look(&mut self, due: &mut Vec<u32>, now: u64, ended: &mut Vec<u32>) {
        let first = ended.len();
        let mut hashes = [[0; 2]; LOOKED_ENTRIES_MAX];
        for n in due.drain(..) {
            match self.end_if_due(n, now) {
                Err(ticks) => self.arm(n, ticks),
                Ok(of_tuples) => {
                    for hash in of_tuples {
                        self.table.index.prefetch(hash);
                    }
                    hashes[ended.len() - first] = of_tuples;
                    ended.push(n);
                }
            }
        }
        for (n, [a, b]) in ended[first..].iter().zip(hashes) {
            self.table.index.remove(a, *n);
            if a != b && self.table.index.remove(b, *n) {
                self.table.twice.fetch_sub(1, Relaxed);
            }
        }
        self.armed -= ended.len() - first;
    }

    /// The hashes of both tuples of an entry that has ended by now; else in how many ticks it is
    /// looked at again.
    fn end_if_due(&self, n: u32, now: u64) -> Result<[u32; 2], u64> {
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
        let conn = entry.conn(control, 0);
        Ok([conn.orig, conn.reply].map(|t| table.secret.of(&t)))
    }
}
