//! `ovs/route/*`, `tnl/*`, `ofproto/list-tunnels`: tunnels and the network under them.

use crate::ports::parse_mac;
use crate::state::State;
use crate::tunnel_options::mode_text;
use ofproto::{Local, Remote, Route, TunnelSpec};
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use wire::{ETH_IPV4, ETH_IPV6};

type Answer = Result<String, String>;

const INVALID: &str = "Invalid parameters";

/// `ovs/route/show`.
pub fn routes(s: &mut State, _: &[String]) -> Answer {
    let mut out = String::from("Route Table:\n");
    for r in s.ofproto.routes().all() {
        let _ = write!(out, "{}: {}/{}", if r.user { "User" } else { "Cached" }, r.prefix, r.len);
        if r.mark != 0 {
            let _ = write!(out, " MARK {}", r.mark);
        }
        let _ = write!(out, " dev {}", r.device);
        if let Some(gateway) = r.gateway {
            let _ = write!(out, " GW {gateway}");
        }
        let _ = writeln!(out, " SRC {}{}", r.source, if r.local { " local" } else { "" });
    }
    Ok(out)
}

/// `ADDRESS[/LEN]`.
pub fn network(text: &str) -> Option<(IpAddr, u8)> {
    let (ip, len) = match text.split_once('/') {
        Some((ip, len)) => (ip, Some(len)),
        None => (text, None),
    };
    let ip: IpAddr = ip.parse().ok()?;
    let most = if ip.is_ipv4() { 32 } else { 128 };
    let len = len.map_or(Some(most), |l| l.parse().ok().filter(|l| *l <= most))?;
    Some((ip, len))
}

/// The first address of a network.
fn first(ip: IpAddr, len: u8) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => {
            (ip & Ipv4Addr::from(!u32::MAX.checked_shr(len.into()).unwrap_or(0))).into()
        }
        IpAddr::V6(ip) => {
            (ip & Ipv6Addr::from(!u128::MAX.checked_shr(len.into()).unwrap_or(0))).into()
        }
    }
}

/// The mark of `pkt_mark=N` and what else is among optional arguments.
fn options(args: &[String]) -> Result<(u32, Option<&str>), String> {
    let (mut mark, mut other) = (0, None);
    for a in args {
        match a.strip_prefix("pkt_mark=") {
            Some(n) => mark = n.parse().map_err(|_| "Invalid pkt_mark".to_string())?,
            None if other.is_none() => other = Some(a.as_str()),
            None => return Err(INVALID.into()),
        }
    }
    Ok((mark, other))
}

/// `ovs/route/add NET/LEN DEVICE [GATEWAY] [pkt_mark=N]`.
pub fn add_route(s: &mut State, args: &[String]) -> Answer {
    let (prefix, len) = network(&args[0]).ok_or(INVALID)?;
    let (mark, gateway) = options(&args[2..])?;
    let gateway: Option<IpAddr> = match gateway.map(str::parse::<IpAddr>).transpose() {
        Ok(g) if g.is_none_or(|g| g.is_ipv4() == prefix.is_ipv4()) => g,
        _ if prefix.is_ipv4() => return Err("Invalid pkt_mark or gateway".into()),
        _ => return Err("Invalid pkt_mark or IPv6 gateway".into()),
    };
    let prefix = first(prefix, len);
    let device = args[1].clone();
    crate::underlay::read_now(s);
    let source = s.ofproto.routes().source_for(&device, gateway.unwrap_or(prefix));
    let source = source.ok_or("Error while inserting route.")?;
    let (local, user) = (false, true);
    let route = Route { prefix, len, device, gateway, source, mark, local, user };
    s.ofproto.change_routes(|t| t.insert(route));
    s.flush_changes();
    s.status_dirty = true;
    Ok("OK\n".into())
}

/// `ovs/route/del NET/LEN [pkt_mark=N]`.
pub fn del_route(s: &mut State, args: &[String]) -> Answer {
    let (prefix, len) = network(&args[0]).ok_or(INVALID)?;
    let (mark, _) = options(&args[1..])?;
    let was = s.ofproto.change_routes(|t| t.remove_user(prefix, len, mark));
    s.flush_changes();
    s.status_dirty = true;
    if was { Ok("OK\n".into()) } else { Err("Not found".into()) }
}

/// `ovs/route/lookup ADDRESS [pkt_mark=N]`.
pub fn lookup_route(s: &mut State, args: &[String]) -> Answer {
    let to: IpAddr = args[0].parse().map_err(|_| INVALID)?;
    let (mark, _) = options(&args[1..])?;
    let r = s.ofproto.routes().lookup(to, mark, None).ok_or("Not found")?;
    let gateway = r.gateway.unwrap_or(Ipv6Addr::UNSPECIFIED.into());
    Ok(format!("src {}\ngateway {gateway}\ndev {}\n", r.source, r.device))
}

/// `tnl/neigh/show`.
pub fn neighbours(s: &mut State, _: &[String]) -> Answer {
    let mut out = format!("{:<46}{:<20}Bridge\n{:=<74}\n", "IP", "MAC", "");
    let mut all: Vec<_> = s.ofproto.neighbours().collect();
    all.sort_by_key(|(port, ip, _)| (*ip, *port));
    for (port, ip, n) in all {
        let mac = n.mac.map(|b| format!("{b:02x}")).join(":");
        let _ = writeln!(out, "{:<46}{mac:<20}{port}", ip.to_string());
    }
    Ok(out)
}

/// `tnl/neigh/set BRIDGE IP MAC`.
pub fn set_neighbour(s: &mut State, args: &[String]) -> Answer {
    let ip: IpAddr = args[1].parse().map_err(|_| "bad IP address")?;
    let mac = parse_mac(&args[2]).ok_or("bad MAC address")?;
    let now = s.now_ns();
    s.ofproto.set_neighbour(&args[0], ip, mac, now);
    s.flush_changes();
    Ok("OK\n".into())
}

/// `tnl/neigh/flush`.
pub fn flush_neighbours(s: &mut State, _: &[String]) -> Answer {
    s.ofproto.flush_neighbours();
    s.flush_changes();
    Ok("OK\n".into())
}

/// `tnl/neigh/aging [SECONDS]`.
pub fn aging(s: &mut State, args: &[String]) -> Answer {
    let Some(text) = args.first() else { return Ok(format!("{}\n", s.ofproto.neighbour_aging())) };
    let seconds = text.parse().ok().filter(|n| (1..=3600).contains(n)).ok_or("bad aging value")?;
    s.ofproto.set_neighbour_aging(seconds);
    Ok("OK\n".into())
}

/// `tnl/ports/show [-v]`.
pub fn ports(s: &mut State, args: &[String]) -> Answer {
    let mut out = String::from("Listening ports:\n");
    let mut tunnels: Vec<_> = s.tunnels.all().collect();
    tunnels.sort_by_key(|(_, p)| p.no);
    if args.first().is_none_or(|a| a != "-v") {
        for (name, p) in tunnels {
            let _ = writeln!(out, "{name} ({}) ref_cnt={}", p.no, p.users);
        }
        return Ok(out);
    }
    let ids: Vec<_> = s.ofproto.bridges().map(|(id, _)| id).collect();
    let specs: Vec<_> = ids.iter().flat_map(|id| s.ofproto.ports(*id)).collect();
    for (device, ip, _) in s.ofproto.routes().addresses() {
        let Some(port) = specs.iter().find(|p| p.name == *device) else { continue };
        let mac = port.hw_addr.map(|b| format!("{b:02x}")).join(":");
        let (eth_type, family) = if ip.is_ipv4() { (ETH_IPV4, "ipv4") } else { (ETH_IPV6, "ipv6") };
        for (name, p) in &tunnels {
            let (proto, udp) = match p.udp {
                0 => (47, String::new()),
                udp => (17, format!(",udp(dst={udp})")),
            };
            let _ = writeln!(
                out,
                "{name} ({}) : eth(dst={mac}),eth_type({eth_type:#06x}),\
                 {family}(dst={ip},proto={proto},frag=no){udp}",
                p.no
            );
        }
    }
    Ok(out)
}

/// `tnl/egress_port_range [MIN MAX]`.
pub fn port_range(s: &mut State, args: &[String]) -> Answer {
    let [min, max] = args else {
        let (min, max) = s.ofproto.tunnel_source_ports();
        return Ok(format!("Tunnel UDP source port range: {min}-{max}\n"));
    };
    let number = |t: &str| t.parse::<u16>().ok().filter(|n| *n > 0);
    // To OVS these are answers, not errors.
    let Some(min) = number(min) else { return Ok("Invalid min.\n".into()) };
    let Some(max) = number(max) else { return Ok("Invalid max.\n".into()) };
    s.ofproto.set_tunnel_source_ports(min.min(max), min.max(max));
    s.flush_changes();
    Ok("OK\n".into())
}

/// `ofproto/list-tunnels`.
pub fn list(s: &mut State, _: &[String]) -> Answer {
    let ids: Vec<_> = s.ofproto.bridges().map(|(id, _)| id).collect();
    let specs = ids.iter().flat_map(|id| s.ofproto.ports(*id));
    let line = |p: &ofproto::PortSpec| {
        let (t, no) = (p.tunnel.as_ref()?, p.dp_port?);
        let kind = s.tunnels.kind(no)?;
        Some(format!("port {no}: {} ({kind}: {})\n", p.name, describe(t, no)))
    };
    Ok(specs.filter_map(line).collect())
}

fn key_text(key: Option<u32>) -> String {
    key.map_or("flow".into(), |k| format!("{k:#x}").replace("0x0", "0"))
}

fn describe(t: &TunnelSpec, no: flow::PortNo) -> String {
    let local = match t.local {
        Local::Any => "::".into(),
        Local::Flow => "flow".into(),
        Local::Ip(ip) => ip.to_string(),
    };
    let remote = match t.remote {
        Remote::Flow => "flow".into(),
        Remote::Ip(ip) => ip.to_string(),
    };
    let layer = mode_text(t.mode);
    let mut out = format!("{local}->{remote}, key={}, {layer}, dp port={no}", key_text(t.in_key));
    if t.out_key != t.in_key {
        let _ = write!(out, ", out_key={}", key_text(t.out_key));
    }
    match t.ttl {
        None => out.push_str(", ttl=inherit"),
        Some(ttl) => drop(write!(out, ", ttl={ttl}")),
    }
    match t.tos {
        None => out.push_str(", tos=inherit"),
        Some(0) => {}
        Some(tos) => drop(write!(out, ", tos={tos:#x}")),
    }
    if !t.df {
        out.push_str(", df=false");
    }
    if t.csum {
        out.push_str(", csum=true");
    }
    out
}
