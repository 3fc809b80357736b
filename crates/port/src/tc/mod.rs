//! Traffic control of a kernel device (tc(8)) by rtnetlink(7): its root queueing discipline, which
//! always has the handle 1:, and the classes of that.

mod message;

pub(crate) use message::{RTM_NEWTCLASS, class};

use crate::netlink::{Message, Netlink};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Minor number of the class below which all others are.
pub const ROOT_CLASS: u16 = 0xfffe;

/// A queueing discipline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Qdisc {
    /// tc-htb(8). Packets without a class go to 1:1.
    Htb,
    /// tc-hfsc(8). Packets without a class go to 1:1.
    Hfsc,
    /// tc-sfq(8).
    Sfq {
        /// Bytes that a flow may send in one turn.
        quantum: u32,
        /// Seconds between changes of the hash.
        perturb: u32,
    },
    /// tc-codel(8).
    Codel(Codel),
    /// tc-fq_codel(8).
    FqCodel {
        /// What it has in common with CoDel.
        codel: Codel,
        /// Number of flows' queues.
        flows: u32,
        /// Bytes that a flow may send in one turn.
        quantum: u32,
    },
    /// tc-netem(8).
    Netem {
        /// Delay in microseconds.
        latency: u32,
        /// Packets that it holds at most.
        limit: u32,
        /// Per cent of packets that are lost; more than 100 is refused.
        loss: u32,
    },
}

/// Parameters of CoDel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Codel {
    /// Acceptable delay in microseconds.
    pub target: u32,
    /// Packets that it holds at most.
    pub limit: u32,
    /// Time in microseconds for which the delay may be exceeded.
    pub interval: u32,
}

/// A class of a queueing discipline that has classes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrafficClass {
    /// A class of [`Qdisc::Htb`].
    Htb(HtbClass),
    /// A class of [`Qdisc::Hfsc`].
    Hfsc {
        /// Guaranteed rate in bytes per second.
        min_rate: u32,
        /// Upper limit in bytes per second.
        max_rate: u32,
    },
}

/// A class of HTB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HtbClass {
    /// Guaranteed rate in bytes per second.
    pub min_rate: u64,
    /// Upper limit in bytes per second.
    pub max_rate: u64,
    /// Bytes that may be sent at once; less than `mtu` counts as `mtu`.
    pub burst: u32,
    /// A lower number is served first.
    pub priority: u32,
    /// MTU of the device in bytes.
    pub mtu: u32,
}

/// What a class has sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassStats {
    /// Bytes, with Ethernet headers.
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
    /// Packets that were dropped.
    pub drops: u64,
}

/// Access to the traffic control of a device, for any thread: each call is one or two requests,
/// which the kernel answers before it returns from them, and may take long for.
pub struct TrafficControl {
    ifindex: u32,
    /// Made for the first request, in this namespace, unless the device is in another one.
    nl: Option<Arc<Mutex<Netlink>>>,
}

impl TrafficControl {
    pub(crate) fn new(ifindex: u32, elsewhere: Option<Arc<Mutex<Netlink>>>) -> Self {
        TrafficControl { ifindex, nl: elsewhere }
    }

    fn nl(&mut self) -> io::Result<MutexGuard<'_, Netlink>> {
        let nl = match self.nl.take() {
            Some(nl) => nl,
            None => Arc::new(Mutex::new(Netlink::open(0)?)),
        };
        Ok(self.nl.insert(nl).lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Removes the root queueing discipline, with all that it holds: the kernel's default takes its
    /// place. There may be none.
    ///
    /// # Errors
    /// Of the kernel; ENODEV if the device is gone.
    pub fn remove_qdisc(&mut self) -> io::Result<()> {
        let head = message::head(self.ifindex, 0, message::ROOT);
        match self.nl()?.order(message::RTM_DELQDISC, 0, &head, &[]) {
            // The default was in use.
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::EINVAL)) => Ok(()),
            result => result,
        }
    }

    /// Puts a queueing discipline in place of whatever there is.
    ///
    /// # Errors
    /// Of the kernel: ENOENT if it has no such discipline, EINVAL for parameters.
    pub fn set_qdisc(&mut self, qdisc: &Qdisc) -> io::Result<()> {
        let attributes = message::qdisc(qdisc)?;
        self.remove_qdisc()?;
        let head = message::head(self.ifindex, message::handle(0), message::ROOT);
        let flags = message::F_CREATE | message::F_EXCL;
        self.nl()?.order(message::RTM_NEWQDISC, flags, &head, &attributes)
    }

    /// Adds or changes the class 1:`minor`: [`ROOT_CLASS`], or one below that.
    ///
    /// # Errors
    /// Of the kernel.
    pub fn set_class(&mut self, minor: u16, class: &TrafficClass) -> io::Result<()> {
        let parent = message::handle(if minor == ROOT_CLASS { 0 } else { ROOT_CLASS });
        let head = message::head(self.ifindex, message::handle(minor), parent);
        let attributes = message::class_attributes(class);
        self.nl()?.order(message::RTM_NEWTCLASS, message::F_CREATE, &head, &attributes)
    }

    /// Removes the class 1:`minor`.
    ///
    /// # Errors
    /// Of the kernel.
    pub fn remove_class(&mut self, minor: u16) -> io::Result<()> {
        let head = message::head(self.ifindex, message::handle(minor), 0);
        self.nl()?.order(message::RTM_DELTCLASS, 0, &head, &[])
    }

    /// What the classes of the root queueing discipline have sent, by minor number.
    ///
    /// # Errors
    /// Of the kernel.
    pub fn class_stats(&mut self) -> io::Result<BTreeMap<u16, ClassStats>> {
        let (head, mut all) = (message::head(self.ifindex, 0, 0), BTreeMap::new());
        self.nl()?.list(message::RTM_GETTCLASS, &head, |message| {
            if let Message::Class(minor, stats) = message {
                all.insert(minor, stats);
            }
        })?;
        Ok(all)
    }
}
