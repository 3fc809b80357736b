//! Levels by module and destination, and the specifications that set them.

use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;

/// How much a message matters; a destination takes its level and those above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// Level of a destination that takes nothing; no message has it.
    Off,
    /// The daemon cannot go on.
    Emer,
    /// Something asked for failed.
    Err,
    /// Something an operator should look at.
    Warn,
    /// What happened.
    Info,
    /// What helps to find a fault.
    Dbg,
}

impl Level {
    const ALL: [(Self, &str); 6] = [
        (Self::Off, "OFF"),
        (Self::Emer, "EMER"),
        (Self::Err, "ERR"),
        (Self::Warn, "WARN"),
        (Self::Info, "INFO"),
        (Self::Dbg, "DBG"),
    ];

    /// The name as logged, in capitals.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    pub(super) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, n)| n.eq_ignore_ascii_case(name)).map(|(level, _)| *level)
    }

    pub(super) fn passes(self, limit: Self) -> bool {
        self <= limit
    }
}

/// Where messages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The system's log daemon.
    Syslog,
    /// Standard error.
    Console,
    /// The log file.
    File,
}

impl Destination {
    /// All facilities, in the order in which their values index arrays.
    pub const ALL: [Self; 3] = [Self::Syslog, Self::Console, Self::File];

    /// The name as in specifications.
    pub fn name(self) -> &'static str {
        ["syslog", "console", "file"][self as usize]
    }

    pub(super) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|d| d.name().eq_ignore_ascii_case(name))
    }
}

/// A specification that cannot be used, in `ovs-vswitchd`'s words.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct SpecError(pub String);

/// The modules of `ovs-vswitchd` 3.1, so that specifications written for it are accepted.
const MODULES: &str = "backtrace bfd bond bridge bundle bundles cfm collectors command_line connmgr \
conntrack conntrack_tp coverage ct_dpif daemon daemon_unix dns_resolve dpdk dpif \
dpif_lookup_autovalidator dpif_lookup_generic dpif_mfex_extract_study dpif_netdev \
dpif_netdev_extract dpif_netdev_impl dpif_netdev_lookup dpif_netlink dpif_netlink_rtnl entropy \
fail_open fatal_signal flow hmap in_band ipf ipfix jsonrpc lacp lldp lldpd lldpd_structs lockfile \
memory meta_flow native_tnl netdev netdev_afxdp netdev_dpdk netdev_dummy netdev_linux \
netdev_offload netdev_offload_dpdk netdev_offload_tc netdev_vport netflow netlink \
netlink_conntrack netlink_notifier netlink_socket nx_match odp_execute odp_execute_impl odp_util \
ofp_actions ofp_bundle ofp_connection ofp_errors ofp_flow ofp_group ofp_match ofp_meter \
ofp_monitor ofp_msgs ofp_packet ofp_port ofp_protocol ofp_queue ofp_table ofp_util ofproto \
ofproto_dpif ofproto_dpif_mirror ofproto_dpif_monitor ofproto_dpif_rid ofproto_dpif_upcall \
ofproto_dpif_xlate ofproto_xlate_cache ovs_lldp ovs_numa ovs_rcu ovs_replay ovs_router ovs_thread \
ovsdb_cs ovsdb_error ovsdb_idl ox_stat pcap pmd_perf poll_loop process rconn reconnect route_table \
rstp rstp_sm sflow sha1 signals socket_util socket_util_unix stp stream stream_fd stream_replay \
stream_ssl stream_tcp stream_unix svec system_stats tc timeval tunnel unixctl userspace_tso util \
uuid vconn vconn_stream vlog vswitchd";

/// A level for each destination, indexed by [`Destination`].
type PerDestination = [Level; 3];

/// The levels of all modules; those not set one by one have the common level.
pub(super) struct Levels {
    common: PerDestination,
    modules: BTreeMap<String, PerDestination>,
    unlimited: BTreeSet<String>,
}

impl Levels {
    pub(super) const fn new() -> Self {
        Self { common: [Level::Info; 3], modules: BTreeMap::new(), unlimited: BTreeSet::new() }
    }

    pub(super) fn of(&self, module: &str) -> PerDestination {
        self.modules.get(module).copied().unwrap_or(self.common)
    }

    pub(super) fn is_limited(&self, module: &str) -> bool {
        self.unlimited.is_empty() || !self.unlimited.contains(module)
    }

    pub(super) fn most_verbose(&self) -> Level {
        let all = self.modules.values().chain([&self.common]).flatten();
        all.copied().max().unwrap_or(Level::Off)
    }

    pub(super) fn set_all(&mut self, level: Level) {
        self.modules.clear();
        self.common = [level; 3];
    }

    /// The names to list: those known and those set.
    pub(super) fn names(&self) -> BTreeSet<&str> {
        MODULES.split_whitespace().chain(self.modules.keys().map(String::as_str)).collect()
    }

    /// The module of this name, in any case and with `-` for `_`.
    pub(super) fn find(&self, name: &str) -> Option<String> {
        let name = name.to_ascii_lowercase().replace('-', "_");
        self.names().contains(name.as_str()).then_some(name)
    }

    /// Switches the limit of some modules, of all when none is named.
    pub(super) fn set_limited(&mut self, names: &[String], limited: bool) -> Result<(), SpecError> {
        let unknown = || SpecError("unknown module".into());
        let mut chosen = names
            .iter()
            .map(|name| self.find(name).ok_or_else(unknown))
            .collect::<Result<Vec<_>, _>>()?;
        if chosen.is_empty() {
            chosen = self.names().into_iter().map(str::to_owned).collect();
        }
        for name in chosen {
            if limited {
                self.unlimited.remove(&name);
            } else {
                self.unlimited.insert(name);
            }
        }
        Ok(())
    }

    /// Applies a specification: up to one module, destination and level in any order, separated by
    /// colons, commas or blanks. What is left out means all of its kind; no level means `dbg`.
    pub(super) fn set(&mut self, spec: &str) -> Result<(), SpecError> {
        let (mut module, mut destination, mut level) = (None, None, None);
        for word in spec.split([':', ',', ' ', '\t']).filter(|w| !w.is_empty()) {
            if word.eq_ignore_ascii_case("any") {
                continue;
            } else if let Some(found) = Destination::from_name(word) {
                once(&mut destination, found, "destinations")?;
            } else if let Some(found) = Level::from_name(word) {
                once(&mut level, found, "levels")?;
            } else if let Some(found) = self.find(word) {
                once(&mut module, found, "modules")?;
            } else {
                return Err(SpecError(format!("no destination, level, or module \"{word}\"")));
            }
        }
        self.assign(module, destination, level.unwrap_or(Level::Dbg));
        Ok(())
    }

    fn assign(&mut self, module: Option<String>, destination: Option<Destination>, level: Level) {
        let change = |levels: &mut PerDestination| match destination {
            Some(one) => levels[one as usize] = level,
            None => *levels = [level; 3],
        };
        match module {
            Some(name) => change(self.modules.entry(name).or_insert(self.common)),
            None => {
                change(&mut self.common);
                self.modules.values_mut().for_each(change);
            }
        }
    }

    /// The table of `vlog/list`.
    pub(super) fn list(&self) -> String {
        let mut text = String::from(
            "                 console    syslog    file\n                 -------    ------    ------\n",
        );
        for name in self.names() {
            let levels = self.of(name);
            let level = |d: Destination| levels[d as usize].name();
            let unlimited = self.unlimited.contains(name);
            let limit = if unlimited { "    (rate limiting disabled)" } else { "" };
            text += &format!(
                "{name:<16}  {:>4}       {:>4}       {:>4}{limit}\n",
                level(Destination::Console),
                level(Destination::Syslog),
                level(Destination::File)
            );
        }
        text
    }
}

fn once<T>(slot: &mut Option<T>, value: T, what: &str) -> Result<(), SpecError> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(SpecError(format!("cannot specify multiple {what}"))),
    }
}

/// What follows `word` and a colon, the word in any case.
pub(super) fn strip_word<'a>(spec: &'a str, word: &str) -> Option<&'a str> {
    let (first, rest) = spec.split_once(':')?;
    first.eq_ignore_ascii_case(word).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specifications_set_what_they_name() {
        let mut levels = Levels::new();
        levels.set("console:off").unwrap();
        levels.set("bridge:file:dbg").unwrap();
        levels.set("OFPROTO-DPIF").unwrap();
        assert_eq!(levels.of("bridge"), [Level::Info, Level::Off, Level::Dbg]);
        assert_eq!(levels.of("ofproto_dpif"), [Level::Dbg; 3]);
        assert_eq!(levels.of("unheard"), [Level::Info, Level::Off, Level::Info]);
        assert_eq!(levels.most_verbose(), Level::Dbg);
        levels.set("ANY:syslog,err").unwrap();
        assert_eq!(levels.of("bridge")[0], Level::Err);
        assert!(levels.list().contains("\nbridge             OFF        ERR        DBG\n"));
    }

    #[test]
    fn bad_specifications_change_nothing() {
        let mut levels = Levels::new();
        let words = "no destination, level, or module \"foo\"";
        assert_eq!(levels.set("bridge:foo").unwrap_err().to_string(), words);
        assert!(levels.set("file:console").is_err());
        assert_eq!(levels.of("bridge"), [Level::Info; 3]);
    }

    #[test]
    fn limits_are_switched_by_module() {
        let mut levels = Levels::new();
        levels.set_limited(&["bridge".into()], false).unwrap();
        assert!(!levels.is_limited("bridge") && levels.is_limited("vconn"));
        levels.set_limited(&[], true).unwrap();
        assert!(levels.is_limited("bridge"));
        assert!(levels.set_limited(&["nope".into()], true).is_err());
    }
}
