//! The table of connections, which all packet threads share. Looking a connection up takes no lock
//! and writes nothing; tracking a packet writes only atomic words of its own connection. One
//! thread, the [`Keeper`], does what takes time: it removes ended connections from the index, makes
//! memory and index grow, and has free entries ready.

mod atomics;
mod entry;
mod fast;
mod fast_packet;
mod free_entries;
mod index;
mod keeper;
mod limits;
mod secret;
#[cfg(test)]
mod tests;

pub use fast::{FastTracked, is_fast};
pub use fast_packet::{FastHeaders, FastPacket};
pub use keeper::Keeper;
pub use limits::{CONNECTIONS_COUNT_DEFAULT, Limits};
pub use secret::Secret;

use crate::alg::{Expectations, Expected, SeqShift};
use crate::conn::Conn;
use crate::count::{COUNTS, Count, Refused};
use crate::ipf::FragmentSettings;
use crate::machine::Peers;
use crate::nat;
use crate::policy::{Class, Policies};
use crate::searches::Searches;
use crate::track::{Arrival, Store};
use crate::tuple::Tuple;
use entry::{Entries, Entry, Packed, bit};
use free_entries::FreeEntries;
use index::{Index, Locked, Put};
use limits::Counts;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex};

/// Buckets of an empty table: 64 KiB.
const BUCKETS_COUNT_MIN: u32 = 1 << 10;
/// Buckets that an index may have, a power of two: 4 GiB of address space. They have room for two
/// tuples of each entry that there can be ([`entry::CHUNK`]).
const BUCKETS_COUNT_MAX: u32 = if cfg!(miri) { 1 << 12 } else { 1 << 26 };
/// Free entries that are ready for workers: what four of them use up in 16 ms at a million
/// connections per second each.
const READY_COUNT_MAX: usize = 1 << 16;
/// Free entries that a worker takes at once.
const STOCK_COUNT_MAX: usize = 32;
/// Attempts of a worker to change a connection while others change it, too; after the last one the
/// packet's change is left out.
const UPDATES_COUNT_MAX: usize = 8;
/// A connection may end this much later than its timeout says, milliseconds, but no more than a
/// 16th of the timeout: the expiry is written only when it moves by more.
const EXPIRY_MILLIS_SLACK: u32 = 1000;

/// The connections of all zones, with their limits and counters.
pub struct Table {
    entries: Entries,
    index: Index,
    free_entries: FreeEntries,
    counts: Counts,
    /// Limits; the control side sets them.
    pub limits: Limits,
    /// Timeout policies; the control side sets them.
    pub policies: Policies,
    /// Expectations of connections that helpers announced.
    expectations: Expectations,
    /// Settings and counters of reassembly.
    pub fragments: FragmentSettings,
    secret: Secret,
    /// Number of chunks of entries that have memory.
    chunks: AtomicU32,
    /// Number of entries that are in the index twice: translated connections, whose two tuples have
    /// different hashes.
    twice: AtomicU32,
    /// Number of flushes, of single zones or of all.
    flushes: AtomicU64,
    workers: Mutex<Workers>,
}

/// The counters of all workers, and what ended workers gave back.
#[derive(Default)]
struct Workers {
    counters: Vec<Arc<Counters>>,
    /// Free entries of workers that ended.
    stock: Vec<u32>,
}

#[derive(Default)]
struct Counters([AtomicU64; COUNTS]);

/// A reference to a connection: the number of its entry, and the entry's generation, which changes
/// when the entry is used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ref {
    entry: u32,
    generation: u16,
}

impl Ref {
    /// The reference as one number, which is not 0.
    fn name(self) -> u64 {
        1 << 63 | u64::from(self.entry) << 16 | u64::from(self.generation)
    }

    /// The reference that [`Ref::name`] made a number of.
    fn named(name: u64) -> Ref {
        Ref { entry: (name >> 16) as u32, generation: name as u16 }
    }
}

/// One packet thread's access to the table, with its own free entries, counters and random numbers.
pub struct Worker {
    table: Arc<Table>,
    stock: Vec<u32>,
    counters: Arc<Counters>,
    random: u64,
    searches: Searches,
}

/// The hash of a tuple whose bucket was prefetched ([`Worker::prefetch_bucket`]).
#[derive(Clone, Copy, Debug, Default)]
pub struct Prefetched(u32);

/// A connection as a dump shows it.
#[derive(Clone, Copy, Debug)]
pub struct Shown {
    /// The number of its entry.
    pub id: u32,
    /// The connection.
    pub conn: Conn,
}

impl Table {
    /// Makes an empty table, which takes connections once it has its [`Keeper`].
    pub fn new() -> Self {
        Table {
            entries: Entries::default(),
            index: Index::new(BUCKETS_COUNT_MIN, BUCKETS_COUNT_MAX),
            free_entries: FreeEntries::new(READY_COUNT_MAX),
            counts: Counts::new(limits::ZONES),
            limits: Limits::default(),
            policies: Policies::default(),
            expectations: Expectations::default(),
            fragments: FragmentSettings::default(),
            secret: Secret::random(),
            chunks: AtomicU32::new(0),
            twice: AtomicU32::new(0),
            flushes: AtomicU64::new(0),
            workers: Mutex::default(),
        }
    }

    /// Number of connections. Expired ones count until the keeper ends them.
    pub fn len(&self) -> u32 {
        self.counts.total()
    }

    /// True if there is no connection.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of connections of a zone.
    pub fn zone_len(&self, zone: u16) -> u32 {
        self.counts.of(zone)
    }

    /// Ends all connections of a zone: no packet that comes later meets one.
    pub fn flush_zone(&self, zone: u16) {
        self.counts.flush(zone);
        self.flushes.fetch_add(1, AcqRel);
    }

    /// Ends all connections.
    pub fn flush(&self) {
        (0..=u16::MAX).filter(|zone| self.counts.of(*zone) > 0).for_each(|zone| {
            self.counts.flush(zone);
        });
        self.flushes.fetch_add(1, AcqRel);
    }

    /// Ends the connection whose original direction has this tuple; if it is not translated, its
    /// reply tuple names it, too. False: there is none.
    pub fn flush_tuple(&self, tuple: &Tuple, now: u64) -> bool {
        self.look_up(tuple, now).is_some_and(|(conn_ref, reply)| {
            let plain = |(_, control): (Entry<'_>, u64)| control & bit::TRANSLATED == 0;
            (!reply || self.entry(conn_ref).is_some_and(plain)) && self.end(conn_ref)
        })
    }

    /// Ends the connection that a dump showed ([`Shown::id`]); false: it has ended already.
    pub fn flush_id(&self, id: u32) -> bool {
        let generation = (self.entries.get(id).control() >> bit::GENERATION_SHIFT) as u16;
        self.end(Ref { entry: id, generation })
    }

    /// Calls `to` for the connections among `count` entries from entry `from` on; returns the entry
    /// to go on from, None: all entries were examined.
    pub fn show(&self, from: u32, count: u32, now: u64, mut to: impl FnMut(Shown)) -> Option<u32> {
        let all = self.chunks.load(Acquire) * entry::CHUNK;
        let end = from.saturating_add(count).min(all);
        for id in from..end {
            let entry = self.entries.get(id);
            let control = entry.control();
            if control & bit::LIVE == 0 || !self.is_alive(&entry, control, now as u32) {
                continue;
            }
            let left = entry.expiry().wrapping_sub(now as u32);
            let conn = entry.conn(control, now + u64::from(left));
            if entry.control() >> bit::GENERATION_SHIFT == control >> bit::GENERATION_SHIFT {
                to(Shown { id, conn });
            }
        }
        (end < all).then_some(end)
    }

    /// The counters of all workers together, in the order of [`Count`].
    pub fn counted(&self) -> [u64; COUNTS] {
        let workers = self.workers.lock().unwrap();
        let sum = |i: usize| workers.counters.iter().map(|c| c.0[i].load(Relaxed)).sum();
        std::array::from_fn(sum)
    }

    /// Number of buckets of the index, which only grows.
    pub fn bucket_count(&self) -> u32 {
        self.index.size()
    }

    /// Number of entries in each of these buckets.
    pub fn buckets(&self, which: Range<u32>) -> impl Iterator<Item = usize> {
        self.index.loads(which)
    }

    /// True if a live entry has not expired, and its zone was not flushed since it was made.
    #[inline]
    fn is_alive(&self, entry: &Entry<'_>, control: u64, now: u32) -> bool {
        let left = entry.expiry().wrapping_sub(now) as i32;
        left > 0 && (control >> bit::EPOCH_SHIFT) as u16 == self.counts.epoch(entry.zone())
    }

    /// The live connection that has this tuple; true: in the reply direction.
    #[inline]
    fn look_up(&self, tuple: &Tuple, now: u64) -> Option<(Ref, bool)> {
        let packed = Packed::new(tuple);
        let mut found = (0, false);
        let entry = self.index.find(self.secret.hash(tuple), |n| {
            match self.has_tuple(n, &packed, now as u32) {
                Some((control, reply)) => {
                    found = (control, reply);
                    true
                }
                None => false,
            }
        })?;
        let generation = (found.0 >> bit::GENERATION_SHIFT) as u16;
        Some((Ref { entry, generation }, found.1))
    }

    /// The control word of an entry that has this tuple and is alive; true: it is the reply tuple.
    #[inline]
    fn has_tuple(&self, entry: u32, tuple: &Packed, now: u32) -> Option<(u64, bool)> {
        let entry = self.entries.get(entry);
        let control = entry.control();
        if control & bit::LIVE == 0 {
            return None;
        }
        let reply = entry.matches(tuple, control)?;
        self.is_alive(&entry, control, now).then_some((control, reply))
    }

    /// The entry of a connection, and its control word; None: the connection has ended.
    #[inline]
    fn entry(&self, conn_ref: Ref) -> Option<(Entry<'_>, u64)> {
        let entry = self.entries.get(conn_ref.entry);
        let control = entry.control();
        let same = control >> bit::GENERATION_SHIFT == u64::from(conn_ref.generation);
        (same && control & bit::LIVE != 0).then_some((entry, control))
    }

    /// True if the connection of this name has not ended.
    fn lives(&self, name: u64) -> bool {
        self.entry(Ref::named(name)).is_some()
    }

    /// The connection of this name, which announced another one ([`Conn::parent`]); None: it has
    /// ended.
    pub fn parent(&self, name: u64) -> Option<Conn> {
        let (entry, control) = self.entry(Ref::named(name))?;
        Some(entry.conn(control, 0))
    }

    /// Puts entry `n` into a bucket, in the place of entry `ended` if there is such a one; false:
    /// there is no room.
    fn put(&self, bucket: &Locked<'_>, hash: u32, n: u32, ended: Option<u32>) -> bool {
        let put = bucket.put(hash, n, ended);
        if let (Some(Put::Instead), Some(m)) = (put, ended) {
            let entry = self.entries.get(m);
            let control = entry.control();
            if control & bit::TRANSLATED == 0 {
                // Both tuples have one hash, so this was its only place.
                self.unlinked(m);
            } else if self.secret.hash(&entry.conn(control, 0).orig) != hash {
                // The keeper will not find the ended entry's second place, and so not count it.
                self.twice.fetch_sub(1, Relaxed);
            }
        }
        put.is_some()
    }

    /// Notes that the index does not have an ended entry any more: the keeper then need not lock
    /// its buckets, whose lines stay in the cache of this worker's core.
    fn unlinked(&self, n: u32) {
        let entry = self.entries.get(n);
        entry.set_control(entry.control() | bit::UNLINKED);
    }

    /// Writes a packet's change of the ends of a connection, and starts the timeout of `class`.
    /// False: the control word is no longer `control`, and nothing was written.
    fn change(
        &self,
        entry: &Entry<'_>,
        control: u64,
        (old, new): (&Peers, &Peers),
        class: Option<Class>,
        now: u64,
    ) -> bool {
        let mut to = control & !bit::PEERS | Entry::peer_bits(new);
        let opens = control & bit::HALF_OPEN != 0 && class.is_some_and(|c| !is_half_open(c));
        if opens {
            to &= !bit::HALF_OPEN;
        }
        if to != control && !entry.exchange(control, to) {
            return false;
        }
        entry.set_windows(old, new);
        if opens {
            let epoch = (control >> bit::EPOCH_SHIFT) as u16;
            self.counts.opened((entry.zone(), entry.port()), epoch);
        }
        if let Some(class) = class {
            let policy = entry.policy(control);
            refresh(entry, entry.expiry(), self.policies.millis(policy, class), now as u32);
        }
        true
    }

    /// Ends a connection; false: it has ended already.
    fn end(&self, conn_ref: Ref) -> bool {
        while let Some((entry, control)) = self.entry(conn_ref) {
            if self.end_entry(&entry, control) {
                return true;
            }
        }
        false
    }

    /// Ends the connection of an entry. False: its control word is no longer `control`, and nothing
    /// was done.
    fn end_entry(&self, entry: &Entry<'_>, control: u64) -> bool {
        let ended = entry.exchange(control, dead(control));
        if ended {
            let epoch = (control >> bit::EPOCH_SHIFT) as u16;
            let half_open = (control & bit::HALF_OPEN != 0).then(|| entry.port());
            self.counts.leave(entry.zone(), epoch, half_open);
        }
        ended
    }
}

impl Default for Table {
    fn default() -> Self {
        Self::new()
    }
}

/// The control word of a connection that has ended.
fn dead(control: u64) -> u64 {
    control & !(bit::LIVE | bit::PEERS) | bit::DEAD
}

/// True if a connection is half-open while this timeout runs.
fn is_half_open(class: Class) -> bool {
    use Class::*;
    matches!(class, TcpSynSent | TcpSynRecv | UdpFirst | UdpSingle | IcmpFirst)
}

impl Worker {
    /// Makes the access of one more packet thread, which must be a reader of the keeper's QSBR
    /// domain.
    pub fn new(table: &Arc<Table>) -> Self {
        let counters = Arc::new(Counters::default());
        table.workers.lock().unwrap().counters.push(counters.clone());
        let random = table.secret.hash_directed(&Tuple::default()) ^ Arc::as_ptr(&counters) as u64;
        let stock = Vec::with_capacity(STOCK_COUNT_MAX);
        Worker { table: table.clone(), stock, counters, random, searches: Searches::default() }
    }

    /// The table.
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// Prefetches the bucket of a tuple that will be looked up.
    #[inline]
    pub fn prefetch_bucket(&self, tuple: &Tuple) -> Prefetched {
        let hash = self.table.secret.hash(tuple);
        let _ = self.table.index.prefetch(hash);
        Prefetched(hash)
    }

    /// Prefetches the bucket of the reply tuple that NAT tries first for a connection which begins
    /// with `tuple`.
    #[inline(never)] // For packets that begin connections only.
    pub fn prefetch_reply(&self, tuple: &Tuple, nat: &action::Nat) -> Option<Prefetched> {
        let hash = self.table.secret.hash_translation(tuple, nat);
        let first = nat::choose(tuple, nat, hash, || 0, |_| true)?;
        Some(self.prefetch_bucket(&first))
    }

    /// Prefetches the connections that may have a tuple, once its bucket is in the cache.
    #[inline]
    pub fn prefetch_entries(&self, prefetched: Prefetched) {
        self.table.index.first_line(prefetched.0, |n| self.table.entries.prefetch(n, false));
    }

    /// Takes a free entry; None: none is ready.
    fn free_entry(&mut self) -> Option<u32> {
        if self.stock.is_empty() {
            let mut taken = [0; STOCK_COUNT_MAX];
            let n = self.table.free_entries.take(&mut taken);
            self.stock.extend_from_slice(&taken[..n]);
        }
        let entry = self.stock.pop();
        // The line of a free entry is in no core's cache. With the next one's prefetched now, a
        // packet of a new connection takes 490 cycles instead of 512 (bench/micro/datapath/ct.rs,
        // least of five runs).
        if let Some(next) = self.stock.last() {
            self.table.entries.prefetch(*next, false);
        }
        entry
    }

    /// Puts a filled entry into the index, unless a live connection has one of its tuples. It takes
    /// the place of an ended connection with the same tuple: a host that uses the same ports again
    /// and again would otherwise fill the bucket before the keeper removes ended connections.
    fn link(&self, n: u32, conn: &Conn, control: u64, now: u32) -> Result<(), Refused> {
        let table = &*self.table;
        let tuples = [&conn.orig, &conn.reply];
        let [a, b] = tuples.map(|t| table.secret.hash(t));
        let (first, second) = table.index.lock_both(a, b).ok_or(Refused::Busy)?;
        let second = second.as_ref().unwrap_or(&first);
        let mut ended = [None; 2];
        for (i, (bucket, hash)) in [(&first, a), (second, b)].into_iter().enumerate() {
            let packed = Packed::new(tuples[i]);
            let lives = |m| {
                if table.entries.get(m).control() & bit::DEAD != 0 {
                    ended[i] = Some(m);
                }
                table.has_tuple(m, &packed, now).is_some()
            };
            if bucket.find(hash, lives).is_some() {
                return Err(Refused::Exists);
            }
        }
        let entry = table.entries.get(n);
        entry.set_control(control | bit::LIVE);
        if let [Some(m), Some(other)] = ended
            && m == other
            && a != b
        {
            first.put(a, n, ended[0]);
            second.put(b, n, ended[1]);
            table.unlinked(m);
            return Ok(());
        }
        if !table.put(&first, a, n, ended[0]) {
            entry.set_control(control);
            return Err(Refused::Full);
        }
        if a != b {
            table.twice.fetch_add(1, Relaxed);
            if !table.put(second, b, n, ended[1]) {
                table.twice.fetch_sub(1, Relaxed);
                // Another worker may have found the entry: it counts as ended, and the keeper
                // removes it.
                entry.set_control(dead(control));
                return Err(Refused::Full);
            }
        }
        Ok(())
    }

    /// Adds one to a counter.
    fn add(&self, what: Count) {
        let counter = &self.counters.0[what as usize];
        counter.store(counter.load(Relaxed) + 1, Relaxed);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.table.workers.lock().unwrap().stock.append(&mut self.stock);
    }
}

impl Store for Worker {
    type Ref = Ref;

    #[inline]
    fn find(&mut self, tuple: &Tuple, now: u64) -> Option<(Ref, bool)> {
        self.table.look_up(tuple, now)
    }

    #[inline]
    fn read(&mut self, conn_ref: Ref, now: u64) -> Option<Conn> {
        let (entry, control) = self.table.entry(conn_ref)?;
        if !self.table.is_alive(&entry, control, now as u32) {
            return None;
        }
        Some(entry.conn(control, now + u64::from(entry.expiry().wrapping_sub(now as u32))))
    }

    fn update(
        &mut self,
        conn_ref: Ref,
        now: u64,
        change: &mut dyn FnMut(&mut Peers) -> Option<Class>,
    ) -> Option<()> {
        for _ in 0..UPDATES_COUNT_MAX {
            let (entry, control) = self.table.entry(conn_ref)?;
            let old = entry.peers(control);
            let mut new = old;
            let class = change(&mut new);
            if !self.table.change(&entry, control, (&old, &new), class, now) {
                continue;
            }
            return Some(());
        }
        Some(())
    }

    fn insert(&mut self, conn: &Conn, class: Class, came: Arrival) -> Result<Ref, Refused> {
        let (zone, Arrival { port, now }) = (conn.orig.zone, came);
        let limits = &self.table.limits;
        let epoch = self.table.counts.enter((zone, port), limits.of(zone), limits.total())?;
        let made = self.free_entry().ok_or(Refused::Full).and_then(|n| {
            let entry = self.table.entries.get(n);
            let millis = self.table.policies.millis(conn.policy, class);
            let generation = entry.control() >> bit::GENERATION_SHIFT;
            let control = entry.fill(conn, port, (now as u32).wrapping_add(millis))
                | u64::from(epoch) << bit::EPOCH_SHIFT
                | generation << bit::GENERATION_SHIFT;
            let linked = self.link(n, conn, control, now as u32);
            if linked.is_err() && entry.control() & bit::DEAD == 0 {
                entry.set_control(generation << bit::GENERATION_SHIFT);
                self.stock.push(n);
            }
            linked.map(|()| Ref { entry: n, generation: generation as u16 })
        });
        if made.is_err() {
            self.table.counts.leave(zone, epoch, Some(port));
        }
        made
    }

    fn end(&mut self, conn_ref: Ref) {
        self.table.end(conn_ref);
    }

    fn set_mark(&mut self, conn_ref: Ref, mark: (u32, u32)) -> u32 {
        match self.table.entry(conn_ref) {
            Some((entry, _)) => entry.set_mark(mark),
            None => mark.0 & mark.1,
        }
    }

    fn set_label(&mut self, conn_ref: Ref, label: (u128, u128)) -> u128 {
        match self.table.entry(conn_ref) {
            Some((entry, _)) => entry.set_label(label),
            None => label.0 & label.1,
        }
    }

    fn name(&self, conn_ref: Ref) -> u64 {
        conn_ref.name()
    }

    fn parent(&mut self, name: u64, now: u64) -> Option<Conn> {
        self.read(Ref::named(name), now)
    }

    fn expected(&mut self, tuple: &Tuple, _: u64) -> Option<Expected> {
        self.table.expectations.find(tuple, |name| self.table.lives(name))
    }

    fn expect(&mut self, tuple: &Tuple, what: Expected, came: Arrival) -> bool {
        self.table.expectations.add(tuple, what, came.port, |name| self.table.lives(name))
    }

    fn seq_shift(&mut self, conn_ref: Ref, reply: bool) -> SeqShift {
        self.table.entry(conn_ref).map_or(SeqShift::default(), |(entry, _)| entry.seq_shift(reply))
    }

    fn set_seq_shift(&mut self, conn_ref: Ref, reply: bool, seq_shift: SeqShift) {
        if let Some((entry, _)) = self.table.entry(conn_ref) {
            entry.set_seq_shift(reply, seq_shift);
        }
    }

    fn hash(&self, tuple: &Tuple, nat: &action::Nat) -> u64 {
        self.table.secret.hash_translation(tuple, nat)
    }

    fn searches(&mut self) -> &mut Searches {
        &mut self.searches
    }

    fn random(&mut self) -> u32 {
        // SplitMix64.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) as u32
    }

    fn checks_sequence(&self) -> bool {
        self.table.limits.checks_sequence()
    }

    fn count(&mut self, what: Count) {
        self.add(what);
    }
}

/// Moves the expiry (now `expiry`) to `millis` from now or somewhat later, unless it is there
/// already.
#[inline(always)]
fn refresh(entry: &Entry<'_>, expiry: u32, millis: u32, now: u32) {
    let slack = EXPIRY_MILLIS_SLACK.min(millis / 16);
    let beyond = expiry.wrapping_sub(now).wrapping_sub(millis);
    if beyond > slack {
        entry.set_expiry(now.wrapping_add(millis + slack));
    }
}
