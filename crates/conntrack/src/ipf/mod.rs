//! Reassembly of fragments (OVS: ipf). The fragments of an IP datagram wait until all of them have
//! arrived. The whole datagram then goes through connection tracking once, and the result holds for
//! each of its fragments.
//!
//! The number of waiting fragments is bounded per datagram, per port and in all, and so is the time
//! that they wait. When the limit of all is reached, the port that has most fragments loses its
//! oldest datagram to a port that has fewer. All memory is allocated at the start, except that of
//! `shares`.

mod fragment;
#[cfg(test)]
mod ipf_tests;
mod settings;
mod shares;

pub use fragment::{DATAGRAM_BYTES_MAX, Datagram, Fragment, assemble, read, spread};
pub use settings::{
    FRAGMENT_BYTES_MIN, FRAGMENT_BYTES_MIN_DEFAULT, FRAGMENT_COUNT_NAMES, FRAGMENT_WAIT_MILLIS,
    FRAGMENTS_COUNT_DEFAULT, FRAGMENTS_COUNT_MAX, FragmentCount, FragmentSettings,
};

use crate::track::Arrival;
use FragmentCount::*;
use shares::Shares;
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

/// Most fragments of one datagram: as many as the longest datagram has in fragments of the smallest
/// size that can be set ([`FRAGMENT_BYTES_MIN`]).
pub const FRAGMENTS_OF_DATAGRAM_COUNT_MAX: usize = 164;
/// Fragments of one port may be one part in this many of all that may wait.
const PORT_SHARE: u32 = 4;
/// The end of a list.
const END: u32 = u32::MAX;

/// Why a fragment does not wait, and is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// Datagrams of this IP version are not reassembled.
    Off,
    /// The fragment is too small, and not the last one.
    TooSmall,
    /// The fragment has bytes that another one has.
    Overlaps,
    /// A limit is reached: of the datagram, of the port, or of all fragments while no other port
    /// has more of them.
    Full,
}

/// What became of a fragment.
#[derive(Debug, PartialEq, Eq)]
pub enum Gathered<T> {
    /// The fragment waits for others.
    Waits,
    /// The datagram is complete: its fragments were appended to `out`, in order.
    Complete,
    /// The fragment does not wait.
    Rejected(T, Rejected),
}

/// A fragment with what belongs to it, and the port to whose share it counts.
struct Waiting<T> {
    fragment: Option<(Fragment, T)>,
    port: u16,
    /// The number of the list that the fragment is in.
    list: u32,
    next: u32,
}

/// The fragments of one datagram, by their order in it.
struct List {
    datagram: Datagram,
    first: u32,
    count: usize,
    /// Payload bytes of the fragments that have arrived.
    bytes: u32,
    /// Payload bytes of the whole datagram; None: its last fragment has not arrived.
    whole: Option<u32>,
    due: u64,
    older: u32,
    newer: u32,
}

/// Fragments that wait. `T`: the packet, and what is to become of it.
pub struct Fragments<T> {
    waiting: Vec<Waiting<T>>,
    free_places: Vec<u32>,
    lists: Vec<List>,
    free_lists: Vec<u32>,
    by_datagram: HashMap<Datagram, u32>,
    shares: Shares,
    oldest: u32,
    newest: u32,
}

impl<T> Default for Fragments<T> {
    fn default() -> Self {
        let most = FRAGMENTS_COUNT_MAX as usize;
        Fragments {
            waiting: Vec::with_capacity(most),
            free_places: Vec::with_capacity(most),
            lists: Vec::with_capacity(most),
            free_lists: Vec::with_capacity(most),
            by_datagram: HashMap::with_capacity(most),
            shares: Shares::new(most),
            oldest: END,
            newest: END,
        }
    }
}

impl<T> Fragments<T> {
    /// Keeps a fragment until its datagram is complete. Appends the fragments of a complete
    /// datagram to `out`, and those that give way to `evicted`.
    pub fn gather(
        &mut self,
        settings: &FragmentSettings,
        fragment: Fragment,
        what: T,
        Arrival { port, now }: Arrival,
        out: &mut Vec<(Fragment, T)>,
        evicted: &mut Vec<(Fragment, T)>,
    ) -> Gathered<T> {
        let v6 = fragment.datagram.v6;
        let admitted = self.admit(settings, &fragment, port);
        if let Err(why) = admitted.and_then(|()| self.make_room(settings, port, evicted)) {
            match why {
                Rejected::TooSmall => settings.count(v6, TooSmall, 1),
                Rejected::Overlaps => settings.count(v6, Overlapped, 1),
                Rejected::Off | Rejected::Full => {}
            }
            return Gathered::Rejected(what, why);
        }
        let n = match self.by_datagram.get(&fragment.datagram) {
            Some(n) => *n,
            None => self.begin(&fragment.datagram, now + u64::from(settings.wait_millis())),
        };
        settings.count(v6, Accepted, 1);
        self.put(n, fragment, port, what);
        settings.waiting.fetch_add(1, Relaxed);
        let list = &self.lists[n as usize];
        if list.whole != Some(list.bytes) {
            return Gathered::Waits;
        }
        let count = self.end(settings, n, out);
        settings.count(v6, Completed, count as u64);
        Gathered::Complete
    }

    /// Removes datagrams that have waited for too long, and appends their fragments to `out` until
    /// these are `most` or more.
    pub fn expire(
        &mut self,
        settings: &FragmentSettings,
        now: u64,
        most: usize,
        out: &mut Vec<(Fragment, T)>,
    ) {
        while out.len() < most && self.oldest != END && self.lists[self.oldest as usize].due <= now
        {
            let v6 = self.lists[self.oldest as usize].datagram.v6;
            let count = self.end(settings, self.oldest, out);
            settings.count(v6, Expired, count as u64);
        }
    }

    /// Calls `to` for each datagram that waits, with the number of its fragments, and whether the
    /// first and the last one are there.
    pub fn show(&self, mut to: impl FnMut(&Datagram, usize, [bool; 2])) {
        let mut n = self.oldest;
        while n != END {
            let list = &self.lists[n as usize];
            let first = self.of(list).next().is_some_and(|f| f.start == 0);
            to(&list.datagram, list.count, [first, list.whole.is_some()]);
            n = list.newer;
        }
    }

    /// Checks whether the fragment may wait; the error says why not.
    fn admit(&self, settings: &FragmentSettings, f: &Fragment, port: u16) -> Result<(), Rejected> {
        let (v6, most) = (f.datagram.v6, settings.most());
        if !settings.is_on(v6) {
            return Err(Rejected::Off);
        }
        if f.more && f.size() < settings.bytes_min(v6) as usize {
            return Err(Rejected::TooSmall);
        }
        if let Some(n) = self.by_datagram.get(&f.datagram) {
            let list = &self.lists[*n as usize];
            // A fragment behind the last one, and a second last one, do not fit the datagram
            // either.
            let outside = list.whole.is_some_and(|whole| f.end > whole || !f.more)
                || !f.more && self.of(list).any(|other| other.end > f.end);
            if outside || self.of(list).any(|other| f.start < other.end && other.start < f.end) {
                return Err(Rejected::Overlaps);
            }
            if list.count >= FRAGMENTS_OF_DATAGRAM_COUNT_MAX {
                return Err(Rejected::Full);
            }
        }
        match self.shares.of(port) < (most / PORT_SHARE).max(1) {
            true => Ok(()),
            false => Err(Rejected::Full),
        }
    }

    /// Makes room for a fragment of a port if there is none, by evicting the oldest datagram of the
    /// port that has most.
    fn make_room(
        &mut self,
        settings: &FragmentSettings,
        port: u16,
        evicted: &mut Vec<(Fragment, T)>,
    ) -> Result<(), Rejected> {
        if settings.waiting() < settings.most() {
            return Ok(());
        }
        let at = self.shares.victim(port).ok_or(Rejected::Full)?;
        let n = self.waiting[at as usize].list;
        let v6 = self.lists[n as usize].datagram.v6;
        let count = self.end(settings, n, evicted);
        settings.count(v6, Purged, count as u64);
        // The limit may have been lowered since the fragments came.
        if settings.waiting() < settings.most() { Ok(()) } else { Err(Rejected::Full) }
    }

    /// The fragments of a list, in order.
    fn of<'a>(&'a self, list: &'a List) -> impl Iterator<Item = &'a Fragment> {
        let mut n = list.first;
        std::iter::from_fn(move || {
            let waiting = self.waiting.get(n as usize)?;
            n = waiting.next;
            waiting.fragment.as_ref().map(|(f, _)| f)
        })
    }

    /// Makes a list without fragments, the newest; returns its number.
    fn begin(&mut self, datagram: &Datagram, due: u64) -> u32 {
        let list = List {
            datagram: *datagram,
            first: END,
            count: 0,
            bytes: 0,
            whole: None,
            due,
            older: self.newest,
            newer: END,
        };
        let n = take(&mut self.lists, &mut self.free_lists, list);
        match self.newest {
            END => self.oldest = n,
            newest => self.lists[newest as usize].newer = n,
        }
        self.newest = n;
        self.by_datagram.insert(*datagram, n);
        n
    }

    /// Puts a fragment at its place in a list.
    fn put(&mut self, n: u32, fragment: Fragment, port: u16, what: T) {
        let list = &mut self.lists[n as usize];
        let (mut before, mut next) = (END, list.first);
        while let Some(waiting) = self.waiting.get(next as usize)
            && waiting.fragment.as_ref().is_some_and(|(f, _)| f.start < fragment.start)
        {
            (before, next) = (next, waiting.next);
        }
        list.count += 1;
        list.bytes += fragment.end - fragment.start;
        if !fragment.more {
            list.whole = Some(fragment.end);
        }
        let waiting = Waiting { fragment: Some((fragment, what)), port, list: n, next };
        let at = take(&mut self.waiting, &mut self.free_places, waiting);
        match before {
            END => self.lists[n as usize].first = at,
            before => self.waiting[before as usize].next = at,
        }
        self.shares.enter(port, at);
    }

    /// Removes a list, and appends its fragments to `out`; returns how many.
    fn end(&mut self, settings: &FragmentSettings, n: u32, out: &mut Vec<(Fragment, T)>) -> usize {
        let List { datagram, first, older, newer, count, .. } = self.lists[n as usize];
        match older {
            END => self.oldest = newer,
            older => self.lists[older as usize].newer = newer,
        }
        match newer {
            END => self.newest = older,
            newer => self.lists[newer as usize].older = older,
        }
        self.by_datagram.remove(&datagram);
        self.free_lists.push(n);
        let mut at = first;
        while at != END {
            let waiting = &mut self.waiting[at as usize];
            out.extend(waiting.fragment.take());
            let (port, next) = (waiting.port, waiting.next);
            self.free_places.push(at);
            self.shares.leave(port, at);
            at = next;
        }
        settings.waiting.fetch_sub(count as u32, Relaxed);
        count
    }
}

/// Puts a value at a free place; returns the number of the place.
fn take<V>(all: &mut Vec<V>, free: &mut Vec<u32>, value: V) -> u32 {
    match free.pop() {
        Some(n) => {
            all[n as usize] = value;
            n
        }
        None => {
            all.push(value);
            all.len() as u32 - 1
        }
    }
}
