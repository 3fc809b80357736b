//! Packets that connection tracking has looked up again, in a trace.

use super::{Kind, Recorder};
use crate::action_text::{actions_text, instructions_text};
use crate::switch::Switch;
use crate::translate::{Kept, State, Xlate};
use action::Decision;
use flow::{Key, at};
use openflow::conntrack::{NAT_DST, NAT_SRC};
use openflow::{Action, Nat};
use std::fmt::Write;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

/// Lookups after connection tracking that one trace shows.
pub(super) const FORKS_MAX: usize = 64;
/// `ct_state` where nobody says another: tracked and new.
const DEFAULT_STATE: u8 = 0x21;

/// A copy of a packet that connection tracking has looked up again.
pub(super) struct Fork {
    /// As it was, with the state's id, and with what is known of the connection.
    key: Key,
    /// The translation that was asked for.
    nat: Option<Nat>,
    /// Keeps the state there.
    _kept: Arc<Kept>,
}

impl Xlate<'_, '_> {
    /// A copy of the packet will be looked up in `table` once it is tracked; `list`: what that does to it.
    pub(crate) fn note_fork(&mut self, kept: &Arc<Kept>, table: u8, zone: u16, list: &[Action]) {
        let mut key = *self.key();
        let Some(r) = self.recorder() else { return };
        if r.forks_left == 0 {
            let id = kept.id;
            let text = "Failed to trace the conntrack forked pipeline with recirc_id";
            return self.detail(|| format!("{text} = {id}."));
        }
        r.forks_left -= 1;
        key.set_u32(at::RECIRC, kept.id);
        key.set_u16(at::CT_ZONE, zone);
        let nat = list.iter().rev().find_map(|a| match a {
            Action::Nat(nat) => Some((**nat).clone()),
            _ => None,
        });
        r.forks.push_back(Fork { key, nat, _kept: kept.clone() });
        let text = "A clone of the packet is forked to recirculate. The forked pipeline will be";
        self.detail(|| format!("{text} resumed at table {table}."));
    }

    /// A translation goes on where one was frozen.
    pub(crate) fn note_thaw(&mut self, state: &State) {
        let Some(r) = self.recorder() else { return };
        r.open(Kind::Table, "thaw".into());
        r.step(format!("Resuming from table {}", state.resumed_at()));
        if !state.set.is_empty() {
            r.step(format!("Restoring action set: {}", actions_text(&state.set)));
        }
        if !state.rest.is_empty() {
            r.step(format!("Restoring actions: {}", instructions_text(&state.rest)));
        }
        r.close();
    }
}

impl Recorder {
    /// A step that contains none.
    fn step(&mut self, text: String) {
        self.open(Kind::Table, text);
        self.close();
    }
}

impl Switch {
    /// A trace, and those of the packets that were looked up again, one after the other.
    pub(super) fn reports(
        &self,
        key: &Key,
        out: &Decision,
        mut r: Recorder,
        ct_next: &[u8],
    ) -> String {
        let mut text = self.report(key, out, &mut r);
        let mut next = ct_next.iter().copied();
        while let Some(fork) = r.forks.pop_front() {
            let key = announce(&fork, next.next(), &mut text);
            let mut again = Recorder { learning: r.learning, ..Recorder::default() };
            (again.forks, again.forks_left) = (std::mem::take(&mut r.forks), r.forks_left);
            let (mut out, mut recorder) = (Decision::default(), Some(again));
            out.clear();
            self.trace_frozen(&key, &mut out, &mut recorder);
            r = recorder.unwrap_or_default();
            text.push_str(&self.report(&key, &out, &mut r));
        }
        text
    }
}

/// Says what is looked up again; the key of that.
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

/// The first address and port of the range become the packet's.
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

/// Addresses and ports, if the translation is about addresses.
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
