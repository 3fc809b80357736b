//! Group-mods, and statistics of groups.

use crate::bridge::Bridge;
use crate::check;
use crate::groups::group::{BucketView, GroupRec, GroupView};
use crate::groups::liveness::{Groups, names};
use crate::switch::Switch;
use crate::switch::piece::Piece;
use crate::tables::counters::{Counter, Slot};
use crate::transaction::{GroupUndo, Remaining, Txn};
use crate::types::BridgeId;
use crate::work::step;
use openflow::{
    Bucket, GROUP_ANY, GroupCommand, GroupMod, GroupStats, GroupType, Match, OfError, OfPort,
    Removed,
};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// The first reserved group id (`OFPG_MAX` + 1); `OFPG_ALL` is one of them.
const RESERVED: u32 = 0xffff_ff01;
/// The id for all groups, in a delete.
const ALL: u32 = 0xffff_fffc;
/// The ids for the first and the last bucket, in an insert or remove (`OFPG_BUCKET_*`).
const BUCKET_FIRST: u32 = 0xffff_fffd;
const BUCKET_LAST: u32 = 0xffff_fffe;
const BUCKET_ALL: u32 = 0xffff_ffff;
/// Buckets of one group, at most: a quarter of the steps that one packet may cause (`budget.rs`).
/// OVN's load balancers have thousands.
const GROUP_BUCKETS_MAX: usize = 16_384;

/// Buckets of all bridges that are notified in a turn of what they watch.
const NOTIFIED_TURN_MAX: usize = 2048;

/// A group-mod that deletes all groups.
pub(crate) fn delete_all() -> GroupMod {
    GroupMod {
        command: GroupCommand::Delete,
        kind: GroupType::All,
        id: ALL,
        buckets: Vec::new(),
        selection_method: String::new(),
        selection_param: 0,
        selection_fields: Vec::new(),
    }
}

impl Switch {
    /// Executes a group-mod. Deleting a group deletes the flows that use it.
    pub fn group_mod(&mut self, id: BridgeId, m: &GroupMod, now: u64) -> Result<(), OfError> {
        self.transact(id, now, |s, txn| s.stage_group(txn, m))
    }

    pub(crate) fn stage_group(&mut self, txn: &mut Txn, m: &GroupMod) -> Result<(), OfError> {
        use GroupCommand as C;
        let exists = self.of_bridge(txn.bridge)?.groups.by_id().contains_key(&m.id);
        if m.id >= RESERVED && matches!(m.command, C::Add | C::AddOrMod) {
            return Err(OfError::GroupInvalid);
        }
        match m.command {
            C::Add if exists => Err(OfError::GroupExists),
            C::Modify if !exists => Err(OfError::GroupUnknown),
            C::Add | C::Modify | C::AddOrMod => self.put_group(txn, m),
            C::Delete => self.delete_group(txn, m.id),
            C::InsertBucket(_) | C::RemoveBucket(_) if !exists => Err(OfError::GroupUnknown),
            C::InsertBucket(at) => self.edit_buckets(txn, m, |b| insert(b, &m.buckets, at)),
            C::RemoveBucket(which) => self.edit_buckets(txn, m, |b| remove(b, which)),
        }
    }

    fn put_group(&mut self, txn: &mut Txn, m: &GroupMod) -> Result<(), OfError> {
        let groups = &mut self.of_bridge_mut(txn.bridge)?.groups;
        if !groups.replaced.has_room(txn.now) || !groups.has_room(m.id, &m.buckets) {
            return Err(OfError::GroupOutOfBuckets);
        }
        txn.cost += self.check_group(txn, m)? + m.buckets.len();
        let mut taken = Vec::new();
        let mut id = |s: &mut Switch| {
            let id = s.slots.alloc(Slot::Count(Counter::default()), txn.now);
            taken.push(id);
            id
        };
        let credit = id(self);
        let mut buckets = Vec::new();
        for b in &m.buckets {
            self.rewritten.add_actions(&b.actions);
            buckets.push(BucketView { bucket: b.clone(), credit: id(self) });
        }
        let selection_fields = m.selection_fields.clone();
        let (kind, selection_param) = (m.kind, m.selection_param);
        let view = Arc::new(GroupView { kind, buckets, credit, selection_fields, selection_param });
        let (group, now) = (m.id, txn.now);
        let b = self.of_bridge_mut(txn.bridge)?;
        let created = b.groups.by_id().get(&group).map_or(now, |o| o.created);
        b.staged_groups(&mut txn.groups).insert(group, view.clone(), |p| b.is_live(p));
        let old = b.groups.put(group, GroupRec { spec: m.clone(), created, view });
        let freed: Vec<u32> = old.iter().flat_map(|o| o.credits()).collect();
        txn.cost += freed.len();
        b.groups.replaced.add(freed.len(), now);
        Switch::push_group_undo(txn, GroupUndo { id: group, old, taken, freed });
        Ok(())
    }

    /// Returns the number of buckets of other groups that were visited.
    fn check_group(&self, txn: &Txn, m: &GroupMod) -> Result<usize, OfError> {
        let b = self.of_bridge(txn.bridge)?;
        if m.buckets.len() > GROUP_BUCKETS_MAX {
            return Err(OfError::GroupOutOfBuckets);
        }
        if m.kind == GroupType::Indirect && m.buckets.len() != 1 {
            return Err(OfError::GroupInvalid);
        }
        if !matches!(m.selection_method.as_str(), "" | "hash" | "dp_hash") {
            return Err(OfError::GroupInvalid);
        }
        if !m.selection_fields.iter().all(|(f, _)| openflow::check::exists(*f)) {
            return Err(OfError::GroupInvalid);
        }
        for bucket in &m.buckets {
            check::bucket(b, &bucket.actions)?;
        }
        let watched = |b: &Bucket, out: &mut Vec<u32>| {
            out.extend((b.watch_group != GROUP_ANY).then_some(b.watch_group));
        };
        let named = |b: &Bucket, out: &mut Vec<u32>| names(&b.actions, out);
        let used = txn.groups.as_ref().unwrap_or(&b.groups.shown).is_used(m.id);
        let mut visited = 0;
        match loops(b, m, used, named, &mut visited) || loops(b, m, used, watched, &mut visited) {
            true => Err(OfError::GroupLoop),
            false => Ok(visited),
        }
    }

    fn delete_group(&mut self, txn: &mut Txn, group: u32) -> Result<(), OfError> {
        let b = self.of_bridge_mut(txn.bridge)?;
        let gone: BTreeMap<u32, GroupRec> = match group {
            ALL => b.groups.take_all(),
            g => b.groups.take(g).map(|rec| (g, rec)).into_iter().collect(),
        };
        let staged = b.staged_groups(&mut txn.groups);
        match group {
            ALL => *staged = Groups::default(),
            g => staged.remove(g),
        }
        let users = b.groups.users.of(gone.keys().copied());
        for (id, old) in gone {
            let freed: Vec<u32> = old.credits().collect();
            txn.cost += freed.len();
            b.groups.replaced.add(freed.len(), txn.now);
            let undo = GroupUndo { id, old: Some(old), taken: Vec::new(), freed };
            Switch::push_group_undo(txn, undo);
        }
        self.cover(txn, &Match::default(), users.len());
        txn.remaining = Remaining::RemoveUsers(users.into_iter(), Removed::GroupDelete);
        Ok(())
    }

    fn edit_buckets(
        &mut self,
        txn: &mut Txn,
        m: &GroupMod,
        edit: impl FnOnce(&mut Vec<Bucket>) -> Result<(), OfError>,
    ) -> Result<(), OfError> {
        let b = self.of_bridge(txn.bridge)?;
        let mut spec = b.groups.by_id().get(&m.id).ok_or(OfError::GroupUnknown)?.spec.clone();
        edit(&mut spec.buckets)?;
        self.put_group(txn, &spec)
    }

    pub(crate) fn group_undo(&mut self, id: BridgeId, undo: GroupUndo) {
        if let Ok(b) = self.bridge_mut(id) {
            match undo.old {
                Some(old) => b.groups.put(undo.id, old),
                None => b.groups.take(undo.id),
            };
        }
        undo.taken.into_iter().for_each(|id| self.slots.release(id, 0));
    }

    /// Makes these groups visible from `version` on.
    pub(crate) fn publish_groups(&mut self, id: BridgeId, version: u64, mut groups: Groups) {
        let Ok(b) = self.bridge(id) else { return };
        groups.see_ports(b.groups.port_changes, |p| b.is_live(p));
        groups.catch_up();
        self.show_groups(id, version, groups);
    }

    fn show_groups(&mut self, id: BridgeId, version: u64, groups: Groups) {
        let domain = self.shared.domain.clone();
        let Ok(b) = self.bridge_mut(id) else { return };
        let behind = groups.is_behind();
        b.groups.shown = groups.clone();
        b.groups.history.push(domain.grace(), version, groups, &domain);
        b.groups.index.publish(b.groups.history.view());
        if behind {
            self.behind.insert(id);
        }
    }

    /// Updates groups after a port was added, removed or changed, as it may be live now, or not
    /// live any more.
    pub(crate) fn ports_changed(&mut self, id: BridgeId, port: OfPort) {
        let version = self.version();
        let Ok(b) = self.bridge_mut(id) else { return };
        b.groups.port_changes += 1;
        let mut groups = b.groups.shown.clone();
        if groups.see_changed(port, b.groups.port_changes, |p| b.is_live(p)) {
            self.publish_groups(id, version, groups);
        }
    }

    /// True if buckets of the bridge still have to be notified of what they watch.
    pub fn is_behind(&self, id: BridgeId) -> bool {
        self.behind.contains(&id)
    }

    /// True if [`Switch::notify_buckets`] has something to do.
    pub fn has_pending_buckets(&self) -> bool {
        !self.behind.is_empty()
    }

    /// Notifies some buckets of what they watch, of each bridge as many. What a bridge decided is
    /// decided again when all of its buckets were notified. True: there are more.
    pub fn notify_buckets(&mut self) -> bool {
        let bridges = std::mem::take(&mut self.behind);
        let share = NOTIFIED_TURN_MAX / bridges.len().max(1);
        let version = self.version();
        for id in bridges {
            let Ok(b) = self.bridge(id) else { continue };
            let mut groups = b.groups.shown.clone();
            groups.go_on(share.max(1));
            self.show_groups(id, version, groups);
            if !self.is_behind(id) {
                self.bridge_changed(id.0);
            }
        }
        !self.behind.is_empty()
    }

    /// Statistics of a group, or of some of all groups (`group` 0xfffffffc): those with numbers
    /// from `from` on.
    pub fn group_stats(
        &self,
        id: BridgeId,
        group: u32,
        from: u32,
        now: u64,
    ) -> Result<Piece<GroupStats>, OfError> {
        let b = self.of_bridge(id)?;
        let one = |id: u32, g: &GroupRec| {
            let total = self.slots.count(g.view.credit);
            let bucket = |b: &BucketView| {
                let c = self.slots.count(b.credit);
                (c.packets, c.bytes)
            };
            GroupStats {
                id,
                ref_count: b.groups.refs.get(&id).copied().unwrap_or(0),
                packets: total.packets,
                bytes: total.bytes,
                duration_ns: now.saturating_sub(g.created),
                buckets: g.view.buckets.iter().map(bucket).collect(),
            }
        };
        let one_group = (group != ALL).then_some(group);
        Ok(Piece::of(b.groups.by_id(), one_group, from, |g| g.view.buckets.len(), one))
    }

    /// Groups as they were defined (arguments as in [`Switch::group_stats`]).
    pub fn group_desc(
        &self,
        id: BridgeId,
        group: u32,
        from: u32,
    ) -> Result<Piece<GroupMod>, OfError> {
        let b = self.of_bridge(id)?;
        let size = |g: &GroupRec| g.spec.buckets.iter().map(|b| 1 + b.actions.len()).sum();
        let one_group = (group != ALL).then_some(group);
        Ok(Piece::of(b.groups.by_id(), one_group, from, size, |_, g| g.spec.clone()))
    }
}

/// True if a group would lead back to itself; `next` says to which groups a bucket leads. Visits
/// each group at most once, and none but the group itself if no other uses it (`used`). Adds the
/// number of its visits to buckets of others to `visited`.
fn loops(
    b: &Bridge,
    m: &GroupMod,
    used: bool,
    next: impl Fn(&Bucket, &mut Vec<u32>),
    visited: &mut usize,
) -> bool {
    let (mut todo, mut seen) = (Vec::new(), HashSet::new());
    m.buckets.iter().for_each(|b| next(b, &mut todo));
    if !used {
        return todo.contains(&m.id);
    }
    while let Some(g) = todo.pop() {
        if g == m.id {
            return true;
        }
        if seen.insert(g)
            && let Some(group) = b.groups.by_id().get(&g)
        {
            step();
            *visited += group.spec.buckets.len();
            group.spec.buckets.iter().for_each(|b| next(b, &mut todo));
        }
    }
    false
}

fn insert(list: &mut Vec<Bucket>, new: &[Bucket], at: u32) -> Result<(), OfError> {
    let ids: HashSet<u32> = new.iter().map(|b| b.id).collect();
    if list.iter().inspect(|_| step()).any(|b| ids.contains(&b.id)) {
        return Err(OfError::GroupBucketExists);
    }
    let at = match at {
        BUCKET_FIRST => 0,
        BUCKET_LAST => list.len(),
        id => 1 + list.iter().position(|b| b.id == id).ok_or(OfError::GroupUnknownBucket)?,
    };
    list.splice(at..at, new.iter().cloned());
    Ok(())
}

fn remove(list: &mut Vec<Bucket>, which: u32) -> Result<(), OfError> {
    match which {
        BUCKET_ALL => list.clear(),
        BUCKET_FIRST => drop(list.drain(..list.len().min(1))),
        BUCKET_LAST => drop(list.pop()),
        id => {
            let at = list.iter().position(|b| b.id == id).ok_or(OfError::GroupUnknownBucket)?;
            list.remove(at);
        }
    }
    Ok(())
}
