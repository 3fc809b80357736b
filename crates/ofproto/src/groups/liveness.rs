//! The groups of a bridge as packets see them, and which of them are live.
//!
//! A group is live if one of its buckets is; a bucket is live if it watches nothing, or a live
//! port, or a live group. This is computed when a group or port changes, along the buckets that
//! watch it. Packets read one bit per group, and never follow `watch_group`. Groups do not watch
//! themselves through others ([`Switch::group_mod`](crate::Switch::group_mod) refuses that).

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

#[derive(Clone)]
struct Entry {
    view: Arc<GroupView>,
    /// Number of live buckets.
    buckets: u32,
    /// The liveness by which the buckets that watch this group were last updated.
    live: bool,
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
}

impl Groups {
    pub fn get(&self, id: u32) -> Option<&GroupView> {
        self.groups.get(&id).map(|e| &*e.view)
    }

    /// True if the group exists and has a live bucket.
    pub fn live(&self, id: u32) -> bool {
        self.groups.get(&id).is_some_and(|e| e.live)
    }

    /// True if a bucket watches the group, or an action of a bucket uses it.
    pub fn is_used(&self, id: u32) -> bool {
        self.has_users(Link::Group(id)) || self.has_users(Link::Named(id))
    }

    /// True if a bucket watches the port.
    pub fn watches_port(&self, port: OfPort) -> bool {
        self.ports.contains_key(&port)
    }

    /// Updates which ports are live, if their `generation` has changed since the last call. False:
    /// nothing changed.
    pub fn see_ports(&mut self, generation: u64, live: impl Fn(OfPort) -> bool) -> bool {
        if generation == self.generation {
            return false;
        }
        self.generation = generation;
        let differs = |(port, was): (&OfPort, &bool)| (live(*port) != *was).then_some(*port);
        let changed: Vec<OfPort> = self.ports.iter().filter_map(differs).collect();
        changed.iter().for_each(|p| self.spread(Link::Port(*p), live(*p)));
        !changed.is_empty()
    }

    /// Adds a group, or replaces the one with its number.
    pub fn insert(&mut self, id: u32, view: Arc<GroupView>, live: impl Fn(OfPort) -> bool) {
        let old = self.groups.get(&id).cloned();
        if let Some(old) = &old {
            self.unwatch(id, &old.view.buckets);
        }
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
        }
        let buckets = view.buckets.iter().filter(|b| self.bucket_lives(b)).count() as u32;
        let was = old.is_some_and(|o| o.live);
        self.groups.insert_mut(id, Entry { view, buckets, live: was });
        if was != (buckets > 0) {
            self.spread(Link::Group(id), buckets > 0);
        }
    }

    pub fn remove(&mut self, id: u32) {
        let Some(old) = self.groups.get(&id).cloned() else { return };
        self.unwatch(id, &old.view.buckets);
        if old.live {
            self.spread(Link::Group(id), false);
        }
        self.groups.remove_mut(&id);
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

    /// Updates the live buckets after what `first` names became live or not live, and continues
    /// with the groups whose liveness changes by that. All changes are in one direction, so each
    /// bucket is visited at most once for each of the two things that it watches.
    fn spread(&mut self, first: Link, live: bool) {
        let mut todo = vec![first];
        while let Some(w) = todo.pop() {
            match w {
                Link::Port(p) => self.ports.insert_mut(p, live),
                Link::Group(g) | Link::Named(g) => {
                    if let Some(e) = self.groups.get_mut(&g) {
                        e.live = live;
                    }
                }
            }
            let all = self.links.range((w, 0, 0)..=(w, u32::MAX, u32::MAX));
            let all: Vec<(u32, usize)> = all.map(|(_, g, b)| (*g, *b as usize)).collect();
            for (group, bucket) in all {
                step();
                let Some(e) = self.groups.get(&group) else { continue };
                let other = watches(&e.view.buckets[bucket].bucket).find(|o| *o != w);
                if other.is_some_and(|o| self.is_live(o)) {
                    continue;
                }
                let Some(e) = self.groups.get_mut(&group) else { continue };
                e.buckets = if live { e.buckets + 1 } else { e.buckets - 1 };
                if e.live != live && e.buckets == u32::from(live) {
                    todo.push(Link::Group(group));
                }
            }
        }
    }
}
