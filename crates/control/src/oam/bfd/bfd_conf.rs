//! `Interface.bfd`: what a session is asked for.

use crate::oam::reader::Reader;
use ofproto::Gate;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// Where control packets go when the database does not say: an address of Nicira's.
const DST_MAC: [u8; 6] = [0x00, 0x23, 0x20, 0x00, 0x00, 0x01];
/// Source address of control packets when the database names none.
const SRC_IP: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
const DST_IP: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 0);

/// The settings of a session, with the defaults of ovs-vswitchd.conf.db(5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conf {
    /// `min_rx`, ms.
    pub min_rx: u64,
    /// `min_tx`, ms.
    pub min_tx: u64,
    /// `decay_min_rx`, ms; 0: it does not decay.
    pub decay_min_rx: u64,
    /// `forwarding_if_rx`.
    pub forwarding_if_rx: bool,
    /// `cpath_down`.
    pub cpath_down: bool,
    /// `check_tnl_key`.
    pub check_tnl_key: bool,
    /// `mult`.
    pub mult: u8,
    /// `oam`.
    pub oam: bool,
    /// `bfd_local_src_mac`; None: the interface's.
    pub src_mac: Option<[u8; 6]>,
    /// `bfd_local_dst_mac`.
    pub dst_mac: [u8; 6],
    /// `bfd_remote_dst_mac`: only packets to this address are the session's.
    pub remote_dst_mac: Option<[u8; 6]>,
    /// `bfd_src_ip`.
    pub src_ip: Ipv4Addr,
    /// `bfd_dst_ip`.
    pub dst_ip: Ipv4Addr,
}

impl Conf {
    /// What the column asks for, and what of it is wrong; None: no session.
    pub fn read(column: &BTreeMap<String, String>) -> Option<(Conf, Vec<String>)> {
        let mut reader = Reader::new(column);
        if !reader.flag("enable") {
            return None;
        }
        let min_rx = reader.number("min_rx", 1..=MS_MAX, 1000);
        let mut conf = Conf {
            min_rx,
            min_tx: reader.number("min_tx", 1..=MS_MAX, 100),
            decay_min_rx: reader.number("decay_min_rx", 0..=MS_MAX, 0),
            forwarding_if_rx: reader.flag("forwarding_if_rx"),
            cpath_down: reader.flag("cpath_down"),
            check_tnl_key: reader.flag("check_tnl_key"),
            mult: reader.number("mult", 1..=255, 3) as u8,
            oam: reader.flag("oam"),
            src_mac: reader.mac("bfd_local_src_mac"),
            dst_mac: reader.mac("bfd_local_dst_mac").unwrap_or(DST_MAC),
            remote_dst_mac: reader.mac("bfd_remote_dst_mac"),
            src_ip: reader.ip("bfd_src_ip", SRC_IP),
            dst_ip: reader.ip("bfd_dst_ip", DST_IP),
        };
        if conf.decay_min_rx > 0 && conf.decay_min_rx < min_rx {
            reader.wrong.push(format!("decay_min_rx cannot be less than {min_rx} ms"));
            conf.decay_min_rx = 0;
        }
        Some((conf, reader.wrong))
    }

    /// Which packets the session takes, while `gate` is open.
    pub fn filter(&self, gate: &Gate) -> ofproto::BfdFilter {
        ofproto::BfdFilter {
            gate: gate.clone(),
            dst_mac: self.remote_dst_mac,
            dst_ip: Some(self.src_ip).filter(|ip| *ip != SRC_IP),
            key_zero: self.check_tnl_key,
        }
    }
}

/// An hour: no interval is longer.
const MS_MAX: u64 = 3_600_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Option<(Conf, Vec<String>)> {
        Conf::read(&pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect())
    }

    #[test]
    fn what_is_wrong_is_said_and_has_its_default() {
        assert_eq!(read(&[]), None);
        assert_eq!(read(&[("enable", "false"), ("min_rx", "7")]), None);
        let (usual, wrong) = read(&[("enable", "TRUE")]).unwrap();
        assert_eq!((usual.min_rx, usual.min_tx, usual.mult, wrong.len()), (1000, 100, 3, 0));
        let gate = Gate::default();
        let filter = ofproto::BfdFilter { gate: gate.clone(), ..Default::default() };
        assert_eq!(usual.filter(&gate), filter);
        let all = [
            ("enable", "true"),
            ("min_rx", "x"),
            ("min_tx", "0"),
            ("mult", "256"),
            ("decay_min_rx", "999"),
            ("oam", "maybe"),
            ("bfd_dst_ip", "1.2.3"),
            ("bfd_src_ip", ""),
            ("bfd_local_dst_mac", "00:00:00:00:00:00"),
            ("bfd_remote_dst_mac", "00:23"),
        ];
        let (conf, wrong) = read(&all).unwrap();
        assert_eq!(conf, usual);
        assert_eq!(wrong.len(), 7, "{wrong:?}");
    }
}
