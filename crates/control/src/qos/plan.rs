//! What a QoS row makes of a kernel device: limits and defaults as in ovs-vswitchd.

use crate::config::{LinuxQos, Numbers, QosConf};
use ::port::tc::{Codel, HtbClass, Qdisc, TrafficClass};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The rate of a device whose speed is not known, bytes per second.
const RATE_DEFAULT: u64 = 10_000_000_000 / 8;
/// Bytes that a burst is longer than an MTU, at least: room for headers.
const HEADERS_MAX: u32 = 64;

/// The traffic control of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// The kernel's default.
    Default,
    /// Whatever another program set up.
    Untouched,
    /// A queueing discipline of ours.
    Shape(Shape),
}

/// A queueing discipline with its classes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// `QoS.type`.
    pub kind: &'static str,
    pub qdisc: Qdisc,
    /// The class of all queues' packets together, if there are queues.
    pub root: Option<TrafficClass>,
    /// The classes of queues.
    pub queues: BTreeMap<u32, TrafficClass>,
}

/// What of a device matters.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Device {
    /// Bytes.
    pub mtu: u32,
    /// Speed of the link; 0 if it is not known.
    pub mbps: u32,
}

/// What the traffic control of a device is made of.
#[derive(Clone, PartialEq, Eq)]
pub struct Wanted {
    /// `Port.qos`.
    pub qos: Option<Arc<QosConf>>,
    pub device: Device,
}

impl Wanted {
    /// True if that is the kernel's default queueing.
    pub fn is_default(&self) -> bool {
        !matches!(self.qos.as_deref(), Some(QosConf::Linux(_)))
    }

    /// The plan, for which each queue is looked at.
    pub fn plan(&self) -> Plan {
        match self.qos.as_deref() {
            Some(QosConf::Linux(qos)) => Plan::new(qos, self.device),
            _ => Plan::Default,
        }
    }
}

impl Plan {
    pub fn new(conf: &LinuxQos, device: Device) -> Plan {
        let get = |key: &str| narrow(conf.config.get(key).copied().unwrap_or(0));
        let or = |key: &str, default: u32| Some(get(key)).filter(|n| *n > 0).unwrap_or(default);
        let codel = |interval| Codel {
            target: or("target", 5000),
            limit: or("limit", 10_240),
            interval: or("interval", interval),
        };
        let qdisc = match conf.kind {
            "linux-htb" => Qdisc::Htb,
            "linux-hfsc" => Qdisc::Hfsc,
            "linux-sfq" => {
                Qdisc::Sfq { quantum: or("quantum", device.mtu), perturb: or("perturb", 10) }
            }
            "linux-codel" => Qdisc::Codel(codel(100_000)),
            "linux-fq_codel" => Qdisc::FqCodel {
                codel: codel(1_000_000),
                flows: or("flows", 1024),
                quantum: or("quantum", 1514),
            },
            "linux-netem" => Qdisc::Netem {
                latency: get("latency"),
                limit: or("limit", 1000),
                loss: get("loss"),
            },
            _ => return Plan::Untouched,
        };
        let (mut root, mut queues) = (None, BTreeMap::new());
        if matches!(qdisc, Qdisc::Htb | Qdisc::Hfsc) {
            let (is_htb, rate) = (qdisc == Qdisc::Htb, rate(&conf.config, device));
            root = Some(root_class(is_htb, rate, device));
            let class = |config| queue_class(is_htb, config, rate, device);
            queues = conf.queues.iter().map(|(id, config)| (*id, class(config))).collect();
        }
        Plan::Shape(Shape { kind: conf.kind, qdisc, root, queues })
    }
}

/// The rate of all queues together, bytes per second: `max-rate`, or the link's.
fn rate(config: &Numbers, device: Device) -> u64 {
    let link = match device.mbps {
        0 => RATE_DEFAULT,
        mbps => u64::from(mbps) * 1_000_000 / 8,
    };
    config.get("max-rate").map(|bits| bits / 8).filter(|rate| *rate > 0).unwrap_or(link)
}

fn root_class(is_htb: bool, rate: u64, device: Device) -> TrafficClass {
    if is_htb {
        let (burst, priority, mtu) = (0, 0, device.mtu);
        return TrafficClass::Htb(HtbClass {
            min_rate: rate,
            max_rate: rate,
            burst,
            priority,
            mtu,
        });
    }
    TrafficClass::Hfsc { min_rate: narrow(rate), max_rate: narrow(rate) }
}

/// The class of a queue. Below an MTU per second HTB would never send a full packet.
fn queue_class(is_htb: bool, config: &Numbers, rate: u64, device: Device) -> TrafficClass {
    let get = |key: &str| config.get(key).copied().filter(|n| *n > 0);
    let bytes = |key: &str| get(key).map(|bits| bits / 8);
    let least = if is_htb { device.mtu.into() } else { 1 };
    let min_rate = bytes("min-rate").unwrap_or(0).max(least).min(rate);
    let max_rate = bytes("max-rate").unwrap_or(rate).max(min_rate).min(rate);
    if !is_htb {
        return TrafficClass::Hfsc { min_rate: narrow(min_rate), max_rate: narrow(max_rate) };
    }
    let burst = narrow(bytes("burst").unwrap_or(0)).max(device.mtu + HEADERS_MAX);
    let priority = narrow(get("priority").unwrap_or(0));
    TrafficClass::Htb(HtbClass { min_rate, max_rate, burst, priority, mtu: device.mtu })
}

fn narrow(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// Settings as `qos/show` has them, in its order.
pub(super) type Settings = Vec<(&'static str, u64)>;

impl Shape {
    /// Settings of the port.
    pub fn settings(&self) -> Settings {
        let codel = |c: &Codel| [("interval", c.interval), ("target", c.target)];
        let list = |all: &[(&'static str, u32)]| -> Settings {
            all.iter().map(|(name, n)| (*name, u64::from(*n))).collect()
        };
        match &self.qdisc {
            Qdisc::Htb | Qdisc::Hfsc => {
                let max = self.root.as_ref().map(rates).map(|(_, max)| ("max-rate", max * 8));
                max.into_iter().collect()
            }
            Qdisc::Sfq { quantum, perturb } => {
                list(&[("quantum", *quantum), ("perturb", *perturb)])
            }
            Qdisc::Codel(c) => [list(&[("limit", c.limit)]), list(&codel(c))].concat(),
            Qdisc::FqCodel { codel: c, flows, quantum } => {
                let own = [("limit", c.limit), ("quantum", *quantum), ("flows", *flows)];
                [list(&own), list(&codel(c))].concat()
            }
            Qdisc::Netem { latency, limit, loss } => {
                list(&[("limit", *limit), ("loss", *loss), ("latency", *latency)])
            }
        }
    }
}

/// Guaranteed and highest rate, bytes per second.
fn rates(class: &TrafficClass) -> (u64, u64) {
    match class {
        TrafficClass::Htb(c) => (c.min_rate, c.max_rate),
        TrafficClass::Hfsc { min_rate, max_rate } => ((*min_rate).into(), (*max_rate).into()),
    }
}

/// Settings of a queue.
pub(super) fn queue_settings(class: &TrafficClass) -> Settings {
    let mut all = Settings::new();
    if let TrafficClass::Htb(c) = class {
        all.push(("burst", u64::from(c.burst) * 8));
        all.extend((c.priority > 0).then_some(("priority", c.priority.into())));
    }
    let (min, max) = rates(class);
    all.push(("min-rate", min * 8));
    all.extend((min != max).then_some(("max-rate", max * 8)));
    all
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
