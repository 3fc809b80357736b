//! `ofproto/trace` and `ofproto/trace-packet-out`.

use crate::state::State;
use flow::{Key, at, flag};
use ofproto::{BridgeId, Options, TraceStyle};
use openflow::Action;

/// `ofproto/trace {[DP] ODP_FLOW | BRIDGE BR_FLOW} [--ct-next STATE]... [--l7 PAYLOAD]
/// [--l7-len BYTES] [--names] [-generate | PACKET]`.
///
/// A packet, given or made, teaches addresses as a real one does.
pub fn trace(s: &mut State, args: &[String]) -> Result<String, String> {
    traced(s, args, None)
}

/// As [`trace`], `[-consistent] ... ACTIONS`: the packet is a controller's, with these actions.
pub fn trace_packet_out(s: &mut State, args: &[String]) -> Result<String, String> {
    let (actions, rest) = args.split_last().ok_or("actions are missing")?;
    traced(s, rest, Some(actions))
}

fn traced(s: &mut State, args: &[String], actions: Option<&str>) -> Result<String, String> {
    let wanted = Wanted::of(args, actions.is_some())?;
    s.flush_changes();
    let (bridge, mut key, options) = start(s, &wanted.words)?;
    if let Some(packet) = &wanted.packet {
        let parsed = datapath::extract(packet, 0, s.dp.settings().vlan_limit)
            .ok_or("the packet is shorter than an Ethernet header")?;
        take_headers(&mut key, &parsed);
    }
    let actions = match actions {
        Some(text) => Some(packet_out_actions(s, bridge, (&key, text), wanted.consistent)?),
        None => None,
    };
    let style = TraceStyle {
        ct_next: &wanted.ct_next,
        names: wanted.names,
        actions: actions.as_deref(),
        bytes_max: None,
    };
    if !wanted.generate && wanted.packet.is_none() {
        return s.ofproto.trace(bridge, &key, &options, &style).map_err(|e| e.to_string());
    }
    let now = s.now_ns();
    let text =
        s.ofproto.trace_learning(bridge, &key, &options, &style, now).map_err(|e| e.to_string())?;
    s.flush_changes();
    Ok(text)
}

/// Reads actions, and looks whether the packet may have them.
fn packet_out_actions(
    s: &State,
    bridge: BridgeId,
    (key, text): (&Key, &str),
    consistent: bool,
) -> Result<Vec<Action>, String> {
    let own = s.bridges.values().find(|b| b.id == bridge);
    let number = |port: &str| own.and_then(|b| b.ifaces.get(port)).and_then(|i| i.of_port);
    let actions = ofproto::parse_actions(text, &number).map_err(|e| e.to_string())?;
    let checked = s.ofproto.check_traced(bridge, key, &actions, consistent);
    checked.map_err(|e| format!("Bad actions: {}", e.ovs_name()))?;
    Ok(actions)
}

/// What the command's words ask for.
#[derive(Default)]
struct Wanted<'a> {
    /// The flow, and before it where it is one of.
    words: Vec<&'a str>,
    generate: bool,
    names: bool,
    consistent: bool,
    ct_next: Vec<u8>,
    packet: Option<Vec<u8>>,
}

impl Wanted<'_> {
    /// Only a packet-out may be asked to be consistent.
    fn of(args: &[String], packet_out: bool) -> Result<Wanted<'_>, String> {
        let (mut wanted, mut all) = (Wanted::default(), args.iter());
        while let Some(a) = all.next() {
            match a.as_str() {
                "-generate" | "--generate" => wanted.generate = true,
                "--names" => wanted.names = true,
                "--no-names" => wanted.names = false,
                "-consistent" | "--consistent" if packet_out => wanted.consistent = true,
                // Of a packet that is made; no decision depends on them.
                "--l7" => {
                    let text = all.next().ok_or("Missing argument for option --l7")?;
                    is_hexadecimal(text).then_some(()).ok_or("Trailing garbage in packet data")?;
                }
                "--l7-len" => {
                    let text = all.next().ok_or("Missing argument for option --l7-len")?;
                    text.parse::<u16>().map_err(|_| format!("invalid L7 length {text}"))?;
                }
                "--ct-next" => {
                    let text = all.next().ok_or("Missing argument for option --ct-next")?;
                    wanted.ct_next.push(flow::parse_ct_state(text)?);
                }
                a if a.starts_with("--") || a == "-consistent" => {
                    return Err(format!("{a}: unknown option"));
                }
                a => wanted.words.push(a),
            }
        }
        wanted.packet = packet_argument(&mut wanted.words);
        Ok(wanted)
    }
}

/// Which bridge a flow begins in, with its key and tunnel options: `[DP] ODP_FLOW` or `BRIDGE
/// BR_FLOW`.
fn start(s: &State, words: &[&str]) -> Result<(BridgeId, Key, Options), String> {
    match words {
        [text] if is_datapath_flow(text) => datapath_flow(s, text),
        [dp, text] if is_datapath_flow(text) => {
            let named = [dp.to_string()];
            super::dpctl::check_name(s, &named).map_err(|_| "Cannot find the datapath")?;
            if dp.is_empty() {
                Err("Cannot find the datapath".into())
            } else {
                datapath_flow(s, text)
            }
        }
        [name, text] if s.bridges.contains_key(*name) => openflow_flow(s, name, text),
        [text] => Err(format!("syntax error at {text} (or the bridge name was omitted)")),
        [name, _] => Err(format!("{name}: unknown bridge")),
        [] => Err("Must specify bridge name".into()),
        [.., last] if last.len() % 2 == 0 && last.chars().all(|c| c.is_ascii_hexdigit()) => {
            Err("Packet data too short for Ethernet".into())
        }
        _ => Err("Trailing garbage in packet data".into()),
    }
}

/// True if the text is a flow as datapaths write it, `name(value),...`, with or without an
/// identifier in front.
fn is_datapath_flow(text: &str) -> bool {
    let sign = text.find(['(', '=', ',']).map(|at| &text[at..]);
    text.starts_with("ufid:") || sign.is_some_and(|rest| rest.starts_with('('))
}

/// Gives the key a packet's headers; what is not in a packet stays.
fn take_headers(key: &mut Key, packet: &Key) {
    let own = key.u8(at::FLAGS) & flag::TUNNEL_ALL;
    for range in [at::ETH_DST..at::IN_PORT, at::PAYLOAD..at::TUN_DST] {
        key.bytes_mut()[range.clone()].copy_from_slice(&packet.bytes()[range]);
    }
    key.set_u8(at::FLAGS, packet.u8(at::FLAGS) & !flag::TUNNEL_ALL | own);
}

/// `in_port=1,tcp,...`, with port names allowed.
fn openflow_flow(s: &State, name: &str, text: &str) -> Result<(BridgeId, Key, Options), String> {
    let bridge = s.bridges.get(name).ok_or("no such bridge")?;
    let number = |port: &str| bridge.ifaces.get(port).and_then(|i| i.of_port);
    let parsed = flow::parse_match_tun(text, &number);
    let (mut key, mask, tun) =
        parsed.map_err(|e| format!("Bad openflow flow syntax: {text}: {e}"))?;
    if mask.u32(at::OF_IN_PORT) == 0 {
        key.set_u32(at::OF_IN_PORT, openflow::port::ANY);
    }
    Ok((bridge.id, key, Options::Fields(tun)))
}

/// `[ufid:...,]in_port(1),eth(...),...`: the port says which bridge.
fn datapath_flow(s: &State, text: &str) -> Result<(BridgeId, Key, Options), String> {
    let all = || s.bridges.values().flat_map(|b| b.ifaces.values().map(move |i| (b.id, i)));
    let number = |port: &str| {
        let named = all().find(|(_, i)| i.conf.name == port).and_then(|(_, i)| i.dp_port);
        named.or_else(|| s.tunnels.number(port))
    };
    let text = match text.strip_prefix("ufid:") {
        Some(rest) => rest.split_once([',', ' ']).map_or("", |(_, flow)| flow.trim_start()),
        None => text,
    };
    let parsed = flow::parse_odp_options(text, &number);
    let (mut key, _, options) = parsed.map_err(|e| e.to_string())?;
    let recirculation = key.u32(at::RECIRC);
    if recirculation != 0 && !s.ofproto.knows_recirculation(recirculation) {
        return Err(format!("no recirculation data for recirc_id {recirculation:#x}"));
    }
    let in_port = key.u16(at::IN_PORT);
    let (bridge, of_port) = if s.tunnels.name(in_port).is_some() {
        s.ofproto.tunnel_receiver(&key).ok_or("no OpenFlow tunnel port for this packet")?
    } else {
        let found = all().find(|(_, i)| i.dp_port == Some(in_port));
        let none = || format!("no OpenFlow port for datapath port {in_port}");
        let (bridge, iface) = found.ok_or_else(none)?;
        (bridge, iface.of_port.unwrap_or(0))
    };
    key.set_u32(at::OF_IN_PORT, of_port);
    if s.dp.settings().vlan_limit == 1 {
        hide_second_tag(&mut key);
    }
    Ok((bridge, key, Options::Bytes(options)))
}

/// Removes the second of two tags from the key: with `vlan-limit=1` nothing is known of what is
/// behind the first one.
fn hide_second_tag(key: &mut Key) {
    if key.u16(at::VLAN1) == 0 {
        return;
    }
    let is_88a8 = key.u8(at::FLAGS) & flag::VLAN1_88A8 != 0;
    key.set_u16(at::ETH_TYPE, if is_88a8 { wire::ETH_QINQ } else { wire::ETH_VLAN });
    key.bytes_mut()[at::IP_SRC..at::VLAN1 + 2].fill(0);
    key.bytes_mut()[at::IPV6_SRC..at::TUN_DST].fill(0);
    key.set_u8(at::FLAGS, key.u8(at::FLAGS) & !(flag::VLAN1_88A8 | flag::L4));
}

/// The last word, when it is a packet in hexadecimal.
fn packet_argument(words: &mut Vec<&str>) -> Option<Vec<u8>> {
    let packet = words.last().and_then(|last| hexadecimal(last)).filter(|_| words.len() > 1);
    if packet.is_some() {
        words.pop();
    }
    packet
}

/// True if the text is bytes in hexadecimal; blanks may stand between them.
fn is_hexadecimal(text: &str) -> bool {
    let digits: String = text.split_ascii_whitespace().collect();
    digits.len().is_multiple_of(2) && digits.chars().all(|c| c.is_ascii_hexdigit())
}

/// A packet in hexadecimal, possibly with blanks: at least an Ethernet header.
pub fn hexadecimal(text: &str) -> Option<Vec<u8>> {
    let text: String = text.split_ascii_whitespace().collect();
    if text.len() < 28 || !text.chars().all(|c| c.is_ascii_hexdigit()) {
        return None;
    }
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::{Wanted, hide_second_tag, is_datapath_flow};
    use flow::at;

    #[test]
    fn what_is_behind_a_tag_too_many_is_not_known() {
        let parse = |text: &str| flow::parse_odp(text, &|_| None).unwrap().0;
        let ip = "encap(eth_type(0x0800),ipv4(src=1.1.1.1,proto=6,frag=no),tcp(src=1,dst=2))";
        let one = format!("eth_type(0x8100),vlan(vid=1,pcp=0),{ip}");
        let two = format!("eth_type(0x8100),vlan(vid=9,pcp=0),encap({one})");
        let mut key = parse(&one);
        hide_second_tag(&mut key);
        assert_eq!(key, parse(&one));
        let mut key = parse(&two);
        hide_second_tag(&mut key);
        let mut hidden = parse("eth_type(0x8100),vlan(vid=9,pcp=0),encap(eth_type(0x1234))");
        hidden.set_u16(at::ETH_TYPE, wire::ETH_VLAN);
        assert_eq!(key, hidden);
    }

    #[test]
    fn the_payload_of_a_packet_to_make_is_bytes() {
        let of = |words: &[&str]| {
            let words: Vec<_> = words.iter().map(|w| w.to_string()).collect();
            Wanted::of(&words, false).map(|w| w.words.len())
        };
        assert_eq!(of(&["br0", "in_port=1", "--l7", "00 ff", "-generate"]), Ok(2));
        assert!(of(&["br0", "in_port=1", "--l7", "0"]).is_err());
        assert!(of(&["br0", "in_port=1", "--l7", "zz"]).is_err());
        assert!(of(&["br0", "in_port=1", "--l7"]).is_err());
    }

    #[test]
    fn flows_of_datapaths_and_of_openflow_are_not_confused() {
        let datapath = ["in_port(1)", "recirc_id(0x42)", "ufid:7-8 in_port(p1),eth()", "eth()"];
        assert!(datapath.iter().all(|f| is_datapath_flow(f)));
        let openflow = ["", "in_port=1", "tcp,in_port=1", "packet_type=(1,0x800)", "ip"];
        assert!(!openflow.iter().any(|f| is_datapath_flow(f)));
    }
}
