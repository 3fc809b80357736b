//! The address tries of a table, and what one lookup has learned from them.

use flow::{Key, Mask, at};
use sync::{Domain, Guard, Published};

use crate::trie::{Counted, PrefixAnswer, upper};

/// Offsets of the fields with a trie: the IPv4 (or ARP) addresses.
pub(crate) const FIELDS: [usize; 2] = [at::IP_DST, at::IP_SRC];
/// The word with both fields.
pub(crate) const WORD: usize = at::IP_SRC / 8;

/// Prefix lengths of a mask in each of the fields; 0: no prefix, or not a prefix mask.
pub(crate) type Lengths = [u8; FIELDS.len()];

pub(crate) fn lengths(mask: &Mask) -> Lengths {
    FIELDS.map(|at| {
        let mask = mask.u32(at);
        if mask.leading_ones() == mask.count_ones() { mask.count_ones() as u8 } else { 0 }
    })
}

/// Marks the upper bits of the address at this offset.
#[inline]
pub(crate) fn mark(wildcards: &mut Mask, at: usize, bits: u8) {
    wildcards.set_u32(at, wildcards.u32(at) | upper(bits));
}

/// One trie per field. None: it grew too large, and stays None until the table is empty again.
pub(crate) struct Tries {
    each: [Published<Option<Counted>>; FIELDS.len()],
}

impl Tries {
    pub fn new(domain: &Domain) -> Tries {
        Tries { each: FIELDS.map(|_| Published::new(domain.clone(), Some(Counted::default()))) }
    }

    /// Counts a rule before it is linked. `first`: the table is empty.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    pub unsafe fn insert(&self, key: &Key, lengths: Lengths, first: bool) {
        for ((trie, at), len) in self.each.iter().zip(FIELDS).zip(lengths) {
            // SAFETY: only the writer publishes.
            let now = trie.read(unsafe { Guard::unprotected() });
            if first && now.is_none() {
                trie.publish(Some(Counted::default()));
            }
            // SAFETY: as above.
            let now = trie.read(unsafe { Guard::unprotected() });
            if let Some(t) = now
                && len > 0
                // SAFETY: the caller's promise.
                && !unsafe { t.insert(key.u32(at), len) }
            {
                trie.publish(None);
            }
        }
    }

    /// Removes a rule from the counts after it was unlinked.
    ///
    /// # Safety
    ///
    /// The caller is the only writer.
    pub unsafe fn remove(&self, key: &Key, lengths: Lengths, domain: &Domain) {
        for ((trie, at), len) in self.each.iter().zip(FIELDS).zip(lengths) {
            // SAFETY: only the writer publishes.
            if let (Some(t), 1..) = (trie.read(unsafe { Guard::unprotected() }), len) {
                // SAFETY: the caller's promise.
                unsafe { t.remove(key.u32(at), len, domain) };
            }
        }
    }
}

/// What one lookup knows about the prefixes of its key.
pub(crate) struct Prefixes<'a> {
    tries: &'a Tries,
    /// None: the trie was not asked yet, or there is none.
    answers: [Option<PrefixAnswer>; FIELDS.len()],
    asked: bool,
}

impl<'a> Prefixes<'a> {
    pub fn new(tries: &'a Tries) -> Self {
        Prefixes { tries, answers: [None; FIELDS.len()], asked: false }
    }

    /// True if marked address bits exclude all rules with these prefix lengths.
    #[inline]
    pub fn excluded(&self, lengths: Lengths, wildcards: &Mask) -> bool {
        let each = self.answers.iter().zip(FIELDS).zip(lengths);
        each.filter(|(_, len)| *len > 0).any(|((answer, at), len)| {
            answer.is_some_and(|a| {
                a.lengths >> len & 1 == 0 && upper(a.bits.min(len)) & !wildcards.u32(at) == 0
            })
        })
    }

    /// True if an address alone excludes all rules with these prefix lengths; then marks the bits
    /// of the address that do so.
    pub fn exclude(
        &mut self,
        guard: Guard<'a>,
        key: &Key,
        lengths: Lengths,
        wildcards: &mut Mask,
    ) -> bool {
        if !self.asked {
            self.ask(guard, key);
        }
        for (i, at) in FIELDS.into_iter().enumerate().filter(|(i, _)| lengths[*i] > 0) {
            let Some(answer) = self.answers[i] else { continue };
            if answer.lengths >> lengths[i] & 1 == 0 {
                mark(wildcards, at, answer.bits.min(lengths[i]));
                return true;
            }
        }
        false
    }

    /// Asks all tries about the addresses of `key`.
    fn ask(&mut self, guard: Guard<'a>, key: &Key) {
        self.asked = true;
        let tries = self.tries.each.each_ref().map(|t| t.read(guard).as_ref());
        let of = std::array::from_fn(|i| (tries[i], key.u32(FIELDS[i])));
        let answers: [PrefixAnswer; FIELDS.len()] = Counted::lookup_all(guard, of);
        self.answers = std::array::from_fn(|i| tries[i].map(|_| answers[i]));
    }
}
