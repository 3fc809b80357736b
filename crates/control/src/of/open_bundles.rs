//! The bundles that one connection has open.

use super::bundle::Messages;
use std::collections::{BTreeMap, BTreeSet};

/// Bundles that are given up in a turn because they are idle: 1 ms.
pub const TURN_BUNDLES_MAX: usize = 4096;
/// Bytes that take as long to free as a small bundle takes to be given up.
const BUNDLE_BYTES: usize = 32 << 10;

/// An open bundle.
pub struct Bundle {
    /// `OFPBF_*` of the message that opened it: whether it is atomic and ordered.
    pub flags: u16,
    /// The controller closed it: it takes no more messages, and waits for its commit.
    pub closed: bool,
    /// The messages that the commit executes.
    pub messages: Messages,
    /// When it was last added to, ns.
    pub used: u64,
    /// The message that opened it, for the error when it is given up.
    pub opening: Vec<u8>,
}

impl Bundle {
    /// Bytes that are kept for it.
    fn held(&self) -> usize {
        size_of::<Self>() + self.messages.held() + self.opening.len()
    }
}

/// Open bundles by id: their bytes and the one that is idle for longest are known without a look at
/// all of them, so that a controller with many costs as much as one with few.
#[derive(Default)]
pub struct OpenBundles {
    by_id: BTreeMap<u32, Bundle>,
    /// When each was last used (ns) and its id, by the time.
    by_use: BTreeSet<(u64, u32)>,
    held: usize,
}

impl OpenBundles {
    /// Number of open bundles.
    pub fn count(&self) -> usize {
        self.by_id.len()
    }

    /// Bytes that are kept for all of them.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Adds a bundle; there is none with this id.
    pub fn insert(&mut self, id: u32, bundle: Bundle) {
        debug_assert!(!self.by_id.contains_key(&id));
        self.held += bundle.held();
        self.by_use.insert((bundle.used, id));
        self.by_id.insert(id, bundle);
    }

    /// Takes a bundle out. Whoever changes it puts it back with [`OpenBundles::insert`].
    pub fn remove(&mut self, id: u32) -> Option<Bundle> {
        let bundle = self.by_id.remove(&id)?;
        self.by_use.remove(&(bundle.used, id));
        self.held -= bundle.held();
        Some(bundle)
    }

    /// Takes out the bundle that is idle for longest, if that is more than `timeout` ns, and if
    /// some of this turn's bundles are left ([`TURN_BUNDLES_MAX`]).
    pub fn next_idle(&mut self, now: u64, timeout: u64, left: &mut usize) -> Option<Bundle> {
        let (used, id) = *self.by_use.first()?;
        if *left == 0 || now.saturating_sub(used) <= timeout {
            return None;
        }
        let bundle = self.remove(id)?;
        *left = left.saturating_sub(1 + bundle.held() / BUNDLE_BYTES);
        Some(bundle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(bundles: &mut OpenBundles, id: u32, bytes: usize) {
        let (messages, opening) = (Messages::default(), vec![0; bytes]);
        bundles.insert(id, Bundle { flags: 0, closed: false, messages, used: 5, opening });
    }

    #[test]
    fn few_idle_bundles_are_given_up_in_a_turn_however_many_there_are() {
        let mut all = OpenBundles::default();
        (0..10_000).for_each(|id| open(&mut all, id, 16));
        let turn = |all: &mut OpenBundles, now| {
            let mut left = TURN_BUNDLES_MAX;
            std::iter::from_fn(|| all.next_idle(now, 10, &mut left)).count()
        };
        assert_eq!([15, 16, 16, 16].map(|now| turn(&mut all, now)), [0, 4096, 4096, 1808]);
        (0..100).for_each(|id| open(&mut all, id, TURN_BUNDLES_MAX / 4 * BUNDLE_BYTES));
        assert_eq!((turn(&mut all, 16), all.count()), (4, 96), "large ones");
    }
}
