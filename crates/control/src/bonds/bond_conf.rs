//! Bonds and LACP as the database asks for them, with the defaults of ovs-vswitchd.conf.db(5).

use super::bond::{self, Mode};
use super::lacp::{self, MemberConf};
use crate::config::{IfaceConf, LacpMode, PortConf};
use openflow::OfPort;
use std::str::FromStr;

const REBALANCE_MS: u64 = 10_000;
const REBALANCE_MS_MIN: u64 = 1000;
/// The largest number that OVS reads.
const REBALANCE_MS_MAX: u64 = i32::MAX as u64;

fn number<T: FromStr>(port: &PortConf, key: &str) -> Option<T> {
    port.other_config.get(key).and_then(|text| text.parse().ok())
}

fn flag(port: &PortConf, key: &str) -> bool {
    port.other_config.get(key).is_some_and(|text| text == "true")
}

/// A bond's settings; None: the port has one interface only. With what is wrong.
pub fn bond(port: &PortConf) -> Option<(bond::Conf, Option<String>)> {
    if port.interfaces.len() < 2 {
        return None;
    }
    let mut wrong = None;
    let mode = match port.bond_mode.as_deref() {
        None | Some("active-backup") => Mode::ActiveBackup,
        Some("balance-slb") => Mode::BalanceSlb,
        Some("balance-tcp") => Mode::BalanceTcp,
        Some(other) => {
            wrong = Some(format!("unknown bond_mode {other}, defaulting to active-backup"));
            Mode::ActiveBackup
        }
    };
    let rebalance = number(port, "bond-rebalance-interval").unwrap_or(REBALANCE_MS);
    let fallback_ab = flag(port, "lacp-fallback-ab");
    let has_primary = mode == Mode::ActiveBackup || fallback_ab;
    let conf = bond::Conf {
        mode,
        updelay_ms: port.bond_updelay.as_millis() as u64,
        downdelay_ms: port.bond_downdelay.as_millis() as u64,
        rebalance_ms: if rebalance == 0 {
            0
        } else {
            rebalance.clamp(REBALANCE_MS_MIN, REBALANCE_MS_MAX)
        },
        basis: number(port, "bond-hash-basis").unwrap_or(0),
        primary: port.other_config.get("bond-primary").filter(|_| has_primary).cloned(),
        all_active: mode == Mode::BalanceSlb && flag(port, "all-members-active"),
        fallback_ab,
    };
    Some((conf, wrong))
}

/// True if the port asks for OVS's action `lb_output`. The switch always works that way;
/// `bond/show` prints it.
pub fn lb_output(port: &PortConf) -> bool {
    flag(port, "lb-output-action")
}

/// How the port speaks LACP; None: not at all. `bridge_mac`: the address of its bridge.
pub fn lacp(port: &PortConf, bridge_mac: [u8; 6]) -> Result<Option<lacp::Conf>, String> {
    let active = match port.lacp {
        LacpMode::Off => return Ok(None),
        LacpMode::Active => true,
        LacpMode::Passive => false,
    };
    let system_id = match port.other_config.get("lacp-system-id") {
        None => bridge_mac,
        Some(text) => mac(text)
            .ok_or_else(|| format!("LACP system ID ({text}) must be an Ethernet address."))?,
    };
    if system_id == [0; 6] {
        return Err("Invalid zero LACP system ID.".into());
    }
    // Links that can be bonded are preferred.
    let default = if port.interfaces.len() > 1 { u16::MAX - 1 } else { u16::MAX };
    let priority = number(port, "lacp-system-priority").filter(|n| *n > 0);
    let time = port.other_config.get("lacp-time");
    Ok(Some(lacp::Conf {
        active,
        fast: time.is_some_and(|text| text.eq_ignore_ascii_case("fast")),
        system_id,
        system_priority: priority.unwrap_or(default),
        fallback_ab: flag(port, "lacp-fallback-ab"),
    }))
}

/// `aa:bb:cc:dd:ee:ff`.
pub fn mac(text: &str) -> Option<[u8; 6]> {
    let bytes = text.split(':').map(|byte| u8::from_str_radix(byte, 16).ok());
    bytes.collect::<Option<Vec<u8>>>()?.try_into().ok()
}

/// An interface's part in LACP.
pub fn member(iface: &IfaceConf, of_port: OfPort) -> MemberConf {
    let number = |key: &str| iface.other_config.get(key).and_then(|text| text.parse::<u16>().ok());
    let positive = |key: &str| number(key).filter(|n| *n > 0);
    MemberConf {
        port_id: positive("lacp-port-id").unwrap_or(of_port as u16),
        priority: positive("lacp-port-priority").unwrap_or(u16::MAX),
        key: number("lacp-aggregation-key").unwrap_or(0),
    }
}
