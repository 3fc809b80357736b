//! The groups of a bridge, at all versions that packets may still read.

use super::group::{GroupRec, places};
use super::liveness::Groups;
use super::replaced::Replaced;
use crate::tables::users::Users;
use openflow::Bucket;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use sync::{Domain, Grace, Published};

/// Groups, and the first version that has them; the newest is first. It goes back as far as a
/// reader may look.
pub(crate) type GroupsAt = Box<[(u64, Arc<Groups>)]>;

/// The control side's copy of [`GroupsAt`].
#[derive(Default)]
pub(crate) struct GroupHistory(VecDeque<(Grace, u64, Arc<Groups>)>);

impl GroupHistory {
    /// Adds the groups that are in use from `version` on. `grace` begins when that version is
    /// published.
    pub fn push(&mut self, grace: Grace, version: u64, groups: Groups, domain: &Domain) {
        self.0.push_front((grace, version, Arc::new(groups)));
        // A reader that begins after a grace period finds that version or a later one.
        if let Some(i) = self.0.iter().position(|(g, _, _)| domain.passed(*g)) {
            self.0.truncate(i + 1);
        }
    }

    pub fn view(&self) -> GroupsAt {
        self.0.iter().map(|(_, version, groups)| (*version, groups.clone())).collect()
    }
}

/// Groups of a bridge and their buckets together, and places of their actions, at most: about 1 GB,
/// and a link that goes down has all of them looked at that watch it.
pub(crate) const GROUPS_BRIDGE_MAX: usize = 1 << 20;

/// The groups of a bridge, as the control side keeps them.
pub(crate) struct GroupTable {
    by_id: BTreeMap<u32, GroupRec>,
    /// Places of all groups together.
    size: usize,
    pub index: Arc<Published<GroupsAt>>,
    pub history: GroupHistory,
    /// The groups that packets see now.
    pub shown: Groups,
    /// Number of changes of the bridge's ports so far.
    pub port_changes: u64,
    /// How often flows name a group, by group id.
    pub refs: HashMap<u32, u32>,
    /// The flows that name each group.
    pub users: Users,
    /// Counters that wait because groups changed or went.
    pub replaced: Replaced,
}

impl GroupTable {
    pub fn new(domain: Domain) -> GroupTable {
        GroupTable {
            by_id: BTreeMap::new(),
            size: 0,
            index: Arc::new(Published::new(domain, GroupsAt::default())),
            history: GroupHistory::default(),
            shown: Groups::default(),
            port_changes: 0,
            refs: HashMap::new(),
            users: Users::default(),
            replaced: Replaced::default(),
        }
    }

    /// All groups by number.
    pub fn by_id(&self) -> &BTreeMap<u32, GroupRec> {
        &self.by_id
    }

    /// True if there is room for a group of these buckets, in place of the one of its number.
    pub fn has_room(&self, id: u32, buckets: &[Bucket]) -> bool {
        let old = self.by_id.get(&id).map_or(0, GroupRec::size);
        self.size - old + places(buckets) <= GROUPS_BRIDGE_MAX
    }

    /// Adds a group; the one that it replaces.
    pub fn put(&mut self, id: u32, group: GroupRec) -> Option<GroupRec> {
        self.size += group.size();
        let old = self.by_id.insert(id, group);
        self.size -= old.as_ref().map_or(0, GroupRec::size);
        old
    }

    /// Takes a group out.
    pub fn take(&mut self, id: u32) -> Option<GroupRec> {
        let old = self.by_id.remove(&id);
        self.size -= old.as_ref().map_or(0, GroupRec::size);
        old
    }

    /// Takes all groups out.
    pub fn take_all(&mut self) -> BTreeMap<u32, GroupRec> {
        self.size = 0;
        std::mem::take(&mut self.by_id)
    }
}
