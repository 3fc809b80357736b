//! `qos/show` and `qos/show-types`, in ovs-vswitchd's words.

use crate::config::QosConf;
use crate::ports::{Iface, egress};
use crate::state::State;

fn iface<'a>(s: &'a State, name: &str) -> Result<&'a Iface, String> {
    let found = s.bridges.values().find_map(|b| b.ifaces.get(name));
    found.ok_or_else(|| "no such interface".into())
}

/// Has it a device whose packets can be limited?
fn has_device(iface: &Iface) -> bool {
    iface.dp_port.is_some() && !iface.is_virtual()
}

pub(super) fn show(s: &mut State, args: &[String]) -> Result<String, String> {
    let (iface, name) = (iface(s, &args[0])?, &args[0]);
    if let Some(QosConf::Other(kind)) = &iface.conf.qos {
        return Err(format!("{name}: qos: type={kind} is not supported and has no effect"));
    }
    match egress(&iface.conf).filter(|_| has_device(iface)) {
        Some(e) => Ok(format!("QoS: {name} egress-policer\ncir: {}\ncbs: {}\n", e.cir, e.cbs)),
        None => Ok(format!("QoS not configured on {name}\n")),
    }
}

pub(super) fn types(s: &mut State, args: &[String]) -> Result<String, String> {
    if has_device(iface(s, &args[0])?) {
        return Ok("QoS type: egress-policer\n".into());
    }
    Ok(format!("No QoS types supported for interface: {}\n", args[0]))
}
