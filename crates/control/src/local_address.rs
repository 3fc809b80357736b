//! The IPv4 address that a controller's row gives its bridge's own port (`Controller.local_ip`).

use crate::config::{BridgeConf, LocalAddress};
use crate::ports::Iface;
use crate::state::{Shared, State};
use crate::vlog;
use std::io;
use std::net::Ipv4Addr;

const MODULE: &str = "bridge";

/// Gives a bridge's own port the address that its controllers' rows ask for, if it has it not; of
/// several the last one stays. One that is not asked for any more stays, as with ovs-vswitchd. A
/// dummy has no device. Another thread asks the kernel, which may take long.
pub async fn configure(state: &Shared, bridge: &BridgeConf) {
    let wanted = bridge.controllers.iter().filter_map(|c| c.local.clone());
    let (wanted, name): (Vec<_>, _) = (wanted.collect(), bridge.name.clone());
    if wanted.is_empty() || !has_device(&state.borrow(), &name) {
        return;
    }
    let asked = tokio::task::spawn_blocking(move || {
        for local in &wanted {
            if let Err(why) = apply(&name, local) {
                vlog::warn!(MODULE, "bridge {name}: local_ip {}: {why}", local.ip);
            }
        }
    });
    let _ = asked.await;
}

fn has_device(s: &State, bridge: &str) -> bool {
    let found = s.bridges.get(bridge).filter(|b| !b.is_dummy());
    found.and_then(|b| b.ifaces.get(bridge)).is_some_and(Iface::works)
}

fn apply(bridge: &str, local: &LocalAddress) -> Result<(), String> {
    let failed = |e: io::Error| crate::of::io::error_text(&e);
    let ip: Ipv4Addr = local.ip.parse().map_err(|_| "not an IPv4 address")?;
    let netmask = netmask(&local.netmask, ip)?;
    let has = (bridge.to_string(), ip.into(), netmask.to_bits().leading_ones() as u8);
    if !::port::addresses().map_err(failed)?.contains(&has) {
        ::port::set_ipv4(bridge, ip, netmask).map_err(failed)?;
        vlog::info!(MODULE, "bridge {bridge}: configured IP address {ip}, netmask {netmask}");
    }
    if local.gateway.is_empty() {
        return Ok(());
    }
    let gateway = local.gateway.parse().map_err(|_| "local_gateway is not an IPv4 address")?;
    let added = ::port::add_default_route(gateway);
    if added.map_err(|e| format!("local_gateway {gateway}: {}", failed(e)))? {
        vlog::info!(MODULE, "bridge {bridge}: configured gateway {gateway}");
    }
    Ok(())
}

/// `local_netmask`; where that is empty, the mask of the address's class (RFC 791, section 3.2).
fn netmask(text: &str, ip: Ipv4Addr) -> Result<Ipv4Addr, String> {
    let wrong = "local_netmask is not a netmask";
    let mask = match (text, ip.octets()[0]) {
        ("" | "0.0.0.0", 0..128) => u32::MAX << 24,
        ("" | "0.0.0.0", 128..192) => u32::MAX << 16,
        ("" | "0.0.0.0", 192..224) => u32::MAX << 8,
        ("" | "0.0.0.0", _) => return Err("not the address of a host".into()),
        _ => text.parse::<Ipv4Addr>().map_err(|_| wrong)?.to_bits(),
    };
    match mask.leading_ones() + mask.trailing_zeros() {
        32 => Ok(Ipv4Addr::from_bits(mask)),
        _ => Err(wrong.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_netmask_the_class_counts() {
        let mask = |text, ip: &str| netmask(text, ip.parse().unwrap()).map(|m| m.to_string()).ok();
        for (ip, want) in [
            ("10.0.0.1", Some("255.0.0.0")),
            ("172.16.0.1", Some("255.255.0.0")),
            ("192.168.0.1", Some("255.255.255.0")),
            ("224.0.0.1", None),
        ] {
            assert_eq!(mask("", ip).as_deref(), want, "{ip}");
            assert_eq!(mask("255.255.255.128", ip).as_deref(), Some("255.255.255.128"));
        }
        assert_eq!(mask("255.255.255.255", "10.0.0.1").as_deref(), Some("255.255.255.255"));
        assert_eq!((mask("255.0.255.0", "10.0.0.1"), mask("24", "10.0.0.1")), (None, None));
    }
}
