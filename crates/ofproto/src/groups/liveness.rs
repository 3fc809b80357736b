//! The groups of a bridge as packets see them, and which of them are live.
//!
//! A group is live if one of its buckets is; a bucket is live if it watches nothing, or a live
//! port, or a live group. This is computed when a group or port changes, along the buckets that
//! watch it. Packets read one bit per group, and never follow `watch_group`. Groups do not watch
//! themselves through others ([`Switch::group_mod`](crate::Switch::group_mod) refuses that).
//!
//! Of a change of which very many buckets have to be notified, some are notified at a time
//! ([`Groups::go_on`]): a guest may cause such changes by its link, and controllers by few bytes.

use super::group::{BucketView, GroupView};
use crate::work::step;
use openflow::{Action, Bucket, GROUP_ANY, OfPort, port};
use rpds::{HashTrieMapSync, RedBlackTreeSetSync};
use std::sync::Arc;

/// Something to which a bucket refers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Link {
    /// A port that the bucket watches.
    Port(OfPort),
    /// A group that the bucket watches.
    Group(u32),
    /// A group that the bucket's actions use.
    Named(u32),
}

/// What a bucket watches.
fn watches(b: &Bucket) -> impl Iterator<Item = Link> + use<> {
    let port = (b.watch_port != port::ANY).then_some(Link::Port(b.watch_port));
    let group = (b.watch_group != GROUP_ANY).then_some(Link::Group(b.watch_group));
    port.into_iter().chain(group)
}

/// Everything to which a bucket refers.
fn links(b: &Bucket) -> Vec<Link> {
    let mut named = Vec::new();
    names(&b.actions, &mut named);
    watches(b).chain(named.into_iter().map(Link::Named)).collect()
}

/// Adds the groups that actions use to `out`.
pub(crate) fn names(actions: &[Action], out: &mut Vec<u32>) {
    for a in actions {
        step();
        match a {
            Action::Group(g) => out.push(*g),
            Action::Clone(inner) => names(inner, out),
            _ => {}
        }
    }
}

/// Buckets that are notified at once of what they watch, at most: less than 10 ms' work. It is more
/// than other groups have watch one port or group.
const NOTIFIED_AT_ONCE_MAX: usize = 4096;

#[derive(Clone)]
struct Entry {
    view: Arc<GroupView>,
    /// The live buckets, a bit each.
    alive: Arc<[u64]>,
    /// Their number.
    buckets: u32,
}

impl Entry {
    fn live(&self) -> bool {
        self.buckets > 0
    }

    fn is_alive(&self, bucket: usize) -> bool {
        self.alive[bucket / 64] >> (bucket % 64) & 1 != 0
    }

    fn set_alive(&mut self, bucket: usize, alive: bool) {
        Arc::make_mut(&mut self.alive)[bucket / 64] ^= 1 << (bucket % 64);
        self.buckets = if alive { self.buckets + 1 } else { self.buckets - 1 };
    }
}

/// Which buckets are still to be notified of what they watch. A bucket that is notified looks at
/// what it watches then, so it does no harm to notify one twice.
#[derive(Clone, Default)]
struct Pending {
    /// The port or group of which buckets are being notified, and the next of them.
    current: Option<(Link, (u32, u32))>,
    /// Ports and groups of which the buckets come next, and whether these are live. What is not
    /// live any more comes first: liveness then changes in one direction after the other, and that
    /// of each group at most once in each.
    next: RedBlackTreeSetSync<(bool, Link)>,
}

impl Pending {
    fn is_empty(&self) -> bool {
        self.current.is_none() && self.next.is_empty()
    }

    fn add(&mut self, link: Link, live: bool) {
        self.next.remove_mut(&(!live, link));
        self.next.insert_mut((live, link));
    }

    fn pop(&mut self) -> Option<(Link, (u32, u32))> {
        let first = *self.next.first()?;
        self.next.remove_mut(&first);
        Some((first.1, (0, 0)))
    }
}

/// Groups by number. A copy is cheap, as both copies share what is not changed.
#[derive(Clone, Default)]
pub(crate) struct Groups {
    groups: HashTrieMapSync<u32, Entry>,
    /// Watched ports, and whether they were live at the last call of [`Groups::see_ports`].
    ports: HashTrieMapSync<OfPort, bool>,
    /// What buckets refer to, with the group and the number of the bucket.
    links: RedBlackTreeSetSync<(Link, u32, u32)>,
    /// The generation of the bridge's ports at that call.
    generation: u64,
    pending: Pending,
}

impl Groups {
    pub fn get(&self, id: u32) -> Option<&GroupView> {
        self.groups.get(&id).map(|e| &*e.view)
    }

    /// True if the group exists and has a live bucket.
    pub fn live(&self, id: u32) -> bool {
        self.groups.get(&id).is_some_and(Entry::live)
    }

    /// True if a bucket watches the group, or an action of a bucket uses it.
    pub fn is_used(&self, id: u32) -> bool {
        self.has_users(Link::Group(id)) || self.has_users(Link::Named(id))
    }

    /// True if a bucket watches the port.
    pub fn watches_port(&self, port: OfPort) -> bool {
        self.ports.contains_key(&port)
    }

    /// Notes which ports are live, if their `generation` has changed since the last call. False:
    /// nothing changed.
    pub fn see_ports(&mut self, generation: u64, live: impl Fn(OfPort) -> bool) -> bool {
        if generation == self.generation {
            return false;
        }
        self.generation = generation;
        let differs = |(port, was): (&OfPort, &bool)| (live(*port) != *was).then_some(*port);
        let changed: Vec<OfPort> = self.ports.iter().filter_map(differs).collect();
        changed.iter().for_each(|p| self.see_port(*p, live(*p)));
        !changed.is_empty()
    }

    /// Does what [`Groups::see_ports`] does after one port has changed. False: nothing changed.
    pub fn see_changed(
        &mut self,
        port: OfPort,
        generation: u64,
        live: impl Fn(OfPort) -> bool,
    ) -> bool {
        if generation != self.generation + 1 {
            return self.see_ports(generation, live);
        }
        self.generation = generation;
        let is = live(port);
        let changed = self.ports.get(&port).is_some_and(|was| *was != is);
        if changed {
            self.see_port(port, is);
        }
        changed
    }

    fn see_port(&mut self, port: OfPort, live: bool) {
        self.ports.insert_mut(port, live);
        self.pending.add(Link::Port(port), live);
    }

    /// Adds a group, or replaces the one with its number.
    pub fn insert(&mut self, id: u32, view: Arc<GroupView>, live: impl Fn(OfPort) -> bool) {
        let was = self.live(id);
        if let Some(old) = self.groups.get(&id).map(|e| e.view.clone()) {
            self.unwatch(id, &old.buckets);
        }
        let (mut alive, mut buckets) = (vec![0u64; view.buckets.len().div_ceil(64)], 0);
        for (i, b) in view.buckets.iter().enumerate() {
            step();
            for link in links(&b.bucket) {
                self.links.insert_mut((link, id, i as u32));
                if let Link::Port(p) = link
                    && !self.ports.contains_key(&p)
                {
                    self.ports.insert_mut(p, live(p));
                }
            }
            if self.bucket_lives(b) {
                alive[i / 64] |= 1 << (i % 64);
                buckets += 1;
            }
        }
        self.groups.insert_mut(id, Entry { view, alive: alive.into(), buckets });
        self.changed(id, was);
    }

    pub fn remove(&mut self, id: u32) {
        let (was, Some(old)) = (self.live(id), self.groups.get(&id).cloned()) else { return };
        self.unwatch(id, &old.view.buckets);
        self.groups.remove_mut(&id);
        self.changed(id, was);
    }

    /// A group changed that was live before, or not.
    fn changed(&mut self, id: u32, was: bool) {
        let (link, live) = (Link::Group(id), self.live(id));
        if was != live && self.has_users(link) {
            self.pending.add(link, live);
        }
    }

    fn bucket_lives(&self, b: &BucketView) -> bool {
        let mut watched = watches(&b.bucket).peekable();
        watched.peek().is_none() || watched.any(|w| self.is_live(w))
    }

    fn is_live(&self, link: Link) -> bool {
        match link {
            Link::Port(p) => self.ports.get(&p).is_some_and(|live| *live),
            Link::Group(g) | Link::Named(g) => self.live(g),
        }
    }

    fn has_users(&self, link: Link) -> bool {
        self.links.range((link, 0, 0)..).next().is_some_and(|(to, _, _)| *to == link)
    }

    fn unwatch(&mut self, id: u32, buckets: &[BucketView]) {
        for (i, b) in buckets.iter().enumerate() {
            step();
            for link in links(&b.bucket) {
                self.links.remove_mut(&(link, id, i as u32));
                if let Link::Port(p) = link
                    && !self.has_users(link)
                {
                    self.ports.remove_mut(&p);
                }
            }
        }
    }

    /// True if some buckets still have to be notified of what they watch.
    pub fn is_behind(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Notifies as many buckets as are notified at once. Returns how many these were.
    pub fn catch_up(&mut self) -> usize {
        self.go_on(NOTIFIED_AT_ONCE_MAX)
    }

    /// Notifies about `n` buckets, and with them the groups whose liveness changes by that. Returns
    /// how many were notified.
    pub fn go_on(&mut self, n: usize) -> usize {
        let mut left = n;
        while left > 0
            && let Some((link, from)) = self.pending.current.take().or_else(|| self.pending.pop())
        {
            let all = self.links.range((link, from.0, from.1)..=(link, u32::MAX, u32::MAX));
            let some: Vec<(u32, u32)> = all.take(left).map(|(_, g, b)| (*g, *b)).collect();
            if some.len() == left
                && let Some((group, bucket)) = some.last()
            {
                self.pending.current = Some((link, (*group, bucket + 1)));
            }
            left -= some.len().max(1);
            some.into_iter().for_each(|(group, bucket)| self.notify(group, bucket as usize));
        }
        n - left
    }

    /// Finds out whether a bucket is live.
    fn notify(&mut self, group: u32, bucket: usize) {
        step();
        let Some(e) = self.groups.get(&group) else { return };
        let (was, alive) = (e.live(), self.bucket_lives(&e.view.buckets[bucket]));
        if e.is_alive(bucket) == alive {
            return;
        }
        if let Some(e) = self.groups.get_mut(&group) {
            e.set_alive(bucket, alive);
        }
        self.changed(group, was);
    }
}
