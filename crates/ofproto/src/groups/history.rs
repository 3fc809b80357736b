//! The groups of a bridge, at all versions that packets may still read.

use super::group::GroupRec;
use super::liveness::Groups;
use super::replaced::Replaced;
use crate::tables::users::Users;
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

/// The groups of a bridge, as the control side keeps them.
pub(crate) struct GroupTable {
    pub by_id: BTreeMap<u32, GroupRec>,
    pub index: Arc<Published<GroupsAt>>,
    pub history: GroupHistory,
    /// The groups that packets see now.
    pub shown: Groups,
    /// Number of changes of the bridge's ports so far.
    pub port_changes: u64,
    /// By group id: how often flows name the group.
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
            index: Arc::new(Published::new(domain, GroupsAt::default())),
            history: GroupHistory::default(),
            shown: Groups::default(),
            port_changes: 0,
            refs: HashMap::new(),
            users: Users::default(),
            replaced: Replaced::default(),
        }
    }
}
