//! The bundles that one connection has open.

use super::bundle::Messages;
use std::collections::{BTreeMap, BTreeSet};

/// An open bundle.
pub struct Bundle {
    /// What its messages do together, as the one that opened it says.
    pub flags: u16,
    /// Takes no more messages.
    pub closed: bool,
    /// What the commit does.
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
    /// (last used, ns; id).
    by_use: BTreeSet<(u64, u32)>,
    held: usize,
}

impl OpenBundles {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.by_id.len()
    }

    /// Bytes that are kept for all of them.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Puts one where none of this id is.
    pub fn insert(&mut self, id: u32, bundle: Bundle) {
        debug_assert!(!self.by_id.contains_key(&id));
        self.held += bundle.held();
        self.by_use.insert((bundle.used, id));
        self.by_id.insert(id, bundle);
    }

    /// Takes one out: to look at it, to change it, for good.
    pub fn remove(&mut self, id: u32) -> Option<Bundle> {
        let bundle = self.by_id.remove(&id)?;
        self.by_use.remove(&(bundle.used, id));
        self.held -= bundle.held();
        Some(bundle)
    }

    /// Takes out the next one that was not used for more than `timeout` ns.
    pub fn next_idle(&mut self, now: u64, timeout: u64) -> Option<Bundle> {
        let (used, id) = *self.by_use.first()?;
        if now.saturating_sub(used) <= timeout {
            return None;
        }
        self.remove(id)
    }
}
