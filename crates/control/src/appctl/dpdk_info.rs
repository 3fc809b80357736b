//! `dpdk/*` and `netdev-dpdk/*`: DPDK's memory, threads, log levels and devices.

use crate::state::State;

/// What the name of every kind of DPDK port begins with.
const KIND: &str = "dpdk";
const UNKNOWN: &str = "Not a DPDK Interface";

/// `dpdk/get-malloc-stats`.
pub fn malloc_stats(_: &mut State, _: &[String]) -> Result<String, String> {
    Ok(dpdk::malloc_stats())
}

/// `dpdk/lcore-list`.
pub fn lcores(_: &mut State, _: &[String]) -> Result<String, String> {
    Ok(dpdk::lcores())
}

/// `dpdk/log-list`.
pub fn log_levels(_: &mut State, _: &[String]) -> Result<String, String> {
    Ok(dpdk::log_levels())
}

/// `dpdk/log-set {LEVEL | PATTERN:LEVEL}...`; without arguments everything is logged.
pub fn set_log_levels(_: &mut State, args: &[String]) -> Result<String, String> {
    if args.is_empty() {
        return dpdk::set_log_level("*", "debug").map(|()| String::new());
    }
    for word in args {
        let (pattern, level) = word.split_once(':').unwrap_or(("*", word));
        dpdk::set_log_level(pattern, level)?;
    }
    Ok(String::new())
}

/// `netdev-dpdk/get-mempool-info [NETDEV]`: the pool that ports of NETDEV's MTU and node share, or
/// all pools.
pub fn mempools(s: &mut State, args: &[String]) -> Result<String, String> {
    let pools = s.devices.pools.clone();
    let Some(name) = args.first() else {
        return Ok(pools.all().iter().map(|pool| pool.dump()).collect());
    };
    let number = super::ports_of_kind(s, KIND, Some(name)).pop().ok_or(UNKNOWN)?;
    let port = s.dp.port_mut(number).ok_or(UNKNOWN)?;
    let pool = pools.for_mtu(port.mtu(), port.numa()).map_err(|e| e.to_string())?;
    Ok(pool.dump())
}

/// `netdev-dpdk/detach DEVARGS`.
pub fn detach(s: &mut State, args: &[String]) -> Result<String, String> {
    let device = &args[0];
    let ifaces = s.bridges.values().flat_map(|b| b.ifaces.iter());
    let users: Vec<&str> = ifaces
        .filter(|(_, i)| i.conf.options.get("dpdk-devargs") == Some(device))
        .map(|(name, _)| name.as_str())
        .collect();
    if !users.is_empty() {
        return Err(format!(
            "Device '{device}' is being used by the following interfaces: {}. \
             Remove them before detaching.",
            users.join(" ")
        ));
    }
    match dpdk::detach(device) {
        Ok(true) => Ok(format!("Device '{device}' has been detached")),
        Ok(false) => Err(format!("Device '{device}' not found in DPDK")),
        Err(e) => Err(e.to_string()),
    }
}

/// `netdev-dpdk/set-admin-state [NETDEV] up|down`.
pub fn set_admin_state(s: &mut State, args: &[String]) -> Result<String, String> {
    super::admin_state(s, args, KIND, UNKNOWN)
}
