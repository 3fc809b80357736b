//! A group as packets see it, and as the control side keeps it.

use openflow::{Bucket, GroupMod, GroupType};
use std::sync::Arc;

/// A group.
pub(crate) struct GroupView {
    pub kind: GroupType,
    pub buckets: Vec<BucketView>,
    /// Credit id of the whole group.
    pub credit: u32,
    pub selection_fields: Vec<flow::Field>,
    /// What the hash begins with; the hash of headers is always alike in both directions, as
    /// dp_hash's SYM_L4.
    pub selection_param: u64,
}

/// A bucket and its credit id.
pub(crate) struct BucketView {
    pub bucket: Bucket,
    pub credit: u32,
}

/// A group.
#[derive(Clone)]
pub(crate) struct GroupRec {
    pub spec: GroupMod,
    pub created: u64,
    pub view: Arc<GroupView>,
}

impl GroupRec {
    pub fn credits(&self) -> impl Iterator<Item = u32> + use<> {
        let ids: Vec<u32> = self.view.buckets.iter().map(|b| b.credit).collect();
        ids.into_iter().chain([self.view.credit])
    }
}
