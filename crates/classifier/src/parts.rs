//! A hash table in parts: a tree whose leaves are small arrays, so that no change of one entry
//! moves more than an array's.
//!
//! A lookup in a table of up to 4,096 entries reads one array; in a greater one it follows two
//! pointers more for each factor of 64.

use std::sync::atomic::{AtomicUsize, Ordering};

use sync::{Domain, Guard, Published};

/// Places of an array, at most; half of them are used when it is moved. While a million flows are
/// loaded, others wait 5 ms at most, and 96 ms with one array for all; a lookup in 32,768 rules
/// takes 85 ns instead of 77 (docs/perf/flow-tables.md).
pub(crate) const ARRAY_PLACES_MAX: usize = 1 << 14;
const ARRAY_PLACES_MIN: usize = 4;

/// Entries that parts have together, at most, when they are joined again.
const JOINED_ENTRIES_MAX: usize = 256;

/// The number of parts that an array is split into, as a power of two.
const FANOUT_SHIFT: u32 = 6;
/// The hash bits below this one say which part it is. Those from it on are an array's tags.
const PART_BITS_END: u32 = 48;
/// Levels below the root, at most. Arrays of the last one grow without limit; a table gets there
/// with some 10^8 entries.
const LEVELS_MAX: u32 = 3;

/// An array of a hash table. One writer changes it in place while others read.
pub(crate) trait Array: Send + Sync + 'static {
    type Entry: Copy;

    /// An empty array of so many places, a power of two.
    fn new(places: usize) -> Self;

    fn places(&self) -> usize;

    /// How full it is.
    fn fill(&self) -> &Fill;

    /// Number of entries.
    fn entries(&self) -> usize {
        self.fill().entries.load(Ordering::Relaxed)
    }

    /// Calls `each` with all entries.
    fn for_each(&self, each: impl FnMut(Self::Entry));

    /// Adds an entry that is not in the array. There must be room.
    fn put(&self, hash: u64, entry: Self::Entry);

    /// True if an entry can be added.
    fn has_room(&self) -> bool {
        (self.fill().dirty.load(Ordering::Relaxed) + 1) * 2 <= self.places()
    }
}

/// How full an array is. Only the writer uses this.
#[derive(Default)]
pub(crate) struct Fill {
    entries: AtomicUsize,
    /// Number of places that are used, or were and still end no search.
    dirty: AtomicUsize,
}

impl Fill {
    /// Counts an entry that came; `fresh`: its place did not count as dirty.
    pub fn add(&self, fresh: bool) {
        self.entries.fetch_add(1, Ordering::Relaxed);
        self.dirty.fetch_add(usize::from(fresh), Ordering::Relaxed);
    }

    /// Counts an entry that went; `clean`: its place does not count as dirty any more.
    pub fn sub(&self, clean: bool) {
        self.entries.fetch_sub(1, Ordering::Relaxed);
        self.dirty.fetch_sub(usize::from(clean), Ordering::Relaxed);
    }
}

/// The places that a new array for so many entries gets: four to eight times as many.
fn places(entries: usize) -> usize {
    ((entries + 1) * 4).next_power_of_two()
}

/// Where a part is published.
type Place<A> = Published<Part<A>>;

enum Part<A: Array> {
    Whole(A),
    Split(Box<[Place<A>]>),
}

pub(crate) struct Parts<A: Array> {
    root: Place<A>,
    domain: Domain,
}

impl<A: Array> Parts<A> {
    pub fn new(domain: &Domain) -> Self {
        let root = Published::new(domain.clone(), Part::Whole(A::new(ARRAY_PLACES_MIN)));
        Parts { root, domain: domain.clone() }
    }

    /// The array that has the entries of this hash.
    #[inline]
    pub fn array<'g>(&'g self, guard: Guard<'g>, hash: u64) -> &'g A {
        let mut part = self.root.read(guard);
        let mut level = 0;
        loop {
            match part {
                Part::Whole(array) => return array,
                Part::Split(parts) => part = parts[index(hash, level)].read(guard),
            }
            level += 1;
        }
    }

    /// Number of places, if there is one array.
    #[inline]
    pub fn places_of_one(&self, guard: Guard<'_>) -> Option<usize> {
        match self.root.read(guard) {
            Part::Whole(array) => Some(array.places()),
            Part::Split(_) => None,
        }
    }

    /// Heap memory of all arrays, bytes.
    pub fn bytes(&self, guard: Guard<'_>) -> usize {
        self.arrays(guard).map(|array| array.places() * size_of::<u64>()).sum()
    }

    /// All arrays.
    pub fn arrays<'g>(&'g self, guard: Guard<'g>) -> impl Iterator<Item = &'g A> {
        arrays(&self.root, guard)
    }

    /// Makes room for an entry with this hash. `hash_of` says the hash of an entry.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    pub unsafe fn reserve(&self, hash: u64, hash_of: impl Fn(A::Entry) -> u64) {
        // SAFETY: the caller is the only writer.
        let way = unsafe { self.way(hash) };
        if !way.array.has_room() {
            self.replace(way.part, &[way.array], way.level, &hash_of);
        }
    }

    /// Gives memory back after an entry with this hash was removed: an array of which less than a
    /// sixteenth is in use is made smaller, and one that is empty is joined with those beside it if
    /// they have few entries.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    pub unsafe fn shrink(&self, hash: u64, hash_of: impl Fn(A::Entry) -> u64) {
        // SAFETY: the caller is the only writer.
        let way = unsafe { self.way(hash) };
        let entries = way.array.entries();
        let joined = if entries == 0 { way.joined() } else { None };
        if let Some((part, arrays)) = joined {
            self.replace(part, &arrays, way.level - 1, &hash_of);
        } else if way.array.places() > ARRAY_PLACES_MIN && entries * 16 < way.array.places() {
            self.replace(way.part, &[way.array], way.level, &hash_of);
        }
    }

    /// The way to the array of a hash.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    unsafe fn way(&self, hash: u64) -> Way<'_, A> {
        // SAFETY: the caller is the only writer; what it replaces later is freed after that.
        let guard = unsafe { Guard::unprotected() };
        let (mut part, mut above, mut level) = (&self.root, None, 0);
        loop {
            match part.read(guard) {
                Part::Whole(array) => return Way { part, array, above, level, guard },
                Part::Split(parts) => {
                    above = Some((part, &**parts));
                    part = &parts[index(hash, level)];
                }
            }
            level += 1;
        }
    }

    /// Replaces a part by one with the entries of these arrays.
    fn replace(
        &self,
        part: &Place<A>,
        arrays: &[&A],
        level: u32,
        hash_of: &dyn Fn(A::Entry) -> u64,
    ) {
        let mut entries = Vec::with_capacity(arrays.iter().map(|a| a.entries()).sum());
        arrays.iter().for_each(|a| a.for_each(|entry| entries.push((hash_of(entry), entry))));
        part.publish(self.part(&entries, level));
    }

    /// A part at this level of the tree for these entries, with their hashes.
    fn part(&self, entries: &[(u64, A::Entry)], level: u32) -> Part<A> {
        if places(entries.len()) <= ARRAY_PLACES_MAX || level == LEVELS_MAX {
            let array = A::new(places(entries.len()));
            entries.iter().for_each(|(hash, entry)| array.put(*hash, *entry));
            return Part::Whole(array);
        }
        let mut parts = vec![Vec::new(); 1 << FANOUT_SHIFT];
        entries.iter().for_each(|entry| parts[index(entry.0, level)].push(*entry));
        let publish = |entries| Published::new(self.domain.clone(), self.part(entries, level + 1));
        Part::Split(parts.iter().map(|entries| publish(entries)).collect())
    }
}

/// The way to an array.
struct Way<'a, A: Array> {
    part: &'a Place<A>,
    array: &'a A,
    /// The part that this one belongs to, with all parts of it.
    above: Option<(&'a Place<A>, &'a [Place<A>])>,
    /// The number of parts above.
    level: u32,
    guard: Guard<'a>,
}

impl<'a, A: Array> Way<'a, A> {
    /// The part above and its arrays, if they have few entries and there is nothing else in it.
    fn joined(&self) -> Option<(&'a Place<A>, Vec<&'a A>)> {
        let (above, parts) = self.above?;
        let arrays = parts.iter().map(|part| match part.read(self.guard) {
            Part::Whole(array) => Some(array),
            Part::Split(_) => None,
        });
        let arrays = arrays.collect::<Option<Vec<_>>>()?;
        let few = arrays.iter().map(|a| a.entries()).sum::<usize>() <= JOINED_ENTRIES_MAX;
        few.then_some((above, arrays))
    }
}

/// Which part of a part at this level has a hash.
#[inline]
fn index(hash: u64, level: u32) -> usize {
    (hash >> (PART_BITS_END - (level + 1) * FANOUT_SHIFT)) as usize & ((1 << FANOUT_SHIFT) - 1)
}

fn arrays<'g, A: Array>(
    part: &'g Place<A>,
    guard: Guard<'g>,
) -> Box<dyn Iterator<Item = &'g A> + 'g> {
    match part.read(guard) {
        Part::Whole(array) => Box::new(std::iter::once(array)),
        Part::Split(parts) => Box::new(parts.iter().flat_map(move |p| arrays(p, guard))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::Filter;

    /// Each change moves one array's entries, at most; an emptied table gives its memory back.
    #[test]
    fn an_array_is_never_greater_than_the_most() {
        let domain = Domain::new();
        let mut writer = domain.writer();
        let parts = Parts::<Filter>::new(&domain);
        // SAFETY: no other thread has the table.
        let guard = unsafe { Guard::unprotected() };
        let hash = |i: u64| (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(20);
        for i in 0..300_000 {
            // SAFETY: this is the writer.
            unsafe { parts.reserve(hash(i), Filter::hash_of) };
            let array = parts.array(guard, hash(i));
            assert!(array.places() <= ARRAY_PLACES_MAX);
            array.add(hash(i));
        }
        assert!((0..300_000).all(|i| parts.array(guard, hash(i)).may_contain(hash(i))));
        assert_eq!(parts.arrays(guard).map(Array::entries).sum::<usize>(), 300_000);
        assert!((300_000..400_000).all(|i| !parts.array(guard, hash(i)).may_contain(hash(i))));
        for i in 0..300_000 {
            parts.array(guard, hash(i)).sub(hash(i));
            // SAFETY: this is the writer.
            unsafe { parts.shrink(hash(i), Filter::hash_of) };
        }
        assert_eq!(parts.arrays(guard).count(), 1);
        assert_eq!(parts.bytes(guard), 32);
        writer.reclaim();
    }
}
