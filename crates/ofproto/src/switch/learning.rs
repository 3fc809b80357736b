//! Learned flows: what the control side does with what translations say packets teach.
//!
//! A translation makes the flow-mod, and the control side executes it when it takes the decision's effects:
//! at once for packet-outs and traces, in its next turn for packets of workers. A flow that is there already
//! is renewed, as each look at the traffic of a cached decision does. What ports teach is bounded by port.

use crate::switch::Switch;
use crate::tables::counters::FlowRec;
use crate::tables::table::Flow;
use crate::types::BridgeId;
use flow::PortNo;
use openflow::{Action, FlowMod, FlowModCommand, Instruction, Learn, Match, TABLE_ALL, learn_flag};
use rpds::HashTrieMapSync;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use sync::{Domain, Published};

/// Flows that a port's packets may teach per second, and at once. More than control executes in that time;
/// what is too much comes again with the next look at the traffic of its decision.
pub(crate) const PORT_FLOWS_RATE: u64 = 50_000;
pub(crate) const PORT_FLOWS_BURST: u64 = 65_536;
/// Flows that wait for the end of a change of many steps.
const DEFERRED_FLOWS_MAX: usize = 4096;

/// A flow that a packet teaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LearnedFlow {
    pub bridge: u32,
    /// The datapath port that the packet came in on.
    pub port: PortNo,
    pub limit: u32,
    /// A strict modification, which adds what is not there.
    pub flow: FlowMod,
}

/// A rule whose timeouts shrink, since a TCP connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fin {
    /// The rule's credit id.
    pub rule: u32,
    pub idle: u16,
    pub hard: u16,
}

/// Table and cookie.
pub(crate) type Place = (u8, u64);
/// How many flows there are of the places that some learn action limits.
pub(crate) type Counts = HashTrieMapSync<Place, Arc<AtomicU32>>;

/// What a bridge knows of its learn actions.
pub(crate) struct Learning {
    /// How many flows would have what they taught deleted with them.
    owners: HashMap<Place, u32>,
    counts: Counts,
    pub published: Arc<Published<Counts>>,
}

impl Learning {
    pub fn new(domain: Domain) -> Learning {
        let published = Arc::new(Published::new(domain, Counts::default()));
        Learning { owners: HashMap::new(), counts: Counts::default(), published }
    }
}

/// Tokens of a port.
#[derive(Clone, Copy)]
struct Bucket {
    tokens: u64,
    at_ns: u64,
}

/// What learning keeps over all bridges.
#[derive(Default)]
pub(crate) struct Learned {
    buckets: BTreeMap<PortNo, Bucket>,
    deferred: Vec<LearnedFlow>,
    /// Flows that were not learned: too many of their port, or while a change was under way.
    limited: u64,
    /// Places whose last owner went.
    dead: Vec<(BridgeId, Place)>,
}

impl Learned {
    pub(crate) fn admits(&mut self, port: PortNo, now: u64) -> bool {
        let full = Bucket { tokens: PORT_FLOWS_BURST, at_ns: now };
        let b = self.buckets.entry(port).or_insert(full);
        let fresh = now.saturating_sub(b.at_ns).saturating_mul(PORT_FLOWS_RATE) / 1_000_000_000;
        if fresh > 0 {
            *b = Bucket { tokens: (b.tokens + fresh).min(PORT_FLOWS_BURST), at_ns: now };
        }
        let admitted = b.tokens > 0;
        b.tokens -= u64::from(admitted);
        self.limited += u64::from(!admitted);
        admitted
    }
}

/// The learn actions of instructions, those of clones included.
pub(crate) fn learns(list: &[Instruction]) -> Vec<&Learn> {
    fn inside<'a>(a: &'a Action, out: &mut Vec<&'a Learn>) {
        match a {
            Action::Learn(l) => out.push(l),
            Action::Clone(inner) => inner.iter().for_each(|a| inside(a, out)),
            _ => {}
        }
    }
    let mut out = Vec::new();
    for i in list {
        if let Instruction::Apply(actions) = i {
            actions.iter().for_each(|a| inside(a, &mut out));
        }
    }
    out
}

impl Switch {
    /// Flows that packets taught and that were not made: too many of one port, or during a long change.
    pub fn flows_not_learned(&self) -> u64 {
        self.learned.limited
    }

    /// Makes a flow that a packet taught, or renews it. `used`: when the packet came, ns.
    pub(crate) fn learn_flow(&mut self, l: &LearnedFlow, used: u64) {
        if self.renew(l, used) {
            return;
        }
        let known = self.bridge(BridgeId(l.bridge)).is_ok();
        if !known || self.is_limited(l) || !self.learned.admits(l.port, used) {
            return;
        }
        if !self.busy() {
            // What may be refused was checked when the learning flow came, but for a table of the switch's own.
            let _ = self.flow_mod(BridgeId(l.bridge), &l.flow, used);
            return;
        }
        match self.learned.deferred.len() < DEFERRED_FLOWS_MAX {
            true => self.learned.deferred.push(l.clone()),
            false => self.learned.limited += 1,
        }
    }

    /// Is the very flow there? Then its timeouts begin again.
    fn renew(&mut self, l: &LearnedFlow, used: u64) -> bool {
        let Ok(b) = self.bridge(BridgeId(l.bridge)) else { return false };
        let Ok(matching) = crate::tables::tlv::fitted(b, &l.flow.matching) else { return false };
        let (key, mask) = crate::tables::tlv::in_rule(&matching);
        let rule = b
            .tables
            .get(l.flow.table)
            .and_then(|t| t.find_exact(&key, &mask, l.flow.priority, self.version()));
        let same = |f: &Flow| {
            let cookie = l.flow.cookie == u64::MAX || f.cookie == l.flow.cookie;
            cookie && *f.instructions == *l.flow.instructions
        };
        let Some(rule) = rule.filter(|r| same(r.value())) else { return false };
        if let Some(rec) = self.slots.flow_mut(rule.value().id) {
            rec.modified = rec.modified.max(used);
        }
        true
    }

    fn is_limited(&self, l: &LearnedFlow) -> bool {
        let Ok(b) = self.bridge(BridgeId(l.bridge)) else { return true };
        let count = b.learning.counts.get(&(l.flow.table, l.flow.cookie));
        l.limit > 0 && count.is_some_and(|n| n.load(Relaxed) >= l.limit)
    }

    /// Reduces a rule's timeouts.
    pub(crate) fn fin(&mut self, f: &Fin) {
        let shrink = |to: u16, t: &mut u16| {
            if to != 0 && (*t == 0 || *t > to) {
                *t = to;
            }
        };
        let Some(rec) = self.slots.flow_mut(f.rule) else { return };
        let before = (rec.idle, rec.hard);
        shrink(f.idle, &mut rec.idle);
        shrink(f.hard, &mut rec.hard);
        if before != (rec.idle, rec.hard) {
            let rec: FlowRec = rec.clone();
            self.set_timer(&rec, f.rule);
        }
    }

    /// A flow comes or goes: what its learn actions are owners of, and what they count.
    pub(crate) fn note_learning(&mut self, id: BridgeId, table: u8, flow: &Flow, added: bool) {
        if let Ok(b) = self.bridge(id)
            && !b.learning.counts.is_empty()
            && let Some(n) = b.learning.counts.get(&(table, flow.cookie))
        {
            let one = if added { 1 } else { u32::MAX };
            n.store(n.load(Relaxed).wrapping_add(one), Relaxed);
        }
        if !flow.learns {
            return;
        }
        for l in learns(&flow.instructions) {
            let place = (l.table, l.cookie);
            if added && l.limit > 0 {
                self.count_from_now_on(id, place);
            }
            if l.flags & learn_flag::DELETE_LEARNED != 0 {
                self.note_owner(id, place, added);
            }
        }
    }

    fn note_owner(&mut self, id: BridgeId, place: Place, added: bool) {
        let Ok(b) = self.bridge_mut(id) else { return };
        let n = b.learning.owners.entry(place).or_default();
        *n = if added { *n + 1 } else { n.saturating_sub(1) };
        if *n == 0 {
            b.learning.owners.remove(&place);
            self.learned.dead.push((id, place));
        }
    }

    /// Some learn action limits the flows of a place.
    fn count_from_now_on(&mut self, id: BridgeId, place: Place) {
        let version = self.version() + 1;
        let Ok(b) = self.bridge_mut(id) else { return };
        if b.learning.counts.contains_key(&place) {
            return;
        }
        let any = Match::default();
        let of_cookie = |t: &crate::tables::table::Table| {
            t.within(&any.key, &any.mask, version, |r| r.value().cookie == place.1).len()
        };
        let n = b.tables.get(place.0).map_or(0, of_cookie);
        b.learning.counts.insert_mut(place, Arc::new(AtomicU32::new(n as u32)));
        b.learning.published.publish(b.learning.counts.clone());
    }

    /// After a change: what its flows had taught goes with them, and what waited for its end is learned.
    pub(crate) fn after_change(&mut self, now: u64) {
        for (id, (table, cookie)) in std::mem::take(&mut self.learned.dead) {
            let owned =
                |b: &crate::bridge::Bridge| b.learning.owners.contains_key(&(table, cookie));
            if table == TABLE_ALL || self.bridge(id).is_ok_and(owned) {
                continue;
            }
            let all = FlowMod::new(FlowModCommand::Delete, table, Match::default());
            let all = FlowMod { cookie_old: cookie, cookie_mask: u64::MAX, ..all };
            let _ = self.flow_mod(id, &all, now);
        }
        for l in std::mem::take(&mut self.learned.deferred) {
            let _ = self.flow_mod(BridgeId(l.bridge), &l.flow, now);
        }
    }
}
