//! The list of subtables in the order of lookups, as readers see it.
//!
//! What is published never changes. A new list shares all pieces with the one before, except the
//! one that changed. So adding to a table of many masks costs a copy of one piece and of the row of
//! pieces, which is shorter than the list by the number of entries in a piece.

use std::cmp::Reverse;
use std::iter::once;
use std::sync::Arc;

use crate::subtable::Subtable;

/// Entries of a piece; one with more is divided.
const PIECE_ENTRIES_MAX: usize = 64;

/// A subtable, or the prefix trie, as an entry of the list.
pub(crate) struct Listed<T: Send + Sync + 'static> {
    /// An upper bound of the priorities of its rules.
    pub max_priority: u16,
    /// The subtable; None: the prefix trie.
    pub subtable: Option<Arc<Subtable<T>>>,
}

impl<T: Send + Sync + 'static> Clone for Listed<T> {
    fn clone(&self) -> Self {
        Listed { max_priority: self.max_priority, subtable: self.subtable.clone() }
    }
}

/// An entry's place: by falling maximum priority, then by age. No two entries have the same.
type Place = (Reverse<u16>, u64);

impl<T: Send + Sync + 'static> Listed<T> {
    fn place(&self) -> Place {
        (Reverse(self.max_priority), self.subtable.as_ref().map_or(0, |s| s.serial))
    }
}

type Piece<T> = Arc<[Listed<T>]>;

/// All entries. A short list is one piece, and its row of pieces is not read.
pub(crate) struct List<T: Send + Sync + 'static> {
    first: Piece<T>,
    rest: Box<[Piece<T>]>,
    len: usize,
}

impl<T: Send + Sync + 'static> Default for List<T> {
    fn default() -> Self {
        List { first: Arc::new([]), rest: Box::default(), len: 0 }
    }
}

impl<T: Send + Sync + 'static> List<T> {
    /// Number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The entries, a piece at a time.
    #[inline]
    pub fn pieces(&self) -> impl Iterator<Item = &[Listed<T>]> {
        once(&*self.first).chain(self.rest.iter().map(|p| &**p))
    }

    /// The entries.
    pub fn iter(&self) -> impl Iterator<Item = &Listed<T>> {
        self.pieces().flatten()
    }

    /// The list without the entry `old`, if Some, and with the entry `new`, if Some. Adds the
    /// number of entries and pieces that were copied to `copied`.
    pub fn changed(
        &self,
        old: Option<Listed<T>>,
        new: Option<Listed<T>>,
        copied: &mut usize,
    ) -> Self {
        let mut pieces: Vec<Piece<T>> = once(&self.first).chain(&*self.rest).cloned().collect();
        *copied += pieces.len();
        if let Some(old) = old {
            remove(&mut pieces, old.place(), copied);
        }
        if let Some(new) = new {
            insert(&mut pieces, new, copied);
        }
        let mut pieces = pieces.into_iter();
        let first = pieces.next().unwrap_or_else(|| Arc::new([]));
        let rest: Box<[Piece<T>]> = pieces.collect();
        let len = first.len() + rest.iter().map(|p| p.len()).sum::<usize>();
        List { first, rest, len }
    }
}

/// Index of the piece in which an entry with this place is, or belongs.
fn piece_of<T: Send + Sync + 'static>(pieces: &[Piece<T>], place: Place) -> usize {
    let before = |p: &Piece<T>| p.first().is_none_or(|e| e.place() <= place);
    pieces.partition_point(before).saturating_sub(1)
}

fn insert<T: Send + Sync + 'static>(
    pieces: &mut Vec<Piece<T>>,
    entry: Listed<T>,
    copied: &mut usize,
) {
    let i = piece_of(pieces, entry.place());
    let at = pieces[i].partition_point(|e| e.place() < entry.place());
    let mut all = pieces[i].to_vec();
    all.insert(at, entry);
    *copied += all.len();
    let half = if all.len() > PIECE_ENTRIES_MAX { all.len() / 2 } else { all.len() };
    let second = all.split_off(half);
    pieces[i] = all.into();
    if !second.is_empty() {
        pieces.insert(i + 1, second.into());
    }
}

/// Removes an entry. Two neighbouring pieces are joined if the result has room for as many entries
/// again.
fn remove<T: Send + Sync + 'static>(pieces: &mut Vec<Piece<T>>, place: Place, copied: &mut usize) {
    let i = piece_of(pieces, place);
    let Ok(at) = pieces[i].binary_search_by_key(&place, Listed::place) else { return };
    let mut all = pieces[i].to_vec();
    all.remove(at);
    let fits =
        |n: Option<&Piece<T>>| n.is_some_and(|n| n.len() + all.len() <= PIECE_ENTRIES_MAX / 2);
    if fits(pieces.get(i + 1)) {
        all.extend_from_slice(&pieces.remove(i + 1));
    }
    *copied += all.len();
    if all.is_empty() && pieces.len() > 1 {
        pieces.remove(i);
    } else {
        pieces[i] = all.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::Shape;
    use crate::subtable::Owned;
    use crate::{Classifier, Rule};
    use flow::{Key, Mask, at};
    use sync::Domain;

    fn entries(n: u64, priority: impl Fn(u64) -> u16) -> Vec<Listed<()>> {
        let domain = Domain::new();
        let subtable = |serial| Owned::new(&domain, &Shape::of(&Mask::ZERO), serial).shared;
        let entry = |i| Listed { max_priority: priority(i), subtable: Some(subtable(i + 1)) };
        (0..n).map(entry).collect()
    }

    fn assert_good(list: &List<()>, mut expected: Vec<Place>) {
        expected.sort();
        assert_eq!(list.iter().map(Listed::place).collect::<Vec<_>>(), expected);
        assert_eq!(list.len(), expected.len());
        assert!(list.pieces().all(|p| p.len() <= PIECE_ENTRIES_MAX));
        assert!(list.rest.iter().all(|p| !p.is_empty()));
    }

    /// What flows of one controller cost that each have a mask of their own.
    #[test]
    fn a_table_of_many_masks_takes_a_new_one_for_little() {
        const MASKS: u64 = 5000;
        let (domain, mut key, mut mask) = (Domain::new(), Key::ZERO, Mask::ZERO);
        let table = Classifier::new(domain.clone());
        let mut writer = domain.writer();
        for i in 1..=MASKS {
            mask.set_u64(at::METADATA, i);
            key.set_u64(at::METADATA, i);
            table.insert(Arc::new(Rule::new(&key, &mask, 7, i)));
            writer.reclaim();
        }
        assert_eq!(table.subtables() as u64, MASKS);
        let (copied, most) = (table.lock().copied, MASKS as usize * 2 * PIECE_ENTRIES_MAX);
        assert!(copied <= most, "{copied} entries and pieces were copied for {MASKS} masks");
    }

    /// Entries come, change their priorities and go, in orders that are not theirs.
    #[test]
    fn lists_are_in_order_and_made_of_few_new_entries() {
        const ENTRIES: u64 = 5000;
        let all = entries(ENTRIES, |i| (i * 7919 % 13) as u16);
        let at = |i: u64| &all[(i * 2731 % ENTRIES) as usize];
        let (mut list, mut places, mut worst) = (List::default(), Vec::new(), 0);
        let mut change = |list: &mut List<()>, old: Option<Listed<()>>, new: Option<Listed<()>>| {
            let mut copied = 0;
            *list = list.changed(old, new, &mut copied);
            worst = worst.max(copied);
        };
        for i in 0..ENTRIES {
            change(&mut list, None, Some(at(i).clone()));
            places.push(at(i).place());
            if i % 499 == 0 {
                assert_good(&list, places.clone());
            }
        }
        let higher = |e: &Listed<()>| Listed { max_priority: 100, ..e.clone() };
        for i in 0..ENTRIES / 2 {
            change(&mut list, Some(at(i).clone()), Some(higher(at(i))));
        }
        let (high, low) = (0..ENTRIES / 2, ENTRIES / 2..ENTRIES);
        let high = high.map(|i| higher(at(i)).place());
        assert_good(&list, high.chain(low.clone().map(|i| at(i).place())).collect());
        for i in low {
            change(&mut list, Some(at(i).clone()), None);
        }
        for i in 1..ENTRIES / 2 {
            change(&mut list, Some(higher(at(i))), None);
        }
        assert_good(&list, vec![higher(at(0)).place()]);
        change(&mut list, Some(higher(at(0))), None);
        assert_good(&list, vec![]);
        change(&mut list, None, Some(at(0).clone()));
        assert_good(&list, vec![at(0).place()]);
        // Two pieces, and a row of pieces that are half full at least.
        let most = 2 * PIECE_ENTRIES_MAX + 4 * ENTRIES as usize / PIECE_ENTRIES_MAX;
        assert!(worst <= most, "{worst} entries and pieces for one change");
    }
}
