//! The switch. The control side owns it, and is the only writer of what packets see.

mod change;
mod evict;
mod expire;
mod fdb;
pub(crate) mod flow_mod;
pub(crate) mod flow_search;
pub(crate) mod groups;
mod hidden;
mod learning;
mod mac_regions;
mod mdb;
mod meters;
mod mirrors;
mod options;
mod outer;
mod packet_out;
pub(crate) mod piece;
mod ports;
mod publish;
mod reach;
pub(crate) mod selecting;
mod stale;
pub(crate) mod stats;
mod table_names;
mod trace;
mod trace_forks;
mod underlay;

use crate::bridge::{Bridge, mac_limit};
use crate::events::{Event, Outbox};
use crate::learned::Learned;
use crate::mcast::members::McastTable;
use crate::meter_table::MeterNumbers;
use crate::published::{PublishedState, Shared, View};
use crate::rewritten::Rewritten;
use crate::tables::counters::{Counter, Slot, Slots};
use crate::tables::table::N_TABLES;
use crate::trace::StateNumbers;
use crate::transaction::Changes;
use crate::translate::effects::Effects;
use crate::translate::failure::{Failure, FailureSlot};
use crate::translate::frozen_store::{States, Sweep};
use crate::translate::pipe::Pipe;
use crate::tunnel::neighbours::Neighbours;
use crate::tunnel::{Solicitation, Underlay};
use crate::types::*;
use action::{Pipeline, Region};
use openflow::OfError;
use std::any::Any;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::RandomState;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use sync::{Guard, Published, Writer};

/// The network under the tunnels.
#[derive(Default)]
pub(crate) struct Tunnels {
    /// Routes, next hops and source ports of tunnels, as published.
    pub underlay: Underlay,
    pub neighbours: Neighbours,
    /// Solicitations of next hops that were not taken yet.
    pub solicitations: Vec<Solicitation>,
}

/// Bridges with their tables, groups and learned addresses. All times are nanoseconds of one
/// monotonic clock of the caller's.
pub struct Switch {
    pub(crate) shared: Arc<Shared>,
    pub(crate) writer: Writer,
    pub(crate) bridges: Vec<Option<Bridge>>,
    /// Bridges or ports changed since they were published.
    unpublished: Cell<bool>,
    pub(crate) slots: Slots,
    pub(crate) outbox: Outbox,
    pub(crate) rewritten: Rewritten,
    pub(crate) changes: Changes,
    pub(crate) reach: reach::Reach,
    pub(crate) tunnels: Tunnels,
    /// Number of packets that taught no address because their port is in no bridge, or in several.
    pub(crate) passed_over: u64,
    pub(crate) sweep: Sweep,
    pub(crate) meter_numbers: MeterNumbers,
    pub(crate) meters_touched_ms: u64,
    pub(crate) learned: Learned,
    /// Members of multicast groups, by bridge, for bridges that snoop.
    pub(crate) mcast: BTreeMap<u32, McastTable>,
    /// Multicast tables of bridges that no longer snoop; housekeeping empties them.
    mcast_gone: Vec<McastTable>,
    /// The timeout policies of zones that have one.
    pub(crate) zone_timeouts: Arc<BTreeMap<u16, u32>>,
    /// Numbers by which texts name the frozen states of packets to controllers.
    pub(crate) state_numbers: StateNumbers,
    /// Bridges of which buckets still have to be notified of what they watch.
    pub(crate) behind: BTreeSet<BridgeId>,
}

impl Switch {
    /// A switch without bridges. Memory that it retires is freed in the domain of `writer`, of
    /// which threads that call [`Pipeline::resolve`] are readers.
    pub fn new(writer: Writer) -> Switch {
        let domain = writer.domain().clone();
        let shared = Shared {
            domain: domain.clone(),
            published: Published::new(domain.clone(), PublishedState::default()),
            continuations: RandomState::new(),
            underlay: Published::new(domain, Default::default()),
            version: AtomicU64::new(1),
            frozen: States::default(),
            failures: FailureSlot::default(),
        };
        Switch {
            shared: Arc::new(shared),
            writer,
            bridges: Vec::new(),
            unpublished: Cell::new(false),
            slots: Slots::default(),
            outbox: Outbox::default(),
            rewritten: Rewritten::default(),
            changes: Changes::default(),
            reach: Default::default(),
            tunnels: Tunnels::default(),
            passed_over: 0,
            sweep: Sweep::default(),
            meter_numbers: MeterNumbers::default(),
            meters_touched_ms: 0,
            learned: Learned::default(),
            mcast: BTreeMap::new(),
            mcast_gone: Vec::new(),
            state_numbers: StateNumbers::default(),
            zone_timeouts: Arc::default(),
            behind: BTreeSet::new(),
        }
    }

    /// The pipeline that PMD threads call. It sees changes of bridges and ports from the next call
    /// of [`Switch::take_regions`] on.
    pub fn pipeline(&self) -> Arc<dyn Pipeline> {
        self.publish_changes();
        Arc::new(Pipe::new(self.shared.clone()))
    }

    /// A guard: what is published stays as long as it lives.
    pub fn pin(&self) -> Guard<'_> {
        self.writer.pin()
    }

    /// What a decision made on this thread reads.
    pub(crate) fn reading(&self) -> View<'_> {
        self.publish_changes();
        View::new(&self.shared, self.writer.pin())
    }

    /// Frees memory that was retired in the domain, by any writer, and that no reader uses any
    /// more.
    pub fn free_retired(&mut self) {
        self.writer.reclaim();
    }

    /// Takes a translation that failed since the last call. While it is not taken, no other one is
    /// kept.
    pub fn take_failure(&self) -> Option<Box<Failure>> {
        self.shared.failures.take()
    }

    /// Takes the regions of packets whose megaflows may be wrong since the last call. All changes
    /// are published before.
    pub fn take_regions(&mut self) -> Vec<Region> {
        self.publish_changes();
        let mut regions = self.outbox.take_regions();
        self.take_mac_regions(&mut regions);
        regions
    }

    /// Says how many bytes the flows of all bridges may take: of one as many as the others leave.
    pub fn set_flow_memory(&mut self, bytes: u64) {
        self.slots.memory.max = bytes;
    }

    /// Takes the events since the last call.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.outbox.events)
    }

    /// Adds a bridge without ports and flows. `now`: monotonic, in ns.
    pub fn add_bridge(
        &mut self,
        name: &str,
        config: BridgeConfig,
        now: u64,
    ) -> Result<BridgeId, ConfigError> {
        if self.find_bridge(name).is_some() {
            return Err(ConfigError::BridgeExists(name.into()));
        }
        let id = self.bridges.len() as u32;
        let miss_base = self.slots.alloc_tables(id, now);
        let ports_credit = self.slots.alloc(Slot::Count(Counter::default()), now);
        let mcast = config.mcast;
        let domain = self.shared.domain.clone();
        let bridge = Bridge::new(id, name, config, domain, (miss_base, ports_credit));
        self.bridges.push(Some(bridge));
        self.configure_mcast(BridgeId(id), mcast);
        self.publish_later();
        Ok(BridgeId(id))
    }

    /// Changes a bridge's settings.
    pub fn configure_bridge(
        &mut self,
        id: BridgeId,
        config: BridgeConfig,
    ) -> Result<(), ConfigError> {
        let b = self.bridge_mut(id)?;
        if b.config == config {
            return Ok(());
        }
        let before =
            BridgeConfig { miss_to_controller: config.miss_to_controller, ..b.config.clone() };
        let misses_only = before == config;
        b.macs.max = mac_limit(&config);
        b.macs.aging_ns = u64::from(config.mac_aging_s) * 1_000_000_000;
        let mcast = config.mcast;
        b.config = config;
        b.forget_names();
        b.forget_victims();
        let misses = b.miss_base..b.miss_base + N_TABLES as u32;
        self.configure_mcast(id, mcast);
        self.publish_later();
        match misses_only {
            true => self.outbox.missed.push(misses),
            false => self.bridge_changed(id.0),
        }
        Ok(())
    }

    /// Removes a bridge and everything in it, without events.
    pub fn remove_bridge(&mut self, id: BridgeId, now: u64) -> Result<(), ConfigError> {
        self.bridge_mut(id)?;
        self.finish();
        self.clear_flows(id, now);
        match self.published().tunnels.is_empty() {
            true => self.bridge_changed(id.0),
            // Encapsulated packets may pass it.
            false => self.all_changed(),
        }
        let Some(bridge) = self.bridges[id.index()].take() else {
            return Err(ConfigError::NoBridge);
        };
        self.configure_mcast(id, None);
        self.slots.release_tables(bridge.miss_base, now);
        self.slots.release(bridge.ports_credit, now);
        let counts = bridge.patch_counts.values().flat_map(|base| [*base, base + 1]);
        let counts = counts.chain(crate::mirroring::credits(&bridge.mirrors));
        counts.for_each(|c| self.slots.release(c, now));
        bridge
            .groups
            .by_id()
            .values()
            .flat_map(|g| g.credits())
            .for_each(|c| self.slots.release(c, now));
        let meters = bridge.meters.by_id.values();
        self.meter_numbers.give_back(meters.map(|r| r.meter.id()));
        let names: Vec<&str> = bridge.ports.values().map(|p| p.name.as_str()).collect();
        self.forget_neighbours(&names);
        self.publish_later();
        Ok(())
    }

    /// All bridges, with their names.
    pub fn bridges(&self) -> impl Iterator<Item = (BridgeId, &str)> {
        self.bridges.iter().flatten().map(|b| (BridgeId(b.id), b.name.as_str()))
    }

    /// The bridge of that name.
    pub fn find_bridge(&self, name: &str) -> Option<BridgeId> {
        self.bridges().find(|(_, n)| *n == name).map(|(id, _)| id)
    }

    /// A bridge's settings.
    pub fn bridge_config(&self, id: BridgeId) -> Option<&BridgeConfig> {
        self.bridge(id).ok().map(|b| &b.config)
    }

    /// Sets whether some controller wants packets whose TTL expired
    /// ([`openflow::Reason::InvalidTtl`]). If none does they are dropped as `ttl_expired` and not
    /// punted. This affects existing megaflows at once.
    pub fn set_expired_wanted(&mut self, id: BridgeId, on: bool) -> Result<(), ConfigError> {
        self.bridge_mut(id)?.expired_wanted.store(on, Ordering::Relaxed);
        Ok(())
    }

    /// Sets whether changes of a bridge's flows become [`Event::Flow`].
    pub fn set_monitored(&mut self, id: BridgeId, on: bool) -> Result<(), ConfigError> {
        self.bridge_mut(id)?.monitored = on;
        Ok(())
    }

    /// Credits traffic that the datapath counted; `used`: when the last of these packets came, ns.
    pub fn credit(&mut self, id: u32, packets: u64, bytes: u64, used: u64) {
        let (bridge, table, hit) = match self.slots.get_mut(id) {
            Some(Slot::Flow(f)) => {
                f.count.packets += packets;
                f.count.bytes += bytes;
                f.used = f.used.max(used);
                (f.bridge, f.table, true)
            }
            Some(Slot::Count(c)) => {
                c.packets += packets;
                c.bytes += bytes;
                return;
            }
            Some(Slot::Miss { bridge, table }) => (*bridge, *table, false),
            _ => return,
        };
        if let Some(Some(b)) = self.bridges.get_mut(bridge as usize) {
            let rec = &mut b.table_recs[usize::from(table)];
            match hit {
                true => rec.matched += packets,
                false => rec.missed += packets,
            }
        }
    }

    /// Processes the effects of a decision that was made, or whose megaflow had traffic again
    /// (`used`, ns). Returns how many flows it teaches.
    pub fn effects(&mut self, effects: &Arc<dyn Any + Send + Sync>, used: u64) -> usize {
        let Some(e) = effects.downcast_ref::<Effects>() else { return 0 };
        for l in &e.learns {
            self.learn(l.bridge, l.vlan, l.mac, l.port, used);
        }
        e.flows.iter().for_each(|l| self.learn_flow(l, used));
        e.fins.iter().for_each(|f| self.fin(f));
        e.hops.iter().for_each(|h| self.hop(h, used));
        e.snooped.iter().for_each(|s| self.snooped(s, used));
        e.flows.len()
    }

    pub(crate) fn bridge(&self, id: BridgeId) -> Result<&Bridge, ConfigError> {
        self.bridges.get(id.index()).and_then(Option::as_ref).ok_or(ConfigError::NoBridge)
    }

    pub(crate) fn bridge_mut(&mut self, id: BridgeId) -> Result<&mut Bridge, ConfigError> {
        self.bridges.get_mut(id.index()).and_then(Option::as_mut).ok_or(ConfigError::NoBridge)
    }

    /// A bridge to be changed, and a guard to read what is published.
    pub(crate) fn bridge_pinned(
        &mut self,
        id: BridgeId,
    ) -> Result<(&mut Bridge, Guard<'_>), ConfigError> {
        let bridge = self.bridges.get_mut(id.index()).and_then(Option::as_mut);
        Ok((bridge.ok_or(ConfigError::NoBridge)?, self.writer.pin()))
    }

    /// A bridge, for an OpenFlow request. An error cannot be seen: a removed bridge has no
    /// connections.
    pub(crate) fn of_bridge(&self, id: BridgeId) -> Result<&Bridge, OfError> {
        self.bridge(id).map_err(|_| OfError::BadType)
    }

    pub(crate) fn of_bridge_mut(&mut self, id: BridgeId) -> Result<&mut Bridge, OfError> {
        self.bridge_mut(id).map_err(|_| OfError::BadType)
    }

    pub(crate) fn version(&self) -> u64 {
        self.shared.version()
    }

    /// Sets the timeout policies of zones; decisions that commit connections are made anew.
    pub fn set_zone_timeouts(&mut self, policies: BTreeMap<u16, u32>) {
        if *self.zone_timeouts != policies {
            self.zone_timeouts = Arc::new(policies);
            self.publish_later();
            self.all_changed();
        }
    }
}
