//! Changes of kernel devices that are due: controllers take devices up and down, and MTUs follow
//! those of other ports.

use ::port::{PortConfig, PortError};
use datapath::Datapath;
use flow::PortNo;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use tokio::sync::Notify;

/// An interface: its bridge's name, and its own.
pub type Name = (String, String);

/// Devices that are changed before links are looked at again: each takes some milliseconds.
const TURN_DEVICES_MAX: usize = 8;

/// What a device is to be like.
#[derive(Default)]
pub struct DueChange {
    /// True: it is taken up; false: down.
    pub admin_up: Option<bool>,
    /// With the MTU that it is to have.
    pub config: Option<PortConfig>,
}

/// Changes that are due: one of each interface, the last one that was asked for.
#[derive(Default)]
pub struct DeviceChanges {
    /// Who asked first goes first.
    order: VecDeque<Name>,
    changes: BTreeMap<Name, DueChange>,
    /// How many have come to [`Self::order`], and how many of these are done.
    asked: u64,
    done: u64,
    /// Notified when some are due.
    pub wake: Rc<Notify>,
}

impl DeviceChanges {
    /// Has a device taken up or down.
    pub fn set_admin_up(&mut self, name: Name, up: bool) {
        self.due(name).admin_up = Some(up);
    }

    /// Has a device be as configured.
    pub fn configure(&mut self, name: Name, config: PortConfig) {
        self.due(name).config = Some(config);
    }

    /// Has an interface's port be as configured: later, by another thread, if the kernel may take
    /// long for it.
    pub fn configure_port(
        &mut self,
        dp: &mut Datapath,
        (name, no): (Name, PortNo),
        config: PortConfig,
    ) -> Result<(), PortError> {
        let Some(port) = dp.port_mut(no) else { return Ok(()) };
        if port.inquiry().is_some() {
            self.configure(name, config);
            return Ok(());
        }
        port.reconfigure(&config)?;
        dp.refresh(no);
        Ok(())
    }

    fn due(&mut self, name: Name) -> &mut DueChange {
        self.wake.notify_one();
        self.changes.entry(name).or_insert_with_key(|name| {
            self.order.push_back(name.clone());
            self.asked += 1;
            DueChange::default()
        })
    }

    /// Takes the changes that are due next, [`TURN_DEVICES_MAX`] at most. The caller makes them,
    /// and calls [`Self::were_made`] then.
    pub fn take(&mut self) -> Vec<(Name, DueChange)> {
        let names = self.order.drain(..self.order.len().min(TURN_DEVICES_MAX));
        names.filter_map(|name| self.changes.remove_entry(&name)).collect()
    }

    /// Counts `n` changes that [`Self::take`] returned as done; those that failed are done, too.
    pub fn were_made(&mut self, n: usize) {
        self.done += n as u64;
    }

    /// Number of changes that have become due since the daemon began, for [`Self::is_made`].
    pub fn asked(&self) -> u64 {
        self.asked
    }

    /// True if the first `until` changes that became due are done, where [`Self::asked`] returned
    /// `until`.
    pub fn is_made(&self, until: u64) -> bool {
        self.done >= until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(n: u32) -> Name {
        ("br0".into(), format!("p{n}"))
    }

    /// Who asks all the time has one change due for each interface, and its turn after others.
    #[test]
    fn who_asks_all_the_time_waits_for_others() {
        let mut due = DeviceChanges::default();
        for i in 0..1000 {
            (0..20).for_each(|n| due.set_admin_up(name(n), i % 2 == 0));
        }
        due.configure(name(99), PortConfig::default());
        assert_eq!((due.order.len(), due.asked), (21, 21));
        let mut turns = 0;
        while !due.take().iter().any(|(of, _)| *of == name(99)) {
            (0..20).for_each(|n| due.set_admin_up(name(n), true));
            turns += 1;
        }
        assert_eq!(turns, 20 / TURN_DEVICES_MAX);
        // The last wish counts.
        due.set_admin_up(name(7), true);
        due.set_admin_up(name(7), false);
        let last = std::iter::from_fn(|| Some(due.take()).filter(|some| !some.is_empty()));
        let of_seven: Vec<_> = last.flatten().filter(|(of, _)| *of == name(7)).collect();
        assert_eq!(of_seven.iter().map(|(_, c)| c.admin_up).collect::<Vec<_>>(), [Some(false)]);
    }
}
