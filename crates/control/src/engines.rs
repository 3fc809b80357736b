//! Which copy engine serves which PMD thread (`other_config:vhost-async-support`).
//!
//! Each PMD thread gets an engine of its NUMA node, or of another one, as long as there are any;
//! the others copy by the CPU. A thread that finds that its engine hangs gives it back; it is
//! stopped here, and not used any more.

use crate::vlog;
use dpdk::{DmaEngine, DmaInfo, Eal, VfioMapper};
use std::sync::Arc;
use vhost_user::{Seat, SeatState, Tallied};

const MODULE: &str = "dpif_netdev";

/// The user of a copy engine.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum User {
    /// The engine is free.
    Unused,
    /// The thread of that core.
    Pmd(usize),
    /// The engine failed and is not used any more.
    Barred,
}

pub(crate) struct Device {
    info: DmaInfo,
    pub(crate) user: User,
}

/// The engines, and what they did.
#[derive(Default)]
pub struct Engines {
    pub(crate) enabled: bool,
    /// The devices; None until they are looked for.
    pub(crate) devices: Option<Vec<Device>>,
    /// Cores for which the log says already that there is no engine.
    pub(crate) reported: Vec<usize>,
    /// What engines did whose seats have others now, or none.
    pub(crate) past: Tallied,
}

impl Engines {
    /// True if copies are left to engines.
    pub fn enabled(&self) -> bool {
        self.enabled
    }

    /// All engines: name, NUMA node, and the thread that has it.
    pub fn devices(&self) -> impl Iterator<Item = (&str, Option<usize>, User)> {
        let all = self.devices.iter().flatten();
        all.map(|d| (d.info.name.as_str(), d.info.numa, d.user))
    }

    /// The engine of a core's thread.
    pub(crate) fn device_of(&mut self, core: usize) -> Option<&mut Device> {
        self.devices.as_mut()?.iter_mut().find(|d| d.user == User::Pmd(core))
    }

    /// The name of the engine of a core's thread.
    pub fn name_of(&self, core: usize) -> Option<&str> {
        let mut devices = self.devices.as_ref()?.iter();
        devices.find(|d| d.user == User::Pmd(core)).map(|d| d.info.name.as_str())
    }

    /// What all engines did.
    pub fn totals(&self) -> Tallied {
        let seats = vhost_user::seats();
        seats.iter().fold(self.past, |sum, seat| sum.plus(&seat.tally.read()))
    }

    /// Does what a thread's seat asks for.
    pub(crate) fn look(&mut self, seat: &Arc<Seat>, numa: &dyn Fn(usize) -> usize) {
        // Before its state, which the thread changes before it says that it carried out the order.
        let is_settled = seat.is_settled() && !seat.is_gone();
        for path in seat.take_barred() {
            let name = self.name_of(seat.core).unwrap_or_default();
            vlog::warn!(
                MODULE,
                "vhost-user socket '{path}': copies by DMA device {name} fail too often, as they do \
                 where a guest has no page. They are made by software for a minute."
            );
        }
        match seat.state() {
            SeatState::Stuck => self.stop(seat),
            SeatState::Returned => self.release(seat),
            SeatState::Working if !self.enabled && is_settled => seat.recall(),
            SeatState::Empty if self.enabled && is_settled => {
                self.assign(seat, numa(seat.core));
            }
            _ => {}
        }
    }

    /// Stops an engine that hangs. What it had is then made by the CPU.
    fn stop(&mut self, seat: &Arc<Seat>) {
        let Some(mut engine) = seat.take_back() else { return };
        engine.stop();
        self.settle(seat, Some("made nothing for too long"));
        seat.stopped();
    }

    /// Takes back an engine that has nothing to do.
    fn release(&mut self, seat: &Arc<Seat>) {
        // Dropping it stops it.
        if seat.take_back().is_some() {
            self.settle(seat, None);
        }
    }

    /// Says what an engine did, and who may have it next.
    fn settle(&mut self, seat: &Arc<Seat>, fault: Option<&str>) {
        let core = seat.core;
        self.reported.clear();
        let Some(device) = self.device_of(core) else { return };
        let id = device.info.id;
        device.user = if fault.is_some() { User::Barred } else { User::Unused };
        if let Some(fault) = fault {
            let name = &device.info.name;
            vlog::warn!(
                MODULE,
                "DMA device {name} with dev id: {id} {fault}. It is stopped and not used any more; \
                 pmd {core} copies by software."
            );
        }
        let stats = dpdk::dma_stats(id);
        vlog::info!(
            MODULE,
            "DMA device with dev id: {id} stats: submitted: {}, completed: {}, errors: {}",
            stats.submitted,
            stats.completed,
            stats.errors
        );
        vlog::info!(
            MODULE,
            "DMA device with dev id: {id} used for vhost async copy offload released from pmd."
        );
        if !self.enabled && !self.devices.iter().flatten().any(Device::is_in_use) {
            vhost_user::unmap_memory();
        }
    }

    /// Looks for an engine for a thread that has none.
    fn assign(&mut self, seat: &Arc<Seat>, numa: usize) {
        let core = seat.core;
        if self.reported.contains(&core) {
            return;
        }
        let Some(eal) = Eal::get() else { return };
        let find = || dpdk::dma_devices(eal).into_iter().map(Device::new).collect();
        let devices = self.devices.get_or_insert_with(find);
        loop {
            let free = |d: &&mut Device| d.user == User::Unused;
            let near = |d: &&mut Device| d.info.numa.is_none_or(|n| n == numa);
            let mut found = devices.iter_mut().find(|d| free(d) && near(d));
            let is_near = found.is_some();
            if !is_near {
                found = devices.iter_mut().find(free);
            }
            let Some(device) = found else { break };
            match DmaEngine::start(eal, &device.info) {
                Ok(engine) => {
                    device.user = User::Pmd(core);
                    if !device.info.virtual_addresses {
                        vhost_user::map_memory(Arc::new(VfioMapper));
                    }
                    device.log_assignment(core, numa, is_near);
                    self.past = self.past.plus(&seat.tally.read());
                    return seat.give(Box::new(engine));
                }
                Err(e) => {
                    device.user = User::Barred;
                    vlog::err!(MODULE, "{e}; it is not used");
                }
            }
        }
        self.reported.push(core);
        vlog::warn!(
            MODULE,
            "No available DMA device found for vhost async copy offload for this pmd. Using software copy as \
             fallback."
        );
    }
}

impl Device {
    fn new(info: DmaInfo) -> Device {
        Device { info, user: User::Unused }
    }

    /// True if a thread has it.
    pub(crate) fn is_in_use(&self) -> bool {
        matches!(self.user, User::Pmd(_))
    }

    /// Says who has it.
    fn log_assignment(&self, core: usize, numa: usize, is_near: bool) {
        let DmaInfo { name, id, .. } = &self.info;
        let own = self.info.numa.unwrap_or(numa);
        let what = format!(
            "DMA device {name} with dev id: {id} on NUMA: {own} assigned to pmd {core} on NUMA: {numa} for vhost \
             async copy offload."
        );
        match is_near {
            true => vlog::info!(MODULE, "{what}"),
            false => {
                vlog::warn!(MODULE, "No available DMA device on same numa as PMD. {what}");
            }
        }
    }
}
