//! A group in two forms: as packets see it, and as the control side keeps it.

use crate::tables::memory::bytes;
use openflow::{Bucket, GroupMod, GroupType};
use std::sync::Arc;

/// A group as packets see it.
pub(crate) struct GroupView {
    pub kind: GroupType,
    pub buckets: Vec<BucketView>,
    /// Credit id of the whole group.
    pub credit: u32,
    /// The fields that are hashed, and which bits of each.
    pub selection_fields: Vec<(flow::Field, u128)>,
    /// Start value of the hash. The hash of headers is the same for both directions of a
    /// connection, as dp_hash's SYM_L4 is.
    pub selection_param: u64,
}

/// A bucket as packets see it, with its credit id.
pub(crate) struct BucketView {
    pub bucket: Bucket,
    pub credit: u32,
}

/// A group as the control side keeps it.
#[derive(Clone)]
pub(crate) struct GroupRec {
    pub spec: GroupMod,
    pub created: u64,
    pub view: Arc<GroupView>,
}

impl GroupRec {
    /// Its places, by which its bridge's groups are bounded.
    pub fn size(&self) -> usize {
        places(&self.spec.buckets)
    }

    pub fn credits(&self) -> impl Iterator<Item = u32> + use<> {
        let ids: Vec<u32> = self.view.buckets.iter().map(|b| b.credit).collect();
        ids.into_iter().chain([self.view.credit])
    }
}

/// Bytes of actions that count as a bucket: some dozen times as many as most buckets have.
const PLACE_BYTES: usize = 512;

/// Places of a group with these buckets: one for each, one for the group, and one for each 512
/// bytes of actions, which are kept as they were given and as packets see them.
pub(crate) fn places(buckets: &[Bucket]) -> usize {
    1 + buckets.iter().map(|b| 1 + 2 * bytes(&b.actions) / PLACE_BYTES).sum::<usize>()
}
