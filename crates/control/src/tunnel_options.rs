//! Options of tunnel interfaces: what they mean, and how they are shown.

use crate::config::IfaceConf;
use crate::vlog;
use action::TunnelKind;
use ofproto::{ErspanSpec, Local, PacketMode, Remote, TunnelSpec};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Options by name.
type StrMap = BTreeMap<String, String>;

const MODULE: &str = "netdev_vport";

/// VXLAN's own UDP port (RFC 7348), and Geneve's (RFC 8926).
const VXLAN_PORT: u16 = 4789;

const GENEVE_PORT: u16 = 6081;

/// GTP-U's own UDP port (3GPP TS 29.281, section 4.4.2).
const GTPU_PORT: u16 = 2152;

const TTL: u8 = 64;

const DSCP: u8 = 0xfc;

/// Options that only ERSPAN has.
const ERSPAN_OPTIONS: &[&str] = &["erspan_ver", "erspan_idx", "erspan_dir", "erspan_hwid"];

/// True if this is the type of a tunnel interface.
pub fn is_tunnel(kind: &str) -> bool {
    matches!(kind, "vxlan" | "geneve" | "gre" | "ip6gre" | "erspan" | "ip6erspan" | "gtpu")
}

/// The UDP port that a type uses when none is given.
pub fn usual_port(kind: &str) -> u16 {
    match kind {
        "vxlan" => VXLAN_PORT,
        "geneve" => GENEVE_PORT,
        "gtpu" => GTPU_PORT,
        _ => 0,
    }
}

/// As [`parse`]. The log says what is passed over; where the interface has an error, that has it
/// too, as with ovs-vswitchd.
pub fn parse_aloud(conf: &IfaceConf) -> Result<TunnelSpec, String> {
    let passed_over = Options(conf).passed_over();
    let spec = parse(conf).map_err(|error| [&passed_over[..], &[error]].concat().join("\n"))?;
    passed_over.iter().for_each(|what| vlog::warn!(MODULE, "{what}"));
    Ok(spec)
}

/// Reads a tunnel interface's options. Errors are in OVS's words where it has them.
pub fn parse(conf: &IfaceConf) -> Result<TunnelSpec, String> {
    let o = Options(conf);
    let (remote, local) = (o.remote()?, o.local());
    match (remote, local) {
        (Remote::Ip(_), Local::Flow) => {
            let kind = &conf.kind;
            return o.fail(&format!("{kind} type requires 'remote_ip=flow' with 'local_ip=flow'"));
        }
        (Remote::Ip(r), Local::Ip(l)) if r.is_ipv4() != l.is_ipv4() => {
            return o.fail("'remote_ip' and 'local_ip' has to be of the same address family");
        }
        _ => {}
    }
    Ok(TunnelSpec {
        kind: o.kind(),
        mode: o.mode()?,
        gpe: o.has_extension("gpe"),
        dst_port: o.dst_port()?,
        remote,
        local,
        in_key: o.key("in_key")?,
        out_key: o.key("out_key")?,
        tos: match o.get("tos") {
            Some("inherit") => None,
            _ => Some(o.tos().unwrap_or(0)),
        },
        ttl: match o.get("ttl") {
            Some("inherit") => None,
            _ => o.number("ttl", 10).map(|n| n as u8).filter(|n| *n != 0).or(Some(TTL)),
        },
        df: o.get("df_default") != Some("false"),
        keyed: o.get("key").or(o.get("out_key")).is_some(),
        csum: o.has_csum() && o.get("csum") == Some("true"),
        sequence: o.is_gre() && o.get("seq") == Some("true"),
        erspan: o.erspan()?,
        egress_mark: o.number("egress_pkt_mark", 10).map(|n| n as u32),
    })
}

pub(crate) struct Options<'a>(pub &'a IfaceConf);

impl<'a> Options<'a> {
    fn get(&self, name: &str) -> Option<&'a str> {
        self.0.options.get(name).map(String::as_str)
    }

    pub fn fail<T>(&self, text: &str) -> Result<T, String> {
        Err(format!("{}: {text}", self.0.name))
    }

    fn bad(&self, name: &str) -> String {
        format!("{}: bad {} '{name}'", self.0.name, self.0.kind)
    }

    fn is_gre(&self) -> bool {
        matches!(self.0.kind.as_str(), "gre" | "ip6gre")
    }

    fn is_erspan(&self) -> bool {
        matches!(self.0.kind.as_str(), "erspan" | "ip6erspan")
    }

    fn has_csum(&self) -> bool {
        !self.is_erspan() && self.0.kind != "gtpu"
    }

    fn kind(&self) -> TunnelKind {
        match self.0.kind.as_str() {
            "geneve" => TunnelKind::Geneve,
            "gre" | "ip6gre" => TunnelKind::Gre,
            "erspan" | "ip6erspan" => TunnelKind::Erspan,
            "gtpu" => TunnelKind::Gtpu,
            _ if self.has_extension("gbp") => TunnelKind::VxlanGbp,
            _ => TunnelKind::Vxlan,
        }
    }

    /// `packet_type`, as the type of tunnel can have it.
    fn mode(&self) -> Result<PacketMode, String> {
        let (l2, l3) = (self.0.kind != "gtpu", self.carries_l3());
        let cannot = |mode: &str, layer: &str| {
            let kind = match self.0.kind.as_str() {
                "vxlan" if self.has_extension("gpe") => "VXLAN-GPE",
                "vxlan" => "VXLAN (without GPE)",
                kind => kind,
            };
            self.fail(&format!(
                "{mode} configured on {kind} tunnel that cannot carry {layer} traffic"
            ))
        };
        match self.get("packet_type") {
            None => Ok(self.usual_mode()),
            Some("legacy_l2") if l2 => Ok(PacketMode::LegacyL2),
            Some("legacy_l2") => cannot("legacy_l2", "L2"),
            Some("legacy_l3") if l3 => Ok(PacketMode::LegacyL3),
            Some("legacy_l3") => cannot("legacy_l3", "L3"),
            Some("ptap") if self.0.kind == "gtpu" => {
                self.fail("packet_type 'ptap' is not supported")
            }
            Some("ptap") => Ok(PacketMode::Aware),
            Some(kind) => self.fail(&format!("unknown packet_type '{kind}'")),
        }
    }

    /// True if a port can be one for packets without an Ethernet header only.
    fn carries_l3(&self) -> bool {
        match self.0.kind.as_str() {
            "gre" | "gtpu" => true,
            "vxlan" => self.has_extension("gpe"),
            _ => false,
        }
    }

    fn usual_mode(&self) -> PacketMode {
        match self.kind() {
            TunnelKind::Gtpu => PacketMode::LegacyL3,
            _ => PacketMode::LegacyL2,
        }
    }

    /// True if the tunnel is VXLAN with this extension.
    fn has_extension(&self, name: &str) -> bool {
        self.0.kind == "vxlan" && self.extensions().any(|e| e == name)
    }

    fn dst_port(&self) -> Result<u16, String> {
        match self.get("dst_port").filter(|_| !self.kind().is_gre()) {
            None => Ok(usual_port(&self.0.kind)),
            Some(text) => text.parse().ok().filter(|n| *n > 0).ok_or(self.bad("dst_port")),
        }
    }

    /// What C's functions make of a text with a number in front, as OVS has it; 0 if there is none.
    fn number(&self, name: &str, base: u32) -> Option<u64> {
        self.get(name).map(|text| leading_number(text, base).0)
    }

    /// A TOS without ECN bits; everything else is passed over.
    fn tos(&self) -> Option<u8> {
        let (n, rest) = leading_number(self.get("tos")?, 0);
        u8::try_from(n).ok().filter(|n| rest.is_empty() && n & !DSCP == 0)
    }

    /// `in_key` or `out_key`, or `key` for both.
    fn key(&self, name: &str) -> Result<Option<u32>, String> {
        let name = if self.get(name).is_some() { name } else { "key" };
        match self.get(name) {
            None => Ok(Some(0)),
            Some("flow") => Ok(None),
            Some(text) => {
                let fits = u32::try_from(leading_number(text, 0).0);
                fits.map(Some).map_err(|_| self.bad(name))
            }
        }
    }

    /// What ERSPAN's options say; a version that the flow sets means that it sets all fields.
    fn erspan(&self) -> Result<ErspanSpec, String> {
        if !self.is_erspan() || self.get("erspan_ver") == Some("flow") {
            return Ok(ErspanSpec::default());
        }
        let one = |name: &str, base: u32, valid: &dyn Fn(u64) -> bool, what: &str| {
            let text = self.get(name).unwrap_or("0");
            match leading_number(text, base).0 {
                _ if text == "flow" => Ok(None),
                n if valid(n) || self.get(name).is_none() => Ok(Some(n as u32)),
                _ => self.fail(&format!("invalid erspan {what}: {text}")),
            }
        };
        let index = |n| n <= action::erspan::INDEX.into();
        let hwid = |n| n <= action::erspan::HWID.into();
        let byte = |n: Option<u32>| n.map(|n| n as u8);
        Ok(ErspanSpec {
            index: one("erspan_idx", 16, &index, "index")?,
            version: byte(one("erspan_ver", 10, &|n| matches!(n, 1 | 2), "version")?),
            direction: byte(one("erspan_dir", 10, &|n| n <= 1, "direction")?),
            hwid: byte(one("erspan_hwid", 16, &hwid, "hardware ID")?),
        })
    }

    fn remote(&self) -> Result<Remote, String> {
        let missing = &format!("{} type requires valid 'remote_ip' argument", self.0.kind);
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

    /// What is no address counts as none, as in OVS.
    fn local(&self) -> Local {
        match self.get("local_ip") {
            Some("flow") => Local::Flow,
            text => text.and_then(|t| t.parse().ok()).map_or(Local::Any, Local::Ip),
        }
    }

    fn extensions(&self) -> impl Iterator<Item = &'a str> {
        self.get("exts").unwrap_or("").split(',').map(str::trim).filter(|e| !e.is_empty())
    }

    /// What is passed over.
    pub fn passed_over(&self) -> Vec<String> {
        const KNOWN: &[&str] = &[
            "remote_ip",
            "local_ip",
            "key",
            "in_key",
            "out_key",
            "tos",
            "ttl",
            "df_default",
            "egress_pkt_mark",
            "packet_type",
        ];
        let (name, kind) = (&self.0.name, &self.0.kind);
        let known = |k: &str| match k {
            "dst_port" => !self.kind().is_gre(),
            "csum" => self.has_csum(),
            k if ERSPAN_OPTIONS.contains(&k) => self.is_erspan(),
            "seq" => self.is_gre(),
            "exts" => kind == "vxlan",
            k => KNOWN.contains(&k),
        };
        let unknown = self.0.options.keys().filter(|k| !known(k));
        let unknown = unknown.map(|option| format!("{name}: unknown {kind} argument '{option}'"));
        let mut all: Vec<String> = unknown.collect();
        let unknown = self.extensions().filter(|e| !matches!(*e, "gbp" | "gpe"));
        all.extend(unknown.map(|extension| format!("{name}: unknown extension '{extension}'")));
        let tos = self.get("tos").filter(|t| *t != "inherit" && self.tos().is_none());
        all.extend(tos.map(|tos| format!("{name}: invalid TOS {tos}")));
        let ip = |text: &&str| text.parse::<IpAddr>().is_ok();
        let local = self.get("local_ip").filter(|t| *t != "flow" && !ip(t));
        all.extend(local.map(|_| self.bad("local_ip")));
        let no_key = |t: &str| t != "flow" && !leading_number(t, 0).1.is_empty();
        let keys = ["key", "in_key", "out_key"].into_iter();
        let keys = keys.filter(|key| self.get(key).is_some_and(no_key));
        all.extend(keys.map(|key| self.bad(key)));
        all
    }
}

/// The number in front of a text and the rest; 0 if there is none. Base 0: as C's literals have it;
/// 16: with `0x` or without.
fn leading_number(text: &str, base: u32) -> (u64, &str) {
    let hex = text.strip_prefix("0x").or(text.strip_prefix("0X"));
    let (digits, base) = match (base, hex) {
        (0 | 16, Some(hex)) => (hex, 16),
        (0, None) if text.starts_with('0') => (text, 8),
        (0, None) => (text, 10),
        (base, _) => (text, base),
    };
    let end = digits.find(|c: char| !c.is_digit(base)).unwrap_or(digits.len());
    let (digits, rest) = digits.split_at(end);
    let n = if digits.is_empty() { Ok(0) } else { u64::from_str_radix(digits, base) };
    (n.unwrap_or(u64::MAX), if digits.is_empty() { text } else { rest })
}

/// The options as `dpif/show` has them, what is usual left out; None for an interface that is no
/// tunnel.
pub fn shown_options(conf: &IfaceConf) -> Option<StrMap> {
    let (o, t) = (Options(conf), is_tunnel(&conf.kind).then(|| parse(conf).ok())??);
    let mut shown = StrMap::new();
    let mut show = |name: &str, value: Option<String>| {
        shown.extend(value.map(|v| (name.to_string(), v)));
    };
    let text = |text: &str| Some(text.to_string());
    show(
        "remote_ip",
        match t.remote {
            Remote::Flow => text("flow"),
            Remote::Ip(ip) => Some(ip.to_string()),
        },
    );
    show(
        "local_ip",
        match t.local {
            Local::Any => None,
            Local::Flow => text("flow"),
            Local::Ip(ip) => Some(ip.to_string()),
        },
    );
    let key = |name: &str, key: Option<u32>| {
        let given = o.get(name).or(o.get("key")).is_some();
        given.then(|| key.map_or("flow".to_string(), |k| k.to_string()))
    };
    let (in_key, out_key) = (key("in_key", t.in_key), key("out_key", t.out_key));
    if in_key == out_key {
        show("key", in_key);
    } else {
        show("in_key", in_key);
        show("out_key", out_key);
    }
    let number = |n: u8| (n != 0).then(|| format!("{n:#x}"));
    show("tos", t.tos.map_or(text("inherit"), number));
    let ttl = |n: u8| (n != TTL).then(|| n.to_string());
    show("ttl", t.ttl.map_or(text("inherit"), ttl));
    show("dst_port", (t.dst_port != usual_port(&conf.kind)).then(|| t.dst_port.to_string()));
    let mode = (t.mode != o.usual_mode()).then(|| mode_text(t.mode).to_string());
    show("packet_type", mode);
    show("csum", t.csum.then(|| "true".into()));
    show("seq", t.sequence.then(|| "true".into()));
    show("df_default", (!t.df).then(|| "false".into()));
    show("egress_pkt_mark", t.egress_mark.map(|m| m.to_string()));
    if t.kind == TunnelKind::Erspan {
        shown.extend(shown_erspan(&t.erspan));
    }
    Some(shown)
}

/// `packet_type`'s word for it.
pub(crate) fn mode_text(mode: PacketMode) -> &'static str {
    match mode {
        PacketMode::LegacyL2 => "legacy_l2",
        PacketMode::LegacyL3 => "legacy_l3",
        PacketMode::Aware => "ptap",
    }
}

/// ERSPAN's options: those that its version has.
fn shown_erspan(e: &ErspanSpec) -> Vec<(String, String)> {
    let flow = || "flow".to_string();
    let version = ("erspan_ver", e.version.map_or_else(flow, |v| v.to_string()));
    let index = ("erspan_idx", e.index.map_or_else(flow, |i| format!("{i:#x}")));
    let direction = ("erspan_dir", e.direction.map_or_else(flow, |d| d.to_string()));
    let hwid = ("erspan_hwid", e.hwid.map_or_else(flow, |h| format!("{h:#x}")));
    let all = match e.version {
        None => vec![version, index, direction, hwid],
        Some(1) => vec![version, index],
        Some(2) => vec![version, direction, hwid],
        Some(_) => vec![version],
    };
    all.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
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
        assert_eq!((t.tos, t.ttl, t.df, t.csum), (None, None, true, true));
        assert_eq!(t.kind, TunnelKind::Vxlan);
        let t = read("remote_ip=flow in_key=flow out_key=0x7 exts=gbp df_default=false").unwrap();
        assert_eq!((t.remote, t.in_key, t.out_key), (Remote::Flow, None, Some(7)));
        assert!(t.kind == TunnelKind::VxlanGbp && !t.df && t.ttl == Some(64));
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
            ("remote_ip=10.0.0.1 key=4294967296", "v: bad vxlan 'key'"),
            (
                "remote_ip=10.0.0.1 packet_type=legacy_l3",
                "v: legacy_l3 configured on VXLAN (without GPE) tunnel that cannot carry L3 traffic",
            ),
            ("remote_ip=10.0.0.1 exts=gpe packet_type=l3", "v: unknown packet_type 'l3'"),
            ("remote_ip=10.0.0.1 dst_port=65536", "v: bad vxlan 'dst_port'"),
        ] {
            assert_eq!(read(options).unwrap_err(), error, "{options}");
        }
    }

    #[test]
    fn values_that_make_no_sense_mean_what_they_mean_in_ovs() {
        let shown = |options: &str| {
            let pairs = options.split_whitespace().filter_map(|o| o.split_once('='));
            let options = pairs.map(|(k, v)| (k.to_string(), v.to_string())).collect();
            let (name, kind) = ("v".to_string(), "vxlan".to_string());
            let conf = IfaceConf { name, kind, options, ..IfaceConf::default() };
            let all = shown_options(&conf).unwrap();
            all.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(" ")
        };
        for (options, want) in [
            ("key=banana", "key=0"),
            ("key=0x10", "key=16"),
            ("key=16777216", "key=16777216"),
            ("out_key=5", "out_key=5"),
            ("in_key=1 key=2", "in_key=1 out_key=2"),
            ("in_key=flow out_key=5", "in_key=flow out_key=5"),
            ("local_ip=bar", ""),
            ("tos=300", ""),
            ("tos=0xff", ""),
            ("tos=xx", ""),
            ("tos=64", "tos=0x40"),
            ("tos=inherit ttl=inherit", "tos=inherit ttl=inherit"),
            ("ttl=0", ""),
            ("ttl=10", "ttl=10"),
            ("ttl=700", "ttl=188"),
            ("ttl=xx", ""),
            ("csum=zzz df_default=maybe foo=bar", ""),
            ("egress_pkt_mark=x", "egress_pkt_mark=0"),
            ("dst_port=8472 exts=gbp", "dst_port=8472"),
            ("packet_type=legacy_l2 exts=gpe", ""),
            ("packet_type=legacy_l3 exts=gpe", "packet_type=legacy_l3"),
            ("packet_type=ptap", "packet_type=ptap"),
        ] {
            let mut want: Vec<&str> = want.split_whitespace().collect();
            want.push("remote_ip=1.1.2.92");
            want.sort_unstable();
            assert_eq!(
                shown(&format!("remote_ip=1.1.2.92 {options}")),
                want.join(" "),
                "{options}"
            );
        }
    }

    #[test]
    fn erspan_has_options_of_its_own() {
        let conf = |kind: &str, options: &str| {
            let pairs = options.split_whitespace().filter_map(|o| o.split_once('='));
            let options = pairs.map(|(k, v)| (k.to_string(), v.to_string())).collect();
            IfaceConf { name: "e".into(), kind: kind.into(), options, ..IfaceConf::default() }
        };
        let shown = |options: &str| {
            let all = shown_options(&conf("erspan", &format!("remote_ip=flow {options}"))).unwrap();
            all.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(" ")
        };
        for (options, want) in [
            ("", "erspan_ver=0"),
            ("erspan_ver=1 erspan_idx=10", "erspan_idx=0x10 erspan_ver=1"),
            ("erspan_ver=1 erspan_idx=0xfffff", "erspan_idx=0xfffff erspan_ver=1"),
            ("erspan_ver=2 erspan_hwid=3f", "erspan_dir=0 erspan_hwid=0x3f erspan_ver=2"),
            (
                "erspan_ver=2 erspan_dir=flow erspan_hwid=flow csum=true seq=true dst_port=3",
                "erspan_dir=flow erspan_hwid=flow erspan_ver=2",
            ),
            ("erspan_ver=flow", "erspan_dir=flow erspan_hwid=flow erspan_idx=flow erspan_ver=flow"),
        ] {
            assert_eq!(shown(options), format!("{want} remote_ip=flow"), "{options}");
        }
        for (options, error) in [
            ("erspan_ver=3", "e: invalid erspan version: 3"),
            ("erspan_ver=0", "e: invalid erspan version: 0"),
            ("erspan_ver=1 erspan_idx=0x100000", "e: invalid erspan index: 0x100000"),
            ("erspan_ver=2 erspan_dir=2", "e: invalid erspan direction: 2"),
            ("erspan_ver=2 erspan_hwid=40", "e: invalid erspan hardware ID: 40"),
        ] {
            let options = format!("remote_ip=10.0.0.1 {options}");
            assert_eq!(parse(&conf("ip6erspan", &options)).unwrap_err(), error);
        }
        let t = parse(&conf("erspan", "remote_ip=fd00::2 erspan_ver=2 erspan_dir=1")).unwrap();
        assert_eq!((t.kind, t.dst_port), (TunnelKind::Erspan, 0));
        assert_eq!((t.erspan.version, t.erspan.direction), (Some(2), Some(1)));
    }

    #[test]
    fn other_kinds_have_their_own_ways() {
        let read = |kind: &str, options: &str| {
            let pairs = options.split_whitespace().filter_map(|o| o.split_once('='));
            let options = pairs.map(|(k, v)| (k.to_string(), v.to_string())).collect();
            let (name, kind) = ("v".to_string(), kind.to_string());
            parse(&IfaceConf { name, kind, options, ..IfaceConf::default() })
        };
        let t = read("geneve", "remote_ip=10.0.0.2 key=flow").unwrap();
        assert_eq!((t.kind, t.dst_port, t.out_key), (TunnelKind::Geneve, 6081, None));
        let t = read("gre", "remote_ip=10.0.0.2 key=4294967295 seq=true dst_port=7").unwrap();
        assert_eq!((t.kind, t.dst_port, t.in_key), (TunnelKind::Gre, 0, Some(!0)));
        assert!(t.keyed && t.sequence && !t.csum);
        let t = read("gtpu", "remote_ip=10.0.0.2 packet_type=legacy_l3 csum=true").unwrap();
        assert_eq!((t.kind, t.dst_port, t.csum), (TunnelKind::Gtpu, 2152, false));
        assert_eq!(
            read("gtpu", "remote_ip=10.0.0.2 packet_type=legacy_l2").unwrap_err(),
            "v: legacy_l2 configured on gtpu tunnel that cannot carry L2 traffic"
        );
        assert_eq!(t.mode, PacketMode::LegacyL3);
        assert_eq!(
            read("gtpu", "remote_ip=10.0.0.2 packet_type=ptap").unwrap_err(),
            "v: packet_type 'ptap' is not supported"
        );
        let t = read("gre", "remote_ip=10.0.0.2 packet_type=legacy_l3").unwrap();
        assert!(t.mode == PacketMode::LegacyL3 && !t.gpe);
        let t = read("vxlan", "remote_ip=10.0.0.2 packet_type=ptap exts=gpe").unwrap();
        assert!(t.mode == PacketMode::Aware && t.gpe && t.kind == TunnelKind::Vxlan);
        let t = read("gre", "remote_ip=10.0.0.2 exts=gpe").unwrap();
        assert!(t.mode == PacketMode::LegacyL2 && !t.gpe);
        assert_eq!(
            read("ip6gre", "remote_ip=fd00::2 packet_type=legacy_l3").unwrap_err(),
            "v: legacy_l3 configured on ip6gre tunnel that cannot carry L3 traffic"
        );
        let t = read("ip6gre", "remote_ip=fd00::2 packet_type=ptap").unwrap();
        assert!(!t.keyed && !t.sequence && t.mode == PacketMode::Aware);
        assert_eq!(
            read("geneve", "key=9").unwrap_err(),
            "v: geneve type requires valid 'remote_ip' argument"
        );
        assert_eq!(
            read("gre", "remote_ip=10.0.0.1 key=4294967296").unwrap_err(),
            "v: bad gre 'key'"
        );
    }
}
