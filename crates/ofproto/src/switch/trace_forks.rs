//! In a trace: packets that are looked up again after connection tracking.

use super::Switch;
use crate::trace::recorder::{Fork, Recorder};
use action::Decision;
use flow::{Key, at};
use openflow::Nat;
use openflow::conntrack::{NAT_DST, NAT_SRC};
use std::fmt::Write;
use std::net::{IpAddr, Ipv6Addr};

/// `ct_state` if the command gives none: tracked and new.
const DEFAULT_STATE: u8 = 0x21;

impl Switch {
    /// Appends a trace, and those of the packets that are looked up again, one after the other.
    pub(super) fn reports(
        &self,
        key: &Key,
        out: &Decision,
        mut r: Recorder,
        ct_next: &[u8],
    ) -> String {
        let mut text = self.report(key, out, &mut r);
        let mut next = ct_next.iter().copied();
        while !r.is_full()
            && let Some(fork) = r.forks.pop_front()
        {
            let key = announce(&fork, next.next(), &mut text);
            let mut again =
                Recorder { learning: r.learning, names: r.names, ..Recorder::default() };
            (again.forks, again.forks_left) = (std::mem::take(&mut r.forks), r.forks_left);
            (again.bytes, again.bytes_max) = (r.bytes, r.bytes_max);
            let (mut out, mut recorder) = (Decision::default(), Some(again));
            out.clear();
            self.trace_frozen(&key, &mut out, &mut recorder);
            r = recorder.unwrap_or_default();
            text.push_str(&self.report(&key, &out, &mut r));
        }
        text
    }
}

/// Announces the packet that is looked up again; returns its key.
fn announce(fork: &Fork, state: Option<u8>, text: &mut String) -> Key {
    let (mut key, line) = (fork.key, "=".repeat(79));
    key.set_u8(at::CT_STATE, state.unwrap_or(DEFAULT_STATE));
    let names = flow::ct_state_text(key.u8(at::CT_STATE));
    let given = match state {
        Some(_) => format!("ct_state={names}"),
        None => "default ct_state=trk|new (use --ct-next to customize)".into(),
    };
    let id = key.u32(at::RECIRC);
    let _ = writeln!(text, "\n{line}\nrecirc({id:#x}) - resume conntrack with {given}");
    if let Some(nat) = &fork.nat {
        text.push_str("Replacing src/dst IP/ports to simulate NAT:\n");
        let _ = writeln!(text, " Initial flow: {}", tuple(nat, &key));
        translate(nat, &mut key);
        let _ = writeln!(text, " Modified flow: {}", tuple(nat, &key));
    }
    let _ = writeln!(text, "{line}\n");
    key
}

/// Gives the packet the first address and port of the range.
fn translate(nat: &Nat, key: &mut Key) {
    let sides = [
        (NAT_SRC, at::IP_SRC, at::IPV6_SRC, at::TP_SRC),
        (NAT_DST, at::IP_DST, at::IPV6_DST, at::TP_DST),
    ];
    for (_, v4, v6, port) in sides.into_iter().filter(|(flag, ..)| nat.flags & flag != 0) {
        match nat.first {
            Some(IpAddr::V4(a)) => key.set(v4, a.octets()),
            Some(IpAddr::V6(a)) => key.set(v6, a.octets()),
            None => {}
        }
        if nat.first_port != 0 {
            key.set_u16(port, nat.first_port);
        }
    }
}

/// Addresses and ports as text, if NAT changes addresses.
fn tuple(nat: &Nat, key: &Key) -> String {
    let (src, dst) = (key.u16(at::TP_SRC), key.u16(at::TP_DST));
    match nat.first {
        Some(IpAddr::V4(_)) => {
            let ip = |at| IpAddr::from(key.get::<4>(at));
            let (from, to) = (ip(at::IP_SRC), ip(at::IP_DST));
            format!("nw_src={from},tp_src={src},nw_dst={to},tp_dst={dst}")
        }
        Some(IpAddr::V6(_)) => {
            let ip = |at| Ipv6Addr::from(key.get::<16>(at));
            let (from, to) = (ip(at::IPV6_SRC), ip(at::IPV6_DST));
            format!("ipv6_src=[{from}],tp_src={src},ipv6_dst=[{to}],tp_dst={dst}")
        }
        None => String::new(),
    }
}
