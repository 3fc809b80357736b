//! `Interface.lldp`, and the bridge's row of table `AutoAttach`: what LLDP says.

use crate::OVS_VERSION;
use ovsdb::Row;
use std::collections::BTreeMap;

/// An I-SID has 24 bits, a VLAN 12.
const ISID_MAX: i64 = 0xff_ffff;
const VLAN_MAX: i64 = 0xfff;

/// What an interface says, of what the database decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LldpConf {
    /// `AutoAttach.system_name`.
    pub name: String,
    /// `AutoAttach.system_description`.
    pub description: String,
    /// `AutoAttach.mappings`: services by I-SID, and their VLANs.
    pub assignments: BTreeMap<u32, u16>,
}

impl LldpConf {
    /// What the interface's row asks for, without what its bridge's says; None: no LLDP.
    pub fn wanted(iface: &Row) -> Option<LldpConf> {
        let is_on = iface.str_map("lldp").get("enable").is_some_and(|v| v == "true");
        is_on.then(LldpConf::default)
    }

    /// What a bridge's row of `AutoAttach` says, if there is one.
    pub fn of_bridge(auto_attach: Option<&Row>) -> LldpConf {
        let text = |column: &str| auto_attach.map_or("", |row| row.str(column)).to_owned();
        let description = match text("system_description") {
            text if text.is_empty() => format!("openvswitch {OVS_VERSION}"),
            text => text,
        };
        let pairs = auto_attach.map(|row| row.int_map("mappings")).unwrap_or_default();
        let fits = |(isid, vlan): (i64, i64)| {
            let fits = (0..=ISID_MAX).contains(&isid) && (0..=VLAN_MAX).contains(&vlan);
            fits.then_some((isid as u32, vlan as u16))
        };
        let assignments = pairs.into_iter().filter_map(fits).collect();
        LldpConf { name: text("system_name"), description, assignments }
    }
}
