//! What interfaces need of the kernel before they are configured, done by a thread that may wait.
//!
//! The kernel opens and changes devices under a lock (rtnl) that whoever makes devices in a
//! namespace of its own holds for tenths of a second. Drivers of DPDK wait for it as well, or for
//! their adapter. The control thread goes on meanwhile.

use super::interface::{given_up, holder, is_reserved, port_conf};
use crate::closing::Closing;
use crate::config::{BridgeConf, IfaceConf, PortConf, QosConf};
use crate::ports;
use crate::state::{Shared, State};
use crate::vlog;
use ::port::{DeviceAnswer, Inquiry, Port, PortConfig, ask_all};
use flow::PortNo;
use port_dpdk::Devices;
use std::collections::BTreeMap;

/// Interfaces that are prepared together: the first ones need not wait for thousands of others, and
/// few threads' turns are taken for many.
pub(super) const PREPARED_INTERFACES_MAX: usize = 32;
/// Types of ports whose devices the kernel or a driver opens.
const ON_DEVICES: [&str; 5] = ["system", "tap", "internal", "afxdp", "dpdk"];

/// A port that was opened and is not of the datapath yet.
pub(super) struct Opened {
    pub port: Box<dyn Port>,
    /// The kernel's default queueing is what the device has.
    pub has_default_qdisc: bool,
}

/// Ports that were opened, or why not, by interface.
#[derive(Default)]
pub(super) struct Prepared(BTreeMap<String, Result<Opened, String>>);

impl Prepared {
    /// The port of an interface; None: it was not prepared.
    pub fn take(&mut self, name: &str) -> Option<Result<Opened, String>> {
        self.0.remove(name)
    }

    /// Adds what was prepared later.
    pub fn add(&mut self, mut later: Prepared) {
        self.0.append(&mut later.0);
    }

    /// Ports that no interface took.
    pub fn unused(self) -> Vec<Box<dyn Port>> {
        self.0.into_values().flatten().map(|opened| opened.port).collect()
    }
}

/// A port that is to be opened.
struct Opening {
    config: PortConfig,
    devices: Devices,
    closing: Closing,
    wants_default_qdisc: bool,
}

impl Opening {
    /// Opens the port, and waits for the kernel or the driver.
    fn run(self) -> Result<Opened, String> {
        self.closing.wait_for(&self.config.kind, &self.config.name);
        let mut port = ports::open(&self.devices, &self.config).map_err(|e| e.to_string())?;
        // A TAP keeps its addresses over a crash or restart of the daemon.
        let _ = port.set_persistent(true);
        let tc = if self.wants_default_qdisc { port.traffic_control() } else { None };
        let has_default_qdisc = tc.is_some_and(|mut tc| tc.remove_qdisc().is_ok());
        // What was seen of the device is new; from now on another thread asks about it.
        drop(port.inquiry());
        Ok(Opened { port, has_default_qdisc })
    }
}

/// What is to be done for some interfaces.
#[derive(Default)]
struct Due {
    /// Interfaces of which no attempt is made.
    refused: Prepared,
    openings: Vec<Opening>,
    changes: Vec<(PortNo, Inquiry)>,
}

/// What was done.
struct Done {
    prepared: Prepared,
    answers: Vec<(PortNo, DeviceAnswer)>,
}

impl Due {
    /// Notes what an interface needs.
    fn add(&mut self, s: &mut State, br: &BridgeConf, conf: &IfaceConf) {
        let Some(bridge) = s.bridges.get(&br.name) else { return };
        let (mac, iface) = (bridge.mac, bridge.ifaces.get(&conf.name));
        let (works, same) =
            (iface.is_some_and(|i| i.works()), iface.is_some_and(|i| i.conf == *conf));
        let dp_port = iface.and_then(|i| i.dp_port);
        let config = port_conf(s, br, conf, mac);
        if !ON_DEVICES.contains(&config.kind.as_str()) {
            return;
        }
        if !works {
            if is_reserved(&conf.name) || holder(s, br, &conf.name).is_some() {
                return;
            }
            let iface = s.bridges.get_mut(&br.name).and_then(|b| b.ifaces.get_mut(&conf.name));
            match given_up(iface, conf) {
                Some(error) => drop(self.refused.0.insert(conf.name.clone(), Err(error))),
                None => self.open(s, conf, config),
            }
            return;
        }
        let Some((no, port)) = dp_port.and_then(|no| Some((no, s.dp.port_mut(no)?))) else {
            return;
        };
        let moved = conf.name == br.name && port.mac() != mac;
        if (moved || !same)
            && let Some(inquiry) = port.inquiry()
        {
            self.changes.push((no, inquiry.after(&config)));
            let iface = s.bridges.get_mut(&br.name).and_then(|b| b.ifaces.get_mut(&conf.name));
            iface.into_iter().for_each(|iface| iface.is_changing = true);
        }
    }

    fn open(&mut self, s: &State, conf: &IfaceConf, config: PortConfig) {
        self.openings.push(Opening {
            config,
            devices: s.devices.clone(),
            closing: s.closing.clone(),
            wants_default_qdisc: !matches!(conf.qos.as_deref(), Some(QosConf::Linux(_))),
        });
    }

    /// Does all of it, and waits for the kernel.
    fn run(self) -> Done {
        let mut prepared = self.refused;
        for opening in self.openings {
            let name = opening.config.name.clone();
            prepared.0.entry(name).or_insert_with(|| opening.run());
        }
        let (numbers, inquiries): (Vec<_>, Vec<_>) = self.changes.into_iter().unzip();
        let answers = if inquiries.is_empty() { Ok(Vec::new()) } else { ask_all(inquiries) };
        let answers = numbers.into_iter().zip(answers.unwrap_or_default()).collect();
        Done { prepared, answers }
    }
}

/// Opens what some interfaces of a bridge need to be opened, and changes their devices, while
/// others have their turn.
pub(super) async fn prepare(
    state: &Shared,
    br: &BridgeConf,
    some: &[(&PortConf, &IfaceConf)],
) -> Prepared {
    let mut due = Due::default();
    {
        let s = &mut *state.borrow_mut();
        some.iter().for_each(|(_, conf)| due.add(s, br, conf));
        if due.openings.is_empty() && due.changes.is_empty() {
            return due.refused;
        }
        s.flush_changes();
    }
    match tokio::task::spawn_blocking(move || due.run()).await {
        Ok(Done { prepared, answers }) => {
            let s = &mut *state.borrow_mut();
            for (no, answer) in answers {
                // An error is found again by the look of each second.
                let _ = s.dp.port_mut(no).map(|port| port.answered(answer));
            }
            prepared
        }
        Err(e) => {
            vlog::warn!("bridge", "{}: opening ports: {e}", br.name);
            Prepared::default()
        }
    }
}
