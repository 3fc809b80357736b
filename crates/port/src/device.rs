//! A kernel network device by its index: everything about it, except packets.

use crate::Abilities;
use crate::ethtool::{Driver, Ethtool};
use crate::inquiry::{Changed, DeviceAnswer, Inquiry, Seen, Wanted};
use crate::netlink::{Info, KernelStats, LinkChange, Netlink, Which};
use crate::sys::failed;
use crate::tc::TrafficControl;
use crate::{Link, PortConfig, PortError};
use packet::Pool;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

/// A device, which is queried and changed through sockets of the namespace in which they were made.
pub struct Device {
    pub name: String,
    pub ifindex: u32,
    nl: Netlink,
    /// Another socket, for inquiries, if the device is in another namespace.
    elsewhere: Option<Arc<Mutex<Netlink>>>,
    ethtool: Arc<Ethtool>,
    last: Info,
    /// Speed in Mbit/s and duplex, as last seen.
    speed: (u32, Option<bool>, Abilities),
    /// Driver, version and firmware as last seen; None: the device does not say.
    driver: Option<Driver>,
    /// True: another thread asks the kernel regularly, so its last answer is used.
    asked: bool,
    /// Changes that another thread made, until the configuration that asked for them is applied.
    changed: Option<Changed>,
    base_stats: KernelStats,
    base_changes: u32,
    /// The pool of its packets.
    pool: Arc<dyn Pool>,
    /// The MTU for which the pool was asked to have buffers.
    provided: u32,
    /// A message for the log that the pool has no buffers for the MTU.
    complaint: Option<String>,
}

impl Device {
    /// Finds the device. `pool` is asked to have buffers for the device's MTU, now and whenever it
    /// changes.
    pub fn find(name: &str, pool: &Arc<dyn Pool>) -> io::Result<Self> {
        let mut nl = Netlink::open(0)?;
        let info = nl.link(Which::Name(name))?;
        let ethtool = Arc::new(Ethtool::new()?);
        let mut device = Device {
            name: name.into(),
            ifindex: info.ifindex,
            nl,
            elsewhere: None,
            speed: ethtool.speed(name),
            driver: ethtool.driver(name).ok(),
            asked: false,
            changed: None,
            ethtool,
            base_stats: info.stats,
            base_changes: info.carrier_changes,
            last: info,
            pool: pool.clone(),
            provided: 0,
            complaint: None,
        };
        device.provide();
        Ok(device)
    }

    /// As [`Device::find`], in another namespace than the process's, in which this thread is.
    pub fn find_elsewhere(name: &str, pool: &Arc<dyn Pool>) -> io::Result<Self> {
        let elsewhere = Some(Arc::new(Mutex::new(Netlink::open(0)?)));
        Ok(Device { elsewhere, ..Device::find(name, pool)? })
    }

    /// The questions of one look at the device, to be asked on another thread.
    pub fn inquiry(&mut self) -> Inquiry {
        self.asked = true;
        Inquiry {
            name: self.name.clone(),
            wanted: None,
            admin_up: None,
            ifindex: self.ifindex,
            ethtool: self.ethtool.clone(),
            elsewhere: self.elsewhere.clone(),
            tap: None,
        }
    }

    /// Takes over the kernel's answer; an error if the device does not exist.
    pub fn answered(&mut self, answer: DeviceAnswer) -> io::Result<()> {
        if answer.ifindex != self.ifindex {
            // The answer is about a device that had this name before.
            return Ok(());
        }
        self.changed = answer.changed.or(self.changed.take());
        let Seen { info, speed, driver } = answer.seen?;
        (self.last, self.speed, self.driver) = (info, speed, driver);
        self.provide();
        Ok(())
    }

    /// Asks the pool for packet buffers for the device's MTU.
    fn provide(&mut self) {
        let mtu = self.last.mtu;
        if std::mem::replace(&mut self.provided, mtu) != mtu
            && let Err(e) = self.pool.provide(mtu)
        {
            let why = format!("no packet buffers for MTU {mtu}: {e}; longer frames are dropped");
            self.complaint = Some(why);
        }
    }

    /// The pool of its packets.
    pub fn pool(&self) -> &Arc<dyn Pool> {
        &self.pool
    }

    /// What is wrong although the device works; each message is returned once.
    pub fn complaint(&mut self) -> Option<String> {
        self.complaint.take()
    }

    /// Records that the same device was found again in another namespace. Its counters continue.
    pub fn moved(&mut self, found: Device) {
        let (base_stats, base_changes) = (self.base_stats, self.base_changes);
        *self = Device { base_stats, base_changes, asked: self.asked, ..found };
    }

    /// The device as it is now.
    pub fn refresh(&mut self) -> io::Result<&Info> {
        self.last = self.nl.link(Which::Index(self.ifindex))?;
        self.provide();
        Ok(&self.last)
    }

    /// The device as last seen.
    pub fn last(&self) -> &Info {
        &self.last
    }

    /// What the kernel has counted since the device was found; as last seen, if the device is
    /// removed, or another thread asks.
    pub fn stats(&mut self) -> KernelStats {
        if !self.asked {
            let _ = self.refresh();
        }
        self.last.stats.since(&self.base_stats)
    }

    /// The link state now; down if the device is removed.
    pub fn link(&mut self) -> Link {
        if self.refresh().is_err() {
            return self.no_link();
        }
        self.speed = self.ethtool.speed(&self.last.name);
        self.last_link()
    }

    /// The link state of a device that is removed.
    fn no_link(&self) -> Link {
        Link { resets: self.resets(), ..Link::default() }
    }

    /// The link state as last seen, without a system call.
    pub fn last_link(&self) -> Link {
        let (mbps, full_duplex, abilities) = self.speed;
        let (admin_up, up) = (self.last.admin_up(), self.last.up());
        Link { admin_up, up, mbps, full_duplex, resets: self.resets(), abilities }
    }

    fn resets(&self) -> u64 {
        self.last.carrier_changes.wrapping_sub(self.base_changes).into()
    }

    /// Applies the configured MTU and MAC, if they differ from the present ones. What another
    /// thread applied already is only reported.
    pub fn configure(&mut self, config: &PortConfig) -> Result<(), PortError> {
        let wanted = Wanted::of(config);
        if let Some((_, result)) = self.changed.take().filter(|(done, _)| *done == wanted) {
            return result;
        }
        wanted.apply(&mut self.nl, self.ifindex, &config.name)?;
        self.refresh().map(drop).map_err(|e| failed(&config.name, "reading the link", e))
    }

    /// Applies one change; `what` names it in an error.
    pub fn change(&mut self, change: LinkChange, what: &str) -> Result<(), PortError> {
        self.nl.change(self.ifindex, change).map_err(|e| failed(&self.name, what, e))
    }

    /// Driver, version and firmware as last seen, with OVSDB's names.
    pub fn status(&self) -> BTreeMap<String, String> {
        let Some(d) = self.driver.clone() else { return BTreeMap::new() };
        let pairs = [
            ("driver_name", d.name),
            ("driver_version", d.version),
            ("firmware_version", d.firmware),
        ];
        pairs.map(|(k, v)| (k.into(), v)).into()
    }

    /// Its traffic control.
    pub fn traffic_control(&self) -> TrafficControl {
        TrafficControl::new(self.ifindex, self.elsewhere.clone())
    }

    /// See [`Ethtool::lro_off`].
    pub fn lro_off(&self) {
        self.ethtool.lro_off(&self.name);
    }
}
