//! Tunnel interfaces: what their options mean, and the datapath ports that they share.

use crate::config::IfaceConf;
use crate::ports::Iface;
use crate::state::State;
use crate::vlog;
use flow::PortNo;
use ofproto::{BridgeId, Local, Remote, Switch, TunnelSpec};
use openflow::port_state;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Options or a status.
type StrMap = BTreeMap<String, String>;

const MODULE: &str = "netdev_vport";
/// VXLAN's own UDP port (RFC 7348).
pub const VXLAN_PORT: u16 = 4789;
const TTL: u8 = 64;
const DSCP: u8 = 0xfc;
const VNI_BITS: u32 = 24;

/// Is this the type of a tunnel interface?
pub fn is_tunnel(kind: &str) -> bool {
    kind == "vxlan"
}

/// Reads a tunnel interface's options. Errors are in OVS's words where it has them.
pub fn parse(conf: &IfaceConf) -> Result<TunnelSpec, String> {
    let o = Options(conf);
    let (remote, local) = (o.remote()?, o.local()?);
    match (remote, local) {
        (Remote::Ip(_), Local::Flow) => {
            return o.fail("vxlan type requires 'remote_ip=flow' with 'local_ip=flow'");
        }
        (Remote::Ip(r), Local::Ip(l)) if r.is_ipv4() != l.is_ipv4() => {
            return o.fail("'remote_ip' and 'local_ip' has to be of the same address family");
        }
        _ => {}
    }
    if let Some(kind) = o.get("packet_type").filter(|k| *k != "legacy_l2") {
        return match kind {
            "legacy_l3" | "ptap" => o.fail(&format!("packet_type '{kind}' is not supported")),
            _ => o.fail(&format!("unknown packet_type '{kind}'")),
        };
    }
    Ok(TunnelSpec {
        dst_port: match o.number("dst_port")? {
            None => VXLAN_PORT,
            Some(n) => u16::try_from(n).ok().filter(|n| *n > 0).ok_or(o.bad("dst_port"))?,
        },
        remote,
        local,
        in_key: o.key("in_key")?,
        out_key: o.key("out_key")?,
        tos: match o.get("tos") {
            Some("inherit") => None,
            _ => Some(o.number("tos")?.map_or(0, |n| n as u8 & DSCP)),
        },
        ttl: match o.get("ttl") {
            Some("inherit") => None,
            _ => Some(o.number("ttl")?.map_or(TTL, |n| n as u8)),
        },
        df: o.get("df_default") != Some("false"),
        csum: o.get("csum") == Some("true"),
        gbp: o.extensions().any(|e| e == "gbp"),
        egress_mark: o.number("egress_pkt_mark")?.map(|n| n as u32),
    })
}

struct Options<'a>(&'a IfaceConf);

impl<'a> Options<'a> {
    fn get(&self, name: &str) -> Option<&'a str> {
        self.0.options.get(name).map(String::as_str)
    }

    fn fail<T>(&self, text: &str) -> Result<T, String> {
        Err(format!("{}: {text}", self.0.name))
    }

    fn bad(&self, name: &str) -> String {
        format!("{}: bad vxlan '{name}'", self.0.name)
    }

    /// A number, decimal or after `0x`.
    fn number(&self, name: &str) -> Result<Option<u64>, String> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let parsed = match text.strip_prefix("0x").or(text.strip_prefix("0X")) {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => text.parse(),
        };
        parsed.map(Some).map_err(|_| self.bad(name))
    }

    /// `in_key` or `out_key`, or `key` for both.
    fn key(&self, name: &str) -> Result<Option<u32>, String> {
        let name = if self.get(name).is_some() { name } else { "key" };
        match self.get(name) {
            None => Ok(Some(0)),
            Some("flow") => Ok(None),
            Some(_) => {
                let fits = self.number(name)?.filter(|n| n >> VNI_BITS == 0);
                fits.map(|n| Some(n as u32)).ok_or_else(|| self.bad(name))
            }
        }
    }

    fn remote(&self) -> Result<Remote, String> {
        let missing = "vxlan type requires valid 'remote_ip' argument";
        match self.get("remote_ip") {
            None => self.fail(missing),
            Some("flow") => Ok(Remote::Flow),
            Some(text) => match text.parse::<IpAddr>() {
                Ok(ip) if ip.is_multicast() => {
                    self.fail(&format!("multicast remote_ip={ip} not allowed"))
                }
                Ok(ip) => Ok(Remote::Ip(ip)),
                Err(_) => Err(format!("{}\n{}: {missing}", self.bad("remote_ip"), self.0.name)),
            },
        }
    }

    fn local(&self) -> Result<Local, String> {
        match self.get("local_ip") {
            None => Ok(Local::Any),
            Some("flow") => Ok(Local::Flow),
            Some(text) => text.parse().map(Local::Ip).map_err(|_| self.bad("local_ip")),
        }
    }

    fn extensions(&self) -> impl Iterator<Item = &'a str> {
        self.get("exts").unwrap_or("").split(',').map(str::trim).filter(|e| !e.is_empty())
    }

    /// Tells the log what is passed over.
    fn warn(&self) {
        const KNOWN: &[&str] = &[
            "remote_ip",
            "local_ip",
            "key",
            "in_key",
            "out_key",
            "dst_port",
            "tos",
            "ttl",
            "df_default",
            "csum",
            "exts",
            "egress_pkt_mark",
            "packet_type",
        ];
        let name = &self.0.name;
        for unknown in self.0.options.keys().filter(|k| !KNOWN.contains(&k.as_str())) {
            vlog::warn!(MODULE, "{name}: unknown vxlan argument '{unknown}'");
        }
        for unknown in self.extensions().filter(|e| *e != "gbp") {
            vlog::warn!(MODULE, "{name}: unknown extension '{unknown}'");
        }
        if let Ok(Some(tos)) = self.number("tos")
            && tos & !u64::from(DSCP) != 0
        {
            vlog::warn!(MODULE, "{name}: invalid TOS {tos}");
        }
    }
}

/// The options as `dpif/show` has them; None for an interface that is no tunnel.
pub fn shown_options(conf: &IfaceConf) -> Option<StrMap> {
    if !is_tunnel(&conf.kind) {
        return None;
    }
    let default = |key: &str, value: &str| match key {
        "dst_port" => value == "4789",
        "ttl" => value == "64",
        "tos" => value == "0",
        "csum" => value != "true",
        "df_default" => value != "false",
        "exts" => true,
        _ => false,
    };
    let shown = conf.options.iter().filter(|(k, v)| !default(k, v));
    Some(shown.map(|(k, v)| (k.clone(), v.clone())).collect())
}

/// Datapath ports of tunnels by UDP port, with the number of interfaces that use each.
#[derive(Default)]
pub struct TunnelPorts(BTreeMap<u16, (PortNo, usize)>);

impl TunnelPorts {
    /// UDP port, number, name, ascending.
    pub fn all(&self) -> impl Iterator<Item = (u16, PortNo, String)> {
        self.0.iter().map(|(udp, (no, _))| (*udp, *no, port_name(*udp)))
    }

    /// The name of a tunnels' datapath port.
    pub fn name(&self, no: PortNo) -> Option<String> {
        self.all().find(|(_, n, _)| *n == no).map(|(.., name)| name)
    }

    /// The number of the datapath port of this name.
    pub fn number(&self, name: &str) -> Option<PortNo> {
        self.all().find(|(.., n)| n == name).map(|(_, no, _)| no)
    }

    /// An interface gives its datapath port up; is it to be closed?
    pub fn released(&mut self, no: PortNo) -> bool {
        let found = self.0.iter_mut().find(|(_, (n, _))| *n == no);
        let Some((udp, (_, users))) = found else { return true };
        *users -= 1;
        let (udp, last) = (*udp, *users == 0);
        if last {
            self.0.remove(&udp);
        }
        last
    }

    /// Datapath port and number of users, by name.
    pub fn users(&self) -> impl Iterator<Item = (String, PortNo, usize)> {
        self.0.iter().map(|(udp, (no, users))| (port_name(*udp), *no, *users))
    }
}

/// As OVS calls the kernel's device.
fn port_name(udp: u16) -> String {
    format!("vxlan_sys_{udp}")
}

/// Checks a tunnel interface and gives it its datapath port.
pub fn attach(s: &mut State, conf: &IfaceConf) -> Result<PortNo, String> {
    let spec = parse(conf)?;
    Options(conf).warn();
    let ids: Vec<BridgeId> = s.ofproto.bridges().map(|(id, _)| id).collect();
    let others = ids.iter().flat_map(|id| s.ofproto.ports(*id)).filter_map(|p| p.tunnel.as_ref());
    for other in others.filter(|o| o.dst_port == spec.dst_port) {
        if other.gbp != spec.gbp {
            return Options(conf).fail(
                "VXLAN-GBP, and non-VXLAN-GBP tunnels can't be configured on the same dst_port",
            );
        }
        if other.conflicts(&spec) {
            return Err(format!(
                "could not add network device {} to ofproto (File exists)",
                conf.name
            ));
        }
    }
    if let Some((no, users)) = s.tunnels.0.get_mut(&spec.dst_port) {
        *users += 1;
        return Ok(*no);
    }
    let name = port_name(spec.dst_port);
    let port = port::TunnelPort::new(&name, &conf.kind, s.devices.pools.clone());
    let no = s.dp.add_port(Box::new(port), Default::default()).map_err(|e| e.to_string())?;
    s.tunnels.0.insert(spec.dst_port, (no, 1));
    Ok(no)
}

/// `Interface.status`: by which device the tunnel's packets leave.
pub fn status(ofproto: &Switch, bridge: BridgeId, iface: &Iface) -> StrMap {
    let spec = iface.of_port.and_then(|no| ofproto.port(bridge, no));
    let Some(device) = spec.and_then(|spec| ofproto.egress(spec)) else { return StrMap::new() };
    let all = ofproto.bridges().flat_map(|(id, _)| ofproto.ports(id));
    let port = all.into_iter().find(|p| p.name == device);
    let down = port.is_some_and(|p| p.state & port_state::LINK_DOWN != 0);
    let carrier = if down { "down" } else { "up" };
    StrMap::from([
        ("tunnel_egress_iface".into(), device.into()),
        ("tunnel_egress_iface_carrier".into(), carrier.into()),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(options: &str) -> Result<TunnelSpec, String> {
        let pairs = options.split_whitespace().filter_map(|o| o.split_once('='));
        let options = pairs.map(|(k, v)| (k.to_string(), v.to_string())).collect();
        let (name, kind) = ("v".to_string(), "vxlan".to_string());
        parse(&IfaceConf { name, kind, options, ..IfaceConf::default() })
    }

    #[test]
    fn options_mean_what_they_mean_in_ovs() {
        let t = read("remote_ip=10.0.0.2 key=42 tos=inherit ttl=inherit csum=true").unwrap();
        assert_eq!((t.in_key, t.out_key, t.dst_port), (Some(42), Some(42), VXLAN_PORT));
        assert_eq!((t.tos, t.ttl, t.df, t.csum, t.gbp), (None, None, true, true, false));
        let t = read("remote_ip=flow in_key=flow out_key=0x7 exts=gbp df_default=false").unwrap();
        assert_eq!((t.remote, t.in_key, t.out_key), (Remote::Flow, None, Some(7)));
        assert!(t.gbp && !t.df && t.ttl == Some(64));
        let t = read("remote_ip=fd00::2 dst_port=4790 egress_pkt_mark=5").unwrap();
        assert_eq!((t.in_key, t.egress_mark, t.dst_port), (Some(0), Some(5), 4790));
    }

    #[test]
    fn what_is_refused_is_refused_in_words() {
        for (options, error) in [
            ("key=3", "v: vxlan type requires valid 'remote_ip' argument"),
            (
                "remote_ip=bogus",
                "v: bad vxlan 'remote_ip'\nv: vxlan type requires valid 'remote_ip' argument",
            ),
            ("remote_ip=224.0.0.1", "v: multicast remote_ip=224.0.0.1 not allowed"),
            (
                "remote_ip=10.0.0.1 local_ip=fd00::1",
                "v: 'remote_ip' and 'local_ip' has to be of the same address family",
            ),
            (
                "remote_ip=10.0.0.1 local_ip=flow",
                "v: vxlan type requires 'remote_ip=flow' with 'local_ip=flow'",
            ),
            ("remote_ip=10.0.0.1 packet_type=x", "v: unknown packet_type 'x'"),
            ("remote_ip=10.0.0.1 key=16777216", "v: bad vxlan 'key'"),
            ("remote_ip=10.0.0.1 dst_port=65536", "v: bad vxlan 'dst_port'"),
        ] {
            assert_eq!(read(options).unwrap_err(), error, "{options}");
        }
    }

    #[test]
    fn a_port_is_closed_with_its_last_user() {
        let mut p = TunnelPorts([(4789, (7, 2))].into());
        assert_eq!(p.name(7).as_deref(), Some("vxlan_sys_4789"));
        assert!(!p.released(7) && p.released(7) && p.name(7).is_none());
        assert!(p.released(3), "not a tunnel's");
    }
}
