//! `Interface.cfm_mpid` and `other_config:cfm_*`: what CFM is asked for.

use super::ccm::MPID_MAX;
use crate::config::IfaceConf;
use crate::oam::reader::Reader;
use ofproto::{CfmFilter, Gate};

/// Intervals that the standard has numbers for, from 1, ms.
const INTERVALS_MS: [u64; 7] = [3, 10, 100, 1000, 10_000, 60_000, 600_000];
/// The interval if the database does not say it.
const INTERVAL_MS_DEFAULT: u64 = 1000;

/// The time between messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// ms
    pub ms: u64,
    /// The standard's number for it; 0: extended mode, and it has none.
    pub number: u8,
}

impl Interval {
    /// The longest of the standard's intervals that is no longer than `ms`, or exactly `ms`, up to
    /// 65,535.
    fn new(ms: u64, exact: bool) -> Interval {
        let longest = INTERVALS_MS.iter().rposition(|i| *i <= ms).unwrap_or(0);
        match INTERVALS_MS[longest] {
            standard if exact && standard != ms => {
                Interval { ms: ms.min(u16::MAX.into()), number: 0 }
            }
            standard => Interval { ms: standard, number: longest as u8 + 1 },
        }
    }
}

/// `other_config:cfm_ccm_vlan`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vlan {
    /// Always this VLAN; 0: none.
    Id(u16),
    /// Another VLAN each time.
    Random,
}

/// The settings of an interface, with the defaults of ovs-vswitchd.conf.db(5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CfmConf {
    /// `cfm_mpid`.
    pub mpid: u64,
    /// `cfm_interval`.
    pub interval: Interval,
    /// `cfm_extended`.
    pub extended: bool,
    /// `cfm_demand`, which the extended mode has only.
    pub demand: bool,
    /// `cfm_opstate`: the interface is operationally up.
    pub up: bool,
    /// `cfm_ccm_vlan`.
    pub vlan: Vlan,
    /// `cfm_ccm_pcp`.
    pub pcp: u8,
    /// The interface is a tunnel whose key flows set: messages have key 0.
    pub key_zero: bool,
}

impl CfmConf {
    /// What the interface's row asks for, and what of it is wrong.
    pub fn read(iface: &IfaceConf) -> (Option<CfmConf>, Vec<String>) {
        let Some(mpid) = iface.cfm_mpid else { return (None, Vec::new()) };
        let mut reader = Reader::new(&iface.other_config);
        let extended = reader.flag("cfm_extended");
        let mpids = 1..=if extended { u64::MAX } else { MPID_MAX };
        let Some(mpid) = u64::try_from(mpid).ok().filter(|n| mpids.contains(n)) else {
            let most = MPID_MAX;
            return (None, vec![format!("cfm_mpid={mpid} is not 1 to {most}: there is no CFM")]);
        };
        let ms = reader.number("cfm_interval", 1..=u64::MAX, INTERVAL_MS_DEFAULT);
        let vlan = reader.value("cfm_ccm_vlan", |t| match t {
            t if t.eq_ignore_ascii_case("random") => Some(Vlan::Random),
            t => t.parse().ok().filter(|id| *id < 4096).map(Vlan::Id),
        });
        let up = reader.value("cfm_opstate", |t| match t.to_ascii_lowercase().as_str() {
            "up" => Some(true),
            "down" => Some(false),
            _ => None,
        });
        let keyed = |key: &&str| iface.options.get(*key).is_some_and(|v| v == "flow");
        let conf = CfmConf {
            mpid,
            interval: Interval::new(ms, extended),
            extended,
            demand: reader.flag("cfm_demand") && extended,
            up: up.unwrap_or(true),
            vlan: vlan.unwrap_or(Vlan::Id(0)),
            pcp: reader.number("cfm_ccm_pcp", 0..=7, 0) as u8,
            key_zero: ["key", "in_key"].iter().any(keyed),
        };
        (Some(conf), reader.wrong)
    }

    /// Which packets CFM takes, while `gate` is open.
    pub fn filter(&self, gate: &Gate) -> CfmFilter {
        CfmFilter { gate: gate.clone(), extended: self.extended, key_zero: self.key_zero }
    }

    /// How often remote points are looked at, ms: the standard has it 3.5 times the interval
    /// (IEEE 802.1ag, 20.16.1). Counters that say that data arrives are not asked for more often
    /// than every half second.
    pub fn check_ms(&self) -> u64 {
        let ms = if self.demand { self.interval.ms.max(500) } else { self.interval.ms };
        ms * 7 / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_the_standards_unless_extended() {
        let of = |ms, exact| {
            let i = Interval::new(ms, exact);
            (i.ms, i.number)
        };
        assert_eq!([of(1, false), of(99, false), of(300, false)], [(3, 1), (10, 2), (100, 3)]);
        assert_eq!([of(300, true), of(100, true)], [(300, 0), (100, 3)]);
        assert_eq!([of(700_000, false), of(700_000, true)], [(600_000, 7), (65_535, 0)]);
    }
}
