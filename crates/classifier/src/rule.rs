//! A rule: match, priority, versions and the caller's value.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use crate::stage::Step;
use flow::{Key, Mask, WORDS, at};

/// A version that no reader ever reaches: "not removed", or "not yet added".
pub const NEVER: u64 = u64::MAX;

/// The set of words with at least one bit in a mask; bit `i` stands for word `i`.
pub(crate) fn significant(mask: &Mask) -> u64 {
    (0..WORDS).filter(|&i| mask.words[i] != 0).fold(0, |map, i| map | 1 << i)
}

/// Indices of the 1-bits, lowest first.
pub(crate) fn bits(mut map: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let i = map.trailing_zeros() as usize;
        map &= map.wrapping_sub(1);
        (i < 64).then_some(i)
    })
}

/// One of these bits of word `i`: in a word of addresses the bit that the shortest prefix contains,
/// in the word with protocol and ports preferably the protocol's.
pub(crate) fn one_bit(i: usize, of: u64) -> u64 {
    if i == at::TP_SRC / 8 {
        return 1 << (63 - of.leading_zeros());
    }
    let first = 1 << (63 - of.to_be().leading_zeros());
    u64::from_be(first)
}

/// Words that are stored in place: most rules match on no more.
const INLINE_WORDS_MAX: usize = 3;

/// Key words, then as many mask words. If they are few they are stored in place, without a pointer.
#[derive(Clone)]
enum Words {
    Few(u8, [u64; 2 * INLINE_WORDS_MAX]),
    Many(Box<[u64]>),
}

impl Words {
    fn heap(&self) -> usize {
        match self {
            Words::Few(..) => 0,
            Words::Many(words) => size_of_val(&**words),
        }
    }
}

impl std::ops::Deref for Words {
    type Target = [u64];

    #[inline]
    fn deref(&self) -> &[u64] {
        match self {
            Words::Few(n, words) => &words[..2 * INLINE_WORDS_MAX.min(usize::from(*n))],
            Words::Many(words) => words,
        }
    }
}

/// The words of a match that are in `map`.
fn words(key: &Key, mask: &Mask, map: u64) -> Words {
    let keys = bits(map).map(|i| key.words[i] & mask.words[i]);
    let all = keys.chain(bits(map).map(|i| mask.words[i]));
    let n = map.count_ones() as usize;
    if n > INLINE_WORDS_MAX {
        return Words::Many(all.collect());
    }
    let mut few = [0; 2 * INLINE_WORDS_MAX];
    few.iter_mut().zip(all).for_each(|(to, word)| *to = word);
    Words::Few(n as u8, few)
}

/// A match with a priority, the versions at which it is visible, and a value.
///
/// Only the words with mask bits are stored. A rule is inserted into one classifier, once: after
/// [`crate::Classifier::remove`] it cannot be inserted again.
pub struct Rule<T> {
    map: u64,
    /// Masked key words, then as many mask words, of the words in `map`.
    words: Words,
    /// The next rule with the same key under its subtable's mask; priorities fall along the chain.
    pub(crate) next: AtomicPtr<Rule<T>>,
    add: AtomicU64,
    remove: AtomicU64,
    priority: u16,
    /// True: the rule was linked into a classifier.
    pub(crate) used: AtomicBool,
    value: T,
}

impl<T> Rule<T> {
    /// A rule visible from version 0 on. Key bits outside the mask are ignored.
    pub fn new(key: &Key, mask: &Mask, priority: u16, value: T) -> Self {
        Self::with_version(key, mask, priority, 0, value)
    }

    /// A rule visible from version `add` on.
    pub fn with_version(key: &Key, mask: &Mask, priority: u16, add: u64, value: T) -> Self {
        let map = significant(mask);
        Rule {
            map,
            words: words(key, mask, map),
            next: AtomicPtr::new(std::ptr::null_mut()),
            add: AtomicU64::new(add),
            remove: AtomicU64::new(NEVER),
            priority,
            used: AtomicBool::new(false),
            value,
        }
    }

    /// A rule of the same match and priority with another value, visible from version `add` on.
    pub fn renewed(&self, add: u64, value: T) -> Self {
        Rule {
            map: self.map,
            words: self.words.clone(),
            next: AtomicPtr::new(std::ptr::null_mut()),
            add: AtomicU64::new(add),
            remove: AtomicU64::new(NEVER),
            priority: self.priority,
            used: AtomicBool::new(false),
            value,
        }
    }

    /// Prefetches a rule that will be examined soon.
    pub fn prefetch(self: &Arc<Self>) {
        crate::slots::prefetch(Arc::as_ptr(self));
    }

    /// The caller's value.
    #[inline]
    pub fn value(&self) -> &T {
        &self.value
    }

    /// The priority; higher wins.
    #[inline]
    pub fn priority(&self) -> u16 {
        self.priority
    }

    /// The masked key.
    pub fn key(&self) -> Key {
        self.expand(0)
    }

    /// The mask.
    pub fn mask(&self) -> Mask {
        self.expand(self.words.len() / 2)
    }

    fn expand(&self, from: usize) -> Key {
        let mut out = Key::ZERO;
        for (i, w) in bits(self.map).zip(&self.words[from..]) {
            out.words[i] = *w;
        }
        out
    }

    /// The first version that sees the rule.
    pub fn add_version(&self) -> u64 {
        self.add.load(Ordering::Acquire)
    }

    /// Sets the first version that sees the rule ([`NEVER`]: none yet).
    pub fn set_add_version(&self, version: u64) {
        self.add.store(version, Ordering::Release);
    }

    /// The first version that no longer sees the rule; [`NEVER`] while it stays.
    pub fn remove_version(&self) -> u64 {
        self.remove.load(Ordering::Acquire)
    }

    /// Sets the first version that no longer sees the rule ([`NEVER`]: back to stay).
    pub fn set_remove_version(&self, version: u64) {
        self.remove.store(version, Ordering::Release);
    }

    /// True if a reader at `version` sees the rule.
    #[inline]
    pub fn visible(&self, version: u64) -> bool {
        self.add.load(Ordering::Acquire) <= version && version < self.remove.load(Ordering::Acquire)
    }

    /// True if a packet with `key` matches, whatever the version.
    #[inline]
    pub fn matches(&self, key: &Key) -> bool {
        let (keys, masks) = self.words.split_at(self.words.len() / 2);
        let mut pairs = bits(self.map).zip(keys.iter().zip(masks));
        pairs.all(|(i, (k, m))| key.words[i] & m == *k)
    }

    /// True if the rule is at least as specific as (`key`,`mask`), as for loose flow-mods.
    pub fn within(&self, key: &Key, mask: &Mask) -> bool {
        let (keys, masks) = self.words.split_at(self.words.len() / 2);
        significant(mask) & !self.map == 0
            && bits(self.map).zip(keys.iter().zip(masks)).all(|(i, (k, m))| {
                mask.words[i] & !m == 0 && (k ^ key.words[i]) & mask.words[i] == 0
            })
    }

    /// True if a packet can match both the rule and (`key`,`mask`).
    pub fn overlaps(&self, key: &Key, mask: &Mask) -> bool {
        let (keys, masks) = self.words.split_at(self.words.len() / 2);
        let mut pairs = bits(self.map).zip(keys.iter().zip(masks));
        pairs.all(|(i, (k, m))| (k ^ key.words[i]) & m & mask.words[i] == 0)
    }

    /// The rule's value of a word in its mask.
    #[inline]
    fn word(&self, i: u8) -> u64 {
        let before = self.map & ((1 << i) - 1);
        self.words[before.count_ones() as usize]
    }

    /// True if `key` agrees with the rule on these bits, which are all in the rule's mask.
    #[inline]
    pub(crate) fn agrees(&self, key: &Key, steps: &[Step]) -> bool {
        steps.iter().all(|s| (key.words[s.word as usize] ^ self.word(s.word)) & s.mask == 0)
    }

    /// The words in which the mask has bits.
    #[inline]
    pub(crate) fn looks_at(&self) -> u64 {
        self.map
    }

    /// As [`Rule::agrees`] for all bits of a subtable's mask; `masks` are the mask's words in
    /// `map`.
    #[inline]
    pub(crate) fn agrees_by_words(
        &self,
        key: &Key,
        map: u64,
        masks: &[(u8, u64)],
        steps: &[Step],
    ) -> bool {
        if self.map != map {
            return self.agrees(key, steps);
        }
        let words = masks.iter().zip(&self.words[..]);
        words.fold(0, |d, ((i, m), w)| d | (key.words[usize::from(*i)] ^ w) & m) == 0
    }

    /// True if the rule's mask consists of these words, which are those in `map`.
    #[inline]
    pub(crate) fn has_mask(&self, map: u64, words: &[(u8, u64)]) -> bool {
        let masks = &self.words[self.words.len() / 2..];
        self.map == map && masks.iter().zip(words).fold(0, |d, (m, (_, w))| d | m ^ w) == 0
    }

    /// As [`Rule::matches`]; `words` are those in `map`.
    #[inline]
    pub(crate) fn matches_by_words(&self, key: &Key, map: u64, words: &[(u8, u64)]) -> bool {
        if self.map != map {
            return self.matches(key);
        }
        let (keys, masks) = self.words.split_at(self.words.len() / 2);
        let all = words.iter().zip(keys.iter().zip(masks));
        all.fold(0, |d, ((i, _), (k, m))| d | (key.words[usize::from(*i)] & m) ^ k) == 0
    }

    /// As [`Rule::matches`]; marks the bits that decided: the whole mask if it matches, else one
    /// bit in which the key differs.
    #[inline]
    pub(crate) fn decides(&self, key: &Key, marked: &mut Mask) -> bool {
        let (keys, masks) = self.words.split_at(self.words.len() / 2);
        let pairs = || bits(self.map).zip(keys.iter().zip(masks));
        let mut best = None;
        for (i, (k, m)) in pairs() {
            let differ = (key.words[i] ^ k) & m;
            if differ & marked.words[i] != 0 {
                return false;
            }
            if differ != 0 && best.is_none() {
                best = Some((i, differ));
            }
        }
        match best {
            Some((i, differ)) => marked.words[i] |= one_bit(i, differ),
            None => pairs().for_each(|(i, (_, m))| marked.words[i] |= m),
        }
        best.is_none()
    }

    /// True if this is exactly the rule's match.
    pub(crate) fn has_match(&self, key: &Key, shape: &Shape) -> bool {
        self.map == shape.map
            && self.words[self.words.len() / 2..] == *shape.masks
            && self.matches(key)
    }

    /// The mask as the identity of a subtable.
    pub(crate) fn shape(&self) -> Shape {
        Shape { map: self.map, masks: self.words[self.words.len() / 2..].into() }
    }

    /// Memory of the rule, bytes, without the heap memory of its value.
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.words.heap()
    }
}

impl<T: std::fmt::Debug> std::fmt::Debug for Rule<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rule")
            .field("priority", &self.priority)
            .field("key", &self.key())
            .field("mask", &self.mask())
            .field("value", &self.value)
            .finish()
    }
}

/// A mask without its zero words.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    pub map: u64,
    pub masks: Box<[u64]>,
}

impl Shape {
    pub fn of(mask: &Mask) -> Shape {
        let map = significant(mask);
        Shape { map, masks: bits(map).map(|i| mask.words[i]).collect() }
    }

    pub fn mask(&self) -> Mask {
        let mut out = Key::ZERO;
        for (i, w) in bits(self.map).zip(&self.masks) {
            out.words[i] = *w;
        }
        out
    }
}
