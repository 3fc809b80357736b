//! `dpctl/*`, `dpif/*`: the datapath as a whole and its cached flows.

use crate::offload::How;
use crate::ports::Iface;
use crate::state::{Bridge, State};
use crate::tunnel_options;
use action::{OpsText, ops_text_with};
use datapath::{FlowDump, WorkerId};
use flow::{Key, Mask, at};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The one datapath's name: that of ovs-vswitchd's userspace datapath, or of its dummy datapath if
/// there is a bridge of that type.
pub fn name(s: &State) -> &'static str {
    match s.bridges.values().any(Bridge::is_dummy) {
        true => "dummy@ovs-dummy",
        false => "netdev@ovs-netdev",
    }
}

/// `dpctl/dump-dps`.
pub fn dump_dps(s: &mut State, _: &[String]) -> Result<String, String> {
    Ok(if s.bridges.is_empty() { String::new() } else { format!("{}\n", name(s)) })
}

/// `dpif/dump-dps`: one line per bridge.
pub fn dump_bridges(s: &mut State, _: &[String]) -> Result<String, String> {
    let kind = |dummy: bool| if dummy { "dummy" } else { "netdev" };
    Ok(s.bridges.iter().map(|(name, b)| format!("{}@{name}\n", kind(b.is_dummy()))).collect())
}

fn hits_and_misses(s: &State) -> (u64, u64) {
    let all = s.dp.pmd_info();
    let hits = all.iter().map(|p| p.perf.mark_hits + p.perf.cache_hits + p.perf.flow_hits).sum();
    (hits, all.iter().map(|p| p.perf.misses).sum())
}

/// `dpif/show`. Without bridges there is no datapath, as in OVS.
pub fn dpif_show(s: &mut State, _: &[String]) -> Result<String, String> {
    if s.bridges.is_empty() {
        return Ok(String::new());
    }
    let (hit, missed) = hits_and_misses(s);
    let shown = shown_configs(s);
    let mut out = format!("{}: hit:{hit} missed:{missed}\n", name(s));
    for (name, bridge) in &s.bridges {
        let _ = writeln!(out, "  {name}:");
        for iface in bridge.ifaces.values() {
            let Some(of_port) = iface.of_port else { continue };
            let of_port = if of_port == openflow::port::LOCAL { 65534 } else { of_port };
            let dp_port = iface.dp_port.map_or("none".into(), |p| p.to_string());
            let tunnel = tunnel_options::shown_options(&iface.conf);
            let options = tunnel.as_ref().or_else(|| shown.get(&iface.dp_port?));
            let options = options.unwrap_or(&iface.conf.options);
            let kind = kind_text(kind(s, iface), options.iter().filter(is_shown));
            let _ = writeln!(out, "    {} {of_port}/{dp_port}: {kind}", iface.conf.name);
        }
    }
    Ok(out)
}

/// What ports show of their configuration in place of their options, by datapath numbers.
fn shown_configs(s: &State) -> BTreeMap<u16, BTreeMap<String, String>> {
    s.dp.ports().filter_map(|no| Some((no, s.dp.port(no)?.shown_config()?))).collect()
}

/// The type of an interface's port: in a dummy datapath it may not be the interface's.
fn kind<'a>(s: &'a State, iface: &'a Iface) -> &'a str {
    let port = iface.dp_port.filter(|_| !iface.is_virtual()).and_then(|no| s.dp.port(no));
    port.map_or(&iface.conf.kind, |p| p.kind())
}

/// False for the files of dummy ports, which ovs-vswitchd does not show either.
fn is_shown((name, _): &(&String, &String)) -> bool {
    !matches!(name.as_str(), "pcap" | "rxq_pcap" | "tx_pcap")
}

fn kind_text<'a>(kind: &str, options: impl Iterator<Item = (&'a String, &'a String)>) -> String {
    let kind = match kind {
        "" => "system",
        "internal" => "tap",
        k => k,
    };
    let options: Vec<String> = options.map(|(k, v)| format!("{k}={v}")).collect();
    if options.is_empty() {
        format!("({kind})")
    } else {
        format!("({kind}: {})", options.join(", "))
    }
}

/// Datapath port numbers and names.
pub(super) fn port_names(s: &State) -> BTreeMap<u16, (String, String)> {
    let shown = shown_configs(s);
    let ifaces = s.bridges.values().flat_map(|b| b.ifaces.values());
    let tunnels = s.tunnels.all().map(|(name, port)| {
        let mut options = BTreeMap::from([("packet_type".to_string(), "ptap".to_string())]);
        if port.udp != tunnel_options::usual_port(&port.kind) {
            options.insert("dst_port".into(), port.udp.to_string());
        }
        (port.no, (name.clone(), kind_text(&port.kind, options.iter())))
    });
    ifaces
        .filter(|i| !i.is_virtual())
        .filter_map(|i| {
            let no = i.dp_port?;
            let options = shown.get(&no).unwrap_or(&i.conf.options);
            let kind = kind_text(kind(s, i), options.iter().filter(is_shown));
            Some((no, (i.conf.name.clone(), kind)))
        })
        .chain(tunnels)
        .collect()
}

/// `dpctl/show [-s]`.
pub fn show(s: &mut State, args: &[String]) -> Result<String, String> {
    check_opened(s, args, "opening")?;
    let (hit, missed) = hits_and_misses(s);
    let flows: u64 = s.dp.pmd_info().iter().map(|p| u64::from(p.flows)).sum();
    let mut out =
        format!("{}:\n  lookups: hit:{hit} missed:{missed} lost:0\n  flows: {flows}\n", name(s));
    for (no, (name, kind)) in port_names(s) {
        let kind = if kind == "(system)" { String::new() } else { format!(" {kind}") };
        let _ = writeln!(out, "  port {no}: {name}{kind}");
        if args.iter().any(|a| a == "-s" || a == "--statistics") {
            counters(&mut out, s, no);
        }
    }
    Ok(out)
}

fn counters(out: &mut String, s: &mut State, no: u16) {
    let c = s.dp.port_mut(no).map(|p| p.counters()).unwrap_or_default();
    let get = |n: &str| c.get(n).map_or("?".to_string(), u64::to_string);
    let _ = writeln!(
        out,
        "    RX packets:{} errors:{} dropped:{} overruns:{} frame:{}",
        get("rx_packets"),
        get("rx_errors"),
        get("rx_dropped"),
        get("rx_over_err"),
        get("rx_frame_err")
    );
    let _ = writeln!(
        out,
        "    TX packets:{} errors:{} dropped:{} aborted:{} carrier:{}",
        get("tx_packets"),
        get("tx_errors"),
        get("tx_dropped"),
        get("tx_aborted_errors"),
        get("tx_carrier_errors")
    );
    let _ = writeln!(out, "    collisions:{}", get("collisions"));
    let bytes = |n| format!("{}{}", get(n), c.get(n).map_or(String::new(), |n| human(*n)));
    let _ = writeln!(out, "    RX bytes:{}  TX bytes:{}", bytes("rx_bytes"), bytes("tx_bytes"));
}

/// A number of bytes in the largest unit that it fills, for people; nothing below 1 KiB.
fn human(n: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.into_iter().find(|(bits, _)| n >> bits != 0);
    unit.map_or(String::new(), |(bits, name)| {
        format!(" ({:.1} {name})", n as f64 / (1u64 << bits) as f64)
    })
}

/// How flows are to be printed.
#[derive(Default)]
pub(super) struct Style {
    more: bool,
    names: bool,
    terse: bool,
}

impl Style {
    /// Everything.
    pub fn full() -> Style {
        Style { more: true, names: true, terse: false }
    }

    /// Everything, with ports' numbers, as the log has it.
    pub fn of_log() -> Style {
        Style { more: true, names: false, terse: true }
    }

    /// As `dpif/dump-flows` prints them, which does not say what handles a flow.
    pub fn terse(self) -> Style {
        Style { terse: true, ..self }
    }

    pub fn of(args: &[String]) -> Style {
        let has = |a: &str| args.iter().any(|x| x == a);
        let more = has("-m") || has("--more");
        Style { more, names: (more || has("--names")) && !has("--no-names"), terse: false }
    }
}

/// `type=` of `dpctl/dump-flows`: which flows are wanted.
pub(super) struct DumpTypes(Vec<String>);

impl DumpTypes {
    /// A flow, and what an adapter does for it. Those that one forwards are of the layer "dpdk".
    pub fn take(&self, how: How) -> bool {
        self.0.iter().any(|t| match t.as_str() {
            "all" => true,
            "ovs" => how != How::Full,
            "dpdk" | "offloaded" => how == How::Full,
            "partially-offloaded" => how == How::Partial,
            "non-offloaded" => how == How::Not,
            _ => false,
        })
    }
}

pub(super) fn dump_types(args: &[String]) -> Result<Option<DumpTypes>, String> {
    const KNOWN: [&str; 7] =
        ["ovs", "tc", "dpdk", "offloaded", "non-offloaded", "partially-offloaded", "all"];
    let Some(list) = args.iter().find_map(|a| a.strip_prefix("type=")) else { return Ok(None) };
    let types: Vec<String> = list.split(',').map(str::to_string).collect();
    match types.iter().find(|t| !KNOWN.contains(&t.as_str())) {
        Some(t) => Err(format!("ovs-vswitchd: Failed to parse type ({t}) (Invalid argument)")),
        None => Ok(Some(DumpTypes(types))),
    }
}

pub(super) fn one(
    of: &ofproto::Switch,
    f: &FlowDump,
    style: &Style,
    names: &BTreeMap<u16, (String, String)>,
    how: How,
) -> String {
    let name_of = |no: u16| names.get(&no).map(|n| n.0.clone());
    let number = |_: u16| None;
    let lookup: flow::DatapathPortName = if style.names { &name_of } else { &number };
    let mut out = String::new();
    if style.more {
        let _ = write!(out, "ufid:{}{} ", ufid(f), if style.terse { "" } else { "," });
    }
    out.push_str(&flow::odp_text(shown_key(f), &shown_mask(f), style.more, lookup));
    let used = if f.packets == 0 || f.used_ms == 0 {
        "never".to_string()
    } else {
        format!("{:.3}s", datapath::now_ms().saturating_sub(f.used_ms) as f64 / 1000.0)
    };
    let extra = match how {
        _ if !style.more || style.terse => "",
        How::Not => " dp:ovs,",
        How::Partial => " offloaded:partial, dp:ovs,",
        How::Full => " offloaded:yes, dp:dpdk,",
    };
    let _ = writeln!(
        out,
        ", packets:{}, bytes:{}, used:{used},{extra} actions:{}",
        f.packets,
        f.bytes,
        ops_text_with(&f.ops, &OpsText { punt: &|p| of.punt_text(p), port: lookup })
    );
    out
}

/// A flow's values, behind its mask those of its first packet where that is known.
pub(super) fn shown_key(f: &FlowDump) -> &Key {
    f.first_key.as_deref().unwrap_or(&f.key)
}

/// A flow's mask with what it says of fields that no packet has here: a flow that looks at all
/// there is looks at those, too.
pub(super) fn shown_mask(f: &FlowDump) -> Mask {
    let mut mask = f.mask;
    if mask.u32(at::PRIORITY) == !0 {
        mask.set_u32(at::DP_HASH, !0);
    }
    mask
}

/// Megaflows as JSON, with names of ports; `age_ms` is absent for flows that were never used.
pub fn flows_json(s: &State, flows: &[FlowDump]) -> Vec<Value> {
    let names = port_names(s);
    let lookup = |no: u16| names.get(&no).map(|n| n.0.clone());
    let punt = |p: &action::Punt| s.ofproto.punt_text(p);
    let one = |f: &FlowDump| {
        let core = if let WorkerId::Pmd(core) = f.worker { Some(core) } else { None };
        let used = f.packets > 0 && f.used_ms > 0;
        json!({
            "ufid": ufid(f),
            "core": core,
            "in_port": lookup(f.key.u16(at::IN_PORT)),
            "match": flow::odp_text(&f.key, &f.mask, false, &lookup),
            "actions": ops_text_with(&f.ops, &OpsText { punt: &punt, port: &lookup }),
            "packets": f.packets,
            "bytes": f.bytes,
            "age_ms": used.then(|| datapath::now_ms().saturating_sub(f.used_ms)),
        })
    };
    flows.iter().map(one).collect()
}

/// As [`check_name`], of commands that open each datapath that they name: `verb` is how they say
/// that. A name without a type is one of the kernel's.
pub(super) fn check_opened(s: &State, args: &[String], verb: &str) -> Result<(), String> {
    let is_other = |a: &&String| check_name(s, std::slice::from_ref(*a)).is_err();
    let refused = |given: &String| {
        let why = if given.contains('@') { "No such device" } else { "No such file or directory" };
        format!("ovs-vswitchd: {verb} datapath {given} failed ({why})\n")
    };
    let text: String = args.iter().filter(is_other).map(refused).collect();
    if text.is_empty() { Ok(()) } else { Err(text) }
}

/// The datapath that is meant, if one is named at all.
pub(super) fn check_name(s: &State, args: &[String]) -> Result<(), String> {
    let is_name = |a: &&String| !a.starts_with('-') && !a.contains('=') && !a.starts_with("ufid:");
    let own = name(s);
    let is_own = |given: &str| given == own || own.split_once('@').is_some_and(|(_, n)| n == given);
    match args.iter().find(is_name) {
        Some(given) if !is_own(given) => {
            Err("ovs-vswitchd: datapath not found (Invalid argument)".into())
        }
        _ => Ok(()),
    }
}

/// `dpctl/del-flows [dp]`: as `revalidator/purge`.
pub fn del_flows(s: &mut State, args: &[String]) -> Result<String, String> {
    check_name(s, args)?;
    purge(s, &[])
}

/// `upcall/set-flow-limit N`: until the database says otherwise.
pub fn set_flow_limit(s: &mut State, args: &[String]) -> Result<String, String> {
    let limit: u32 = args[0].parse().map_err(|_| format!("{}: not a number", args[0]))?;
    s.dp.set_settings(datapath::Settings { flow_limit: limit, ..s.dp.settings().clone() });
    Ok(format!("set flow_limit to {limit}\n"))
}

/// An identifier that stays the same while the flow is cached.
pub(super) fn ufid(f: &FlowDump) -> String {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let half = |salt: u8| {
        let mut h = DefaultHasher::new();
        (salt, &f.key, &f.mask).hash(&mut h);
        h.finish()
    };
    let (a, b) = (half(0), half(1));
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        a >> 32,
        a >> 16 & 0xffff,
        a & 0xffff,
        b >> 48,
        b & 0xffff_ffff_ffff
    )
}

/// `revalidator/purge`: cached flows go, traffic makes new ones.
pub fn purge(s: &mut State, _: &[String]) -> Result<String, String> {
    s.dp.flush();
    Ok(String::new())
}

/// `revalidator/pause`, `revalidator/resume`: no thread changes cached flows later here. What a
/// change makes wrong goes with the change, and idle flows go as always.
pub fn hold(_: &mut State, _: &[String]) -> Result<String, String> {
    Ok(String::new())
}

/// `revalidator/wait`: nothing is revalidated later here; counters are brought up to date.
pub fn wait(s: &mut State, _: &[String]) -> Result<String, String> {
    s.flush_changes();
    let change = s.last_change();
    for _ in 0..1_000_000 {
        if s.settled(change) {
            break;
        }
        std::hint::spin_loop();
    }
    s.collect();
    super::flow_log::dump(s);
    Ok(String::new())
}

/// `upcall/disable-megaflows`: decisions are cached for packets with one key each.
pub fn disable_megaflows(s: &mut State, _: &[String]) -> Result<String, String> {
    set_exact(s, true);
    Ok("megaflows disabled\n".into())
}

/// `upcall/enable-megaflows`: decisions are cached by what they looked at.
pub fn enable_megaflows(s: &mut State, _: &[String]) -> Result<String, String> {
    set_exact(s, false);
    Ok("megaflows enabled\n".into())
}

/// Cached flows go, whichever way they were made.
fn set_exact(s: &mut State, exact_megaflows: bool) {
    let mut settings = s.dp.settings().clone();
    settings.debug.exact_megaflows = exact_megaflows;
    s.dp.set_settings(settings);
    s.dp.flush();
}

/// `upcall/show`: how full the caches are. The limit is each worker's.
pub fn upcall_show(s: &mut State, _: &[String]) -> Result<String, String> {
    let all = s.dp.pmd_info();
    let flows: u64 = all.iter().map(|p| u64::from(p.flows)).sum();
    let limit = s.dp.settings().flow_limit;
    let (mean, most) = (s.recent.flows.mean, s.recent.flows.most.max(flows));
    let mut out = format!("{}:\n  flows         : (current {flows}) (avg {mean})", name(s));
    let _ = writeln!(out, " (max {most}) (limit {limit})");
    let marked: usize = s.offload.ports.values().map(|e| e.rules()).sum();
    if s.offload.enabled {
        let _ = writeln!(out, "  offloaded flows : {marked}");
    }
    out += "  ufid enabled : true\n\n";
    for p in &all {
        let who = match p.worker {
            WorkerId::Pmd(core) => format!("core {core}"),
            WorkerId::Kernel => "main".into(),
        };
        let cache = if p.signature_cache { "on" } else { "off" };
        let _ = writeln!(
            out,
            "  {who}: (keys {}) (masks {}) (evicted {}) (not installed {}) (signature cache {cache})",
            p.flows, p.masks, p.perf.evicted, p.perf.not_installed
        );
    }
    Ok(out)
}
