//! `qos/show` and `qos/show-types`, in ovs-vswitchd's words.

use super::command::Job;
use crate::config::{LINUX_TYPES, QosConf};
use crate::ports::{Iface, egress};
use crate::qos;
use crate::state::State;
use std::fmt::Write;

fn iface<'a>(s: &'a State, name: &str) -> Result<&'a Iface, String> {
    let found = s.bridges.values().find_map(|b| b.ifaces.get(name));
    found.ok_or_else(|| "no such interface".into())
}

/// True if the interface has a device whose packets can be limited.
fn has_device(iface: &Iface) -> bool {
    iface.dp_port.is_some() && !iface.is_virtual()
}

/// What the database asks for, and what the queues have sent: another thread waits until the kernel
/// says so.
pub(super) fn show(s: &mut State, args: &[String]) -> Result<Job, String> {
    let (ports, args) = (iface(s, &args[0])?.dp_port.into_iter().collect(), args.to_vec());
    Ok(Box::new(move |state, reply| {
        Box::pin(async move {
            qos::counters::asked(&state, ports).await;
            let answer = shown(&state.borrow(), &args);
            reply.send(answer);
        })
    }))
}

fn shown(s: &State, args: &[String]) -> Result<String, String> {
    let (iface, name) = (iface(s, &args[0])?, &args[0]);
    if let Some(QosConf::Other(kind)) = iface.conf.qos.as_deref() {
        return Err(format!("{name}: qos: type={kind} is not supported and has no effect"));
    }
    if let Some(e) = egress(&iface.conf).filter(|_| has_device(iface)) {
        return Ok(format!("QoS: {name} egress-policer\ncir: {}\ncbs: {}\n", e.cir, e.cbs));
    }
    let shown = iface.dp_port.and_then(|no| qos::show(s, name, no));
    Ok(shown.unwrap_or_else(|| format!("QoS not configured on {name}\n")))
}

pub(super) fn types(s: &mut State, args: &[String]) -> Result<String, String> {
    let iface = iface(s, &args[0])?;
    let Some(no) = iface.dp_port.filter(|_| has_device(iface)) else {
        return Ok(format!("No QoS types supported for interface: {}\n", args[0]));
    };
    let is_kernels = s.dp.port_mut(no).is_some_and(|port| port.traffic_control().is_some());
    let linux = LINUX_TYPES.iter().filter(|_| is_kernels);
    let mut text = String::new();
    for kind in linux.chain(&["egress-policer"]) {
        let _ = writeln!(text, "QoS type: {kind}");
    }
    Ok(text)
}
