//! `ofproto/trace`.

use crate::state::State;
use flow::{Key, at};
use ofproto::{BridgeId, Options};

/// `ofproto/trace {[DP] ODP_FLOW | BRIDGE BR_FLOW} [--ct-next STATE]... [--l7-len BYTES]
/// [-generate | PACKET]`. A packet, given or made, teaches addresses as a real one does.
pub fn trace(s: &mut State, args: &[String]) -> Result<String, String> {
    let mut words: Vec<&str> = Vec::new();
    let mut generate = false;
    let (mut all, mut ct_next) = (args.iter(), Vec::new());
    while let Some(a) = all.next() {
        match a.as_str() {
            "-generate" | "--generate" => generate = true,
            "--names" | "--no-names" | "-consistent" | "--consistent" => {}
            // Of a packet that is made; no decision depends on it.
            "--l7-len" => {
                let text = all.next().ok_or("Missing argument for option --l7-len")?;
                text.parse::<u16>().map_err(|_| format!("invalid L7 length {text}"))?;
            }
            "--ct-next" => {
                let text = all.next().ok_or("Missing argument for option --ct-next")?;
                ct_next.push(flow::parse_ct_state(text)?);
            }
            a if a.starts_with("--") => return Err(format!("unknown option {a}")),
            a => words.push(a),
        }
    }
    let packet = packet_argument(&mut words);
    let real = generate || packet.is_some();
    s.flush_changes();
    let (bridge, mut key, options) = match words.as_slice() {
        [text] | [_, text] if text.contains("in_port(") => datapath_flow(s, text)?,
        [name, text] if s.bridges.contains_key(*name) => openflow_flow(s, name, text)?,
        [name] if s.bridges.contains_key(*name) => openflow_flow(s, name, "")?,
        [name, _] => return Err(format!("{name}: unknown bridge")),
        _ => return Err("Must specify bridge name".into()),
    };
    if let Some(packet) = packet {
        let limit = s.dp.settings().vlan_limit;
        let parsed = datapath::extract(&packet, 0, limit)
            .ok_or("the packet is shorter than an Ethernet header")?;
        let in_port = key.u32(at::OF_IN_PORT);
        key = parsed;
        key.set_u32(at::OF_IN_PORT, in_port);
    }
    if !real {
        return s.ofproto.trace(bridge, &key, &options, &ct_next).map_err(|e| e.to_string());
    }
    let now = s.now_ns();
    let text = s
        .ofproto
        .trace_learning(bridge, &key, &options, &ct_next, now)
        .map_err(|e| e.to_string())?;
    s.flush_changes();
    Ok(text)
}

/// `in_port=1,tcp,...`, with port names allowed.
fn openflow_flow(s: &State, name: &str, text: &str) -> Result<(BridgeId, Key, Options), String> {
    let bridge = s.bridges.get(name).ok_or("no such bridge")?;
    let number = |port: &str| bridge.ifaces.get(port).and_then(|i| i.of_port);
    let parsed = flow::parse_match_tun(text, &number);
    let (key, _, tun) = parsed.map_err(|e| format!("Bad openflow flow syntax: {text}: {e}"))?;
    Ok((bridge.id, key, Options::Fields(tun)))
}

/// `in_port(1),eth(...),...`: the port says which bridge.
fn datapath_flow(s: &State, text: &str) -> Result<(BridgeId, Key, Options), String> {
    let all = || s.bridges.values().flat_map(|b| b.ifaces.values().map(move |i| (b.id, i)));
    let number = |port: &str| {
        let named = all().find(|(_, i)| i.conf.name == port).and_then(|(_, i)| i.dp_port);
        named.or_else(|| s.tunnels.number(port))
    };
    let parsed = flow::parse_odp_options(text, &number);
    let (mut key, _, options) = parsed.map_err(|e| e.to_string())?;
    let in_port = key.u16(at::IN_PORT);
    let (bridge, of_port) = if s.tunnels.name(in_port).is_some() {
        s.ofproto.tunnel_receiver(&key).ok_or("no OpenFlow tunnel port for this packet")?
    } else {
        let found = all().find(|(_, i)| i.dp_port == Some(in_port));
        let (bridge, iface) = found.ok_or("no bridge has this input port")?;
        (bridge, iface.of_port.unwrap_or(0))
    };
    key.set_u32(at::OF_IN_PORT, of_port);
    Ok((bridge, key, Options::Bytes(options)))
}

/// The last word, when it is a packet in hexadecimal.
fn packet_argument(words: &mut Vec<&str>) -> Option<Vec<u8>> {
    let packet = words.last().and_then(|last| hexadecimal(last)).filter(|_| words.len() > 1);
    if packet.is_some() {
        words.pop();
    }
    packet
}

/// A packet in hexadecimal, possibly with blanks: at least an Ethernet header.
pub fn hexadecimal(text: &str) -> Option<Vec<u8>> {
    let text: String = text.split_ascii_whitespace().collect();
    if text.len() < 28 || !text.chars().all(|c| c.is_ascii_hexdigit()) {
        return None;
    }
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()).collect()
}
