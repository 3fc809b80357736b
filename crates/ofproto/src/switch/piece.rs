//! Long lists of groups and meters, a piece at a time.

use std::collections::BTreeMap;

/// What a piece has, in buckets, bands and actions, and in entries, before it ends: some tenths of
/// a millisecond's work.
const PIECE_PARTS_MAX: usize = 2048;

/// Some entries of a table, in the order of their numbers.
#[derive(Debug)]
pub struct Piece<T> {
    /// The entries.
    pub entries: Vec<T>,
    /// Where the next piece begins; None: that was all.
    pub next: Option<u32>,
}

impl<T> Piece<T> {
    /// A piece of one number, or of all from `from` on. `parts`: how many an entry has.
    pub(super) fn of<R>(
        table: &BTreeMap<u32, R>,
        one_number: Option<u32>,
        from: u32,
        parts: impl Fn(&R) -> usize,
        one: impl Fn(u32, &R) -> T,
    ) -> Piece<T> {
        let range = one_number.map_or(from..=u32::MAX, |number| number..=number);
        let (mut entries, mut left) = (Vec::new(), PIECE_PARTS_MAX);
        for (number, entry) in table.range(range) {
            if left == 0 {
                return Piece { entries, next: Some(*number) };
            }
            left = left.saturating_sub(1 + parts(entry));
            entries.push(one(*number, entry));
        }
        Piece { entries, next: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of entries, piece by piece.
    fn pieces(table: &BTreeMap<u32, usize>) -> Vec<Vec<u32>> {
        let (mut all, mut from) = (Vec::new(), Some(0));
        while let Some(first) = from {
            let Piece { entries, next } = Piece::of(table, None, first, |n| *n, |id, _| id);
            all.push(entries);
            from = next;
        }
        all
    }

    #[test]
    fn no_piece_has_too_many_parts_and_all_have_all() {
        for parts in [0, 1, 1000, 5000] {
            let table: BTreeMap<u32, usize> =
                (0..5000).map(|id| (id * 7, parts)).chain([(u32::MAX, parts)]).collect();
            let all = pieces(&table);
            assert!(
                all.iter().all(|p| p.len() * (1 + parts) <= PIECE_PARTS_MAX + parts),
                "{parts}"
            );
            assert_eq!(all.concat(), table.keys().copied().collect::<Vec<_>>());
        }
        assert_eq!(pieces(&BTreeMap::new()), [vec![]]);
        let table = [(3, 9), (4, 9), (5, 9)].into();
        let piece = Piece::of(&table, Some(4), 0, |n| *n, |id, _| id);
        assert_eq!((piece.entries, piece.next), (vec![4], None));
    }
}
