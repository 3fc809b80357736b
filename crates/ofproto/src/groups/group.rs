//! A group in two forms: as packets see it, and as the control side keeps it.

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
    /// Number of its buckets, and one.
    pub fn size(&self) -> usize {
        1 + self.view.buckets.len()
    }

    pub fn credits(&self) -> impl Iterator<Item = u32> + use<> {
        let ids: Vec<u32> = self.view.buckets.iter().map(|b| b.credit).collect();
        ids.into_iter().chain([self.view.credit])
    }
}
