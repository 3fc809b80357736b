//! The plain path through a switch: table lookups, gotos and outputs to ports. Several packets are
//! translated together, table by table, so that their memory accesses overlap; nothing is
//! allocated. A packet that meets anything else goes through [`super::xlate::Xlate`], which is this
//! module's twin.

use crate::fields;
use crate::published::{BridgeView, PortView, PublishedState, View};
use crate::tables::table::{FlowRule, Plain, Table};
use crate::translate::dhcp::is_dhcp_reply;
use crate::translate::state::DEPTH_MAX;
use crate::translate::xlate::{RECV_BITS, initial_key, no_action_set};
use crate::types::{ExportConfig, OamFilters};
use action::{Decision, Op, Request};
use flow::{Key, Mask, PACKET_LINES, PortNo, at, flag};
use openflow::{OfPort, port_config};
use sync::Guard;
use telemetry::Drop;

/// Packets resolved together when a mask is computed for each, at most.
pub(super) const MASKED_PACKETS_MAX: usize = 8;

/// Packets resolved together when no mask is computed, at most.
pub(super) const UNMASKED_PACKETS_MAX: usize = classifier::BATCH;

/// Steps that a packet may take in one table because of conjunctive matches or very many masks.
/// Packets that need more are left to [`super::xlate::Xlate`], which counts steps over all tables.
const LOOKUP_STEPS_MAX: usize = 256;

/// Where a packet is on its way through the tables.
#[derive(Clone, Copy)]
enum At {
    Table(u8),
    /// The packet's decision is complete.
    End,
    /// The packet met something that is not plain, and is left to [`super::xlate::Xlate`].
    Lost,
}

#[derive(Clone, Copy)]
struct Path<'a> {
    bridge: &'a BridgeView,
    in_port: OfPort,
    at: At,
    /// Number of tables so far.
    tables: usize,
}

/// Decides about up to [`MASKED_PACKETS_MAX`] packets whose path is plain. Bit i of the result is
/// set if packet i is decided about; other decisions are invalid.
pub(crate) fn resolve(view: View<'_>, requests: &[Request<'_>], out: &mut [Decision]) -> u32 {
    let View { shared, guard, published } = view;
    let version = shared.version();
    let mut keys: [Key; MASKED_PACKETS_MAX] = std::array::from_fn(|i| match requests.get(i) {
        Some(r) => initial_key(r.key, &mut out[i].mask),
        None => Key::ZERO,
    });
    let keys = &mut keys[..requests.len()];
    let mut paths = start(published, keys, out);
    while prepare(guard, &paths, keys) {
        for ((path, key), d) in paths.iter_mut().zip(&*keys).zip(&mut *out) {
            if let Some(path) = path
                && let At::Table(table) = path.at
            {
                path.advance(guard, table, key, version, d);
            }
        }
    }
    out.iter_mut().for_each(|d| complete_mask(&mut d.mask));
    finish(&paths, out)
}

/// Decides about up to [`UNMASKED_PACKETS_MAX`] packets by one version of the tables, without
/// masks; the result is as for [`resolve`]. Lines 4 and 5 of the keys must be empty, or as an
/// earlier call left them.
pub(crate) fn resolve_unmasked(
    view: View<'_>,
    version: u64,
    keys: &mut [Key],
    out: &mut [Decision],
) -> u32 {
    let View { guard, published, .. } = view;
    keys.iter_mut().for_each(no_action_set);
    let mut paths = start(published, keys, out);
    while let Some((bridge, table)) = paths.iter().flatten().find_map(Path::place) {
        advance_together((bridge, table), guard, version, &mut paths, keys, out);
    }
    finish(&paths, out)
}

/// Advances all paths that are in a table by that table.
fn advance_together<'a>(
    (bridge, table): (&'a BridgeView, u8),
    guard: Guard<'a>,
    version: u64,
    paths: &mut [Option<Path<'a>>; UNMASKED_PACKETS_MAX],
    all: &[Key],
    out: &mut [Decision],
) {
    let (mut keys, mut who, mut n) =
        ([&Key::ZERO; UNMASKED_PACKETS_MAX], [0; UNMASKED_PACKETS_MAX], 0);
    for (i, (path, key)) in paths.iter().zip(all).enumerate() {
        let there =
            |w: &Path<'_>| w.place().is_some_and(|(b, t)| t == table && std::ptr::eq(b, bridge));
        if path.as_ref().is_some_and(there) {
            (keys[n], who[n]) = (key, i);
            n += 1;
        }
    }
    if bridge.tables.get(table).is_some_and(Table::has_clauses) {
        for (key, i) in keys.into_iter().zip(who).take(n) {
            let Some(path) = &mut paths[i] else { continue };
            path.advance(guard, table, key, version, &mut out[i]);
        }
        return;
    }
    let mut rules = [None; UNMASKED_PACKETS_MAX];
    let rules = &mut rules[..n];
    let looked = bridge.tables.get(table);
    let steps = looked.map_or(0, |t| t.steps_max(guard));
    if steps > LOOKUP_STEPS_MAX {
        for i in who.into_iter().take(n) {
            paths[i].iter_mut().for_each(|path| path.at = At::Lost);
        }
        return;
    }
    let looked = looked.map_or(0, |t| t.lookup_all(guard, &keys[..n], version, rules));
    let options = looked >> (at::TUN_MATCH / 8) & 1 != 0;
    for (i, rule) in who.into_iter().zip(rules) {
        let Some(path) = &mut paths[i] else { continue };
        out[i].steps += steps as u32;
        path.at = if options { At::Lost } else { path.apply_rule(table, *rule, &mut out[i]) };
    }
}

/// All paths at their beginnings; None for packets whose path cannot be plain.
fn start<'a>(
    published: &'a PublishedState,
    keys: &mut [Key],
    out: &mut [Decision],
) -> [Option<Path<'a>>; UNMASKED_PACKETS_MAX] {
    let (mut entries, mut paths) = (EntryCache::new(published), [None; UNMASKED_PACKETS_MAX]);
    for ((path, key), d) in paths.iter_mut().zip(keys).zip(out) {
        *path = Path::start(&mut entries, key, &mut d.mask);
    }
    paths
}

/// Completes the decisions; bit i of the result is set if packet i has one.
fn finish(paths: &[Option<Path<'_>>], out: &mut [Decision]) -> u32 {
    let mut done = 0;
    for (i, (path, d)) in paths.iter().zip(out).enumerate() {
        if path.is_some_and(|w| matches!(w.at, At::End)) {
            done |= 1 << i;
            d.drop = d.ops.is_empty().then_some(Drop::Policy);
        }
    }
    done
}

/// Prefetches the memory that the next step reads, where several packets are in the same table.
/// False: no packet is in any table.
fn prepare(guard: Guard<'_>, paths: &[Option<Path<'_>>], all: &[Key]) -> bool {
    let going = paths.iter().zip(all).filter_map(|(w, key)| Some((w.as_ref()?.place()?, key)));
    let mut keys = [&Key::ZERO; UNMASKED_PACKETS_MAX];
    let (mut n, mut first) = (0, None);
    for ((at, number), key) in going {
        let (bridge, table) = *first.get_or_insert((at, number));
        if number == table && std::ptr::eq(bridge, at) {
            keys[n] = key;
            n += 1;
        }
    }
    let Some((bridge, table)) = first else { return false };
    if let Some(table) = bridge.tables.get(table).filter(|_| n > 1) {
        table.prepare(guard, &keys[..n]);
    }
    true
}

/// Where packets of the last input port enter: packets of one port often follow each other.
struct EntryCache<'a> {
    published: &'a PublishedState,
    last: Option<(PortNo, Option<(&'a BridgeView, OfPort)>)>,
}

impl<'a> EntryCache<'a> {
    fn new(published: &'a PublishedState) -> Self {
        EntryCache { published, last: None }
    }

    /// The bridge and port where a packet enters; None: its path cannot be plain.
    fn enter(&mut self, port: PortNo) -> Option<(&'a BridgeView, OfPort)> {
        match self.last {
            Some((last, entry)) if last == port => entry,
            _ => {
                let entry = self.look(port);
                self.last = Some((port, entry));
                entry
            }
        }
    }

    fn look(&self, port: PortNo) -> Option<(&'a BridgeView, OfPort)> {
        if !self.published.tunnels.is_empty() {
            return None;
        }
        let (bridge, in_port) = self.published.by_dp_port(port)?;
        let spoken = |p: &PortView| p.spec.oam != OamFilters::default() || p.spec.lacp.is_some();
        let receives = |p: &PortView| p.forwards() && p.spec.config & RECV_BITS == 0;
        let usual = |p: &PortView| receives(p) && p.spec.tunnel.is_none() && !spoken(p);
        let open = bridge.config.fail_open || bridge.config.restoring;
        let exports = bridge.config.export != ExportConfig::default();
        let plain = !open
            && !exports
            && bridge.mirrors.is_empty()
            && bridge.port(in_port).is_none_or(usual);
        plain.then_some((bridge, in_port))
    }
}

/// Completes the mask of a plain decision.
fn complete_mask(wc: &mut Mask) {
    wc.words[PACKET_LINES * 8..].fill(0);
    crate::tunnel::forget(wc);
    if wc.u16(at::VLAN) != 0 {
        wc.set_u16(at::VLAN, wc.u16(at::VLAN) | fields::VLAN_PRESENT);
    }
}

impl<'a> Path<'a> {
    /// A path at its beginning; None: it cannot be plain.
    fn start(entries: &mut EntryCache<'a>, key: &mut Key, wc: &mut Mask) -> Option<Self> {
        let special = key.u32(at::RECIRC) != 0
            || key.u8(at::FLAGS) & flag::TUNNEL != 0
            || key.u8(at::FRAG) != 0
            || key.u16(at::ETH_TYPE) == fields::LLC;
        if special {
            return None;
        }
        let (bridge, in_port) = entries.enter(key.u16(at::IN_PORT))?;
        if bridge.config.in_band && is_dhcp_reply(key, wc) {
            return None;
        }
        key.set_u32(at::OF_IN_PORT, in_port);
        Some(Path { bridge, in_port, at: At::Table(0), tables: 0 })
    }

    /// The bridge and table in which the packet is.
    #[inline]
    fn place(&self) -> Option<(&'a BridgeView, u8)> {
        match self.at {
            At::Table(table) => Some((self.bridge, table)),
            _ => None,
        }
    }

    /// Looks the packet up in the table that it is in, and executes the rule.
    #[inline]
    fn advance(&mut self, guard: Guard<'a>, table: u8, key: &Key, version: u64, d: &mut Decision) {
        let mut steps = 0;
        let rules = self.bridge.tables.get(table);
        let rule = rules.and_then(|t| t.lookup(guard, key, version, &mut d.mask, &mut steps));
        d.steps += steps as u32;
        let lost = steps > LOOKUP_STEPS_MAX || d.mask.u64(at::TUN_MATCH) != 0;
        self.at = if lost { At::Lost } else { self.apply_rule(table, rule, d) };
    }

    /// Executes a rule of a table; returns where the packet is then.
    fn apply_rule(&mut self, table: u8, rule: Option<&FlowRule>, out: &mut Decision) -> At {
        self.tables += 1;
        out.steps += 1;
        if self.tables > DEPTH_MAX {
            return At::Lost;
        }
        let Some(rule) = rule else { return self.miss(table, out) };
        let flow = rule.value();
        let Plain::Yes { output, next } = flow.plain else { return At::Lost };
        out.credits.push(flow.id);
        if let Some(to) = output
            && !self.output(to, out)
        {
            return At::Lost;
        }
        next.map_or(At::End, At::Table)
    }

    fn miss(&self, table: u8, out: &mut Decision) -> At {
        if self.bridge.config.miss_to_controller || !self.bridge.config.misses.is_empty() {
            return At::Lost;
        }
        out.credits.push(self.bridge.miss_base + u32::from(table));
        At::End
    }

    /// Adds an output operation. False: the port needs more than one operation (patch port,
    /// tunnel, queues that give packets a DSCP), or does not send all packets (spanning trees).
    fn output(&self, to: OfPort, out: &mut Decision) -> bool {
        if to == self.in_port {
            return true;
        }
        let p = self.bridge.port(to).filter(|p| p.spec.config & port_config::NO_FWD == 0);
        let Some(p) = p else {
            // As `look_at_ports`.
            if !out.credits.contains(&self.bridge.ports_credit) {
                out.credits.push(self.bridge.ports_credit);
            }
            return true;
        };
        if p.plain
            && let Some(port) = p.spec.dp_port
        {
            out.ops.push(Op::Output(port));
        }
        p.plain
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::*;
    use ::action::ops_text;
    use openflow::{Action, Instruction};

    struct Random(u64);

    impl Random {
        fn below(&mut self, n: u64) -> u64 {
            self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (self.0 >> 33) % n
        }

        fn one_of(&mut self, all: &[&str]) -> String {
            all[self.below(all.len() as u64) as usize].to_string()
        }
    }

    /// Ports 1 to 4 are there, 5 is not.
    fn instructions(r: &mut Random, table: u8) -> Vec<Instruction> {
        let port = 1 + r.below(5) as u32;
        let next = Instruction::Goto(table + 1 + r.below(2) as u8);
        // Rarely into the same table, for ever.
        let to = table + u8::from(r.below(8) > 0);
        let again = |in_port| Action::Resubmit { in_port, table: Some(to), ct: false };
        match r.below(10) {
            0 => vec![],
            1 => apply(vec![]),
            2 => apply(vec![out(port)]),
            3 => vec![Instruction::Apply(vec![out(port)]), next],
            4 => apply(vec![out(port), out(1 + r.below(4) as u32)]),
            5 => vec![Instruction::Apply(vec![Action::DecTtl { ids: None }]), next],
            6 => vec![Instruction::Write(vec![out(port)]), next],
            7 => apply(vec![out(port), again(None)]),
            8 => apply(vec![again(Some(1)), out(port)]),
            _ => vec![next],
        }
    }

    fn rule(r: &mut Random) -> String {
        let mut text = r.one_of(&["udp", "tcp", "ip", "arp", "ipv6", "udp6"]);
        let ip = text != "arp" && !text.ends_with('6');
        for part in ["in_port=1", "dl_vlan=7", "nw_dst=10.1.0.0/16", "nw_src=10.0.0.1", "tp_dst=80"]
        {
            let possible = match &part[..2] {
                "nw" => ip,
                "tp" => text.starts_with("udp") || text.starts_with("tcp"),
                _ => true,
            };
            if possible && r.below(3) == 0 {
                text = format!("{text},{part}");
            }
        }
        text
    }

    fn random_packet(r: &mut Random) -> Key {
        let ports = r.one_of(&["tp_dst=80", "tp_dst=81", "tp_dst=68,tp_src=67"]);
        let ip = format!(
            "{},{},{ports}",
            r.one_of(&["nw_src=10.0.0.1", "nw_src=10.9.0.1"]),
            r.one_of(&["nw_dst=10.1.2.3", "nw_dst=10.2.2.3"]),
        );
        let tag = r.one_of(&["", ",dl_vlan=7", ",dl_vlan=8"]);
        packet(&match r.below(9) {
            8 => "in_port=1,dl_dst=01:80:c2:00:00:00,dl_type=0x05ff".into(),
            0 => format!("in_port={},arp{tag}", 1 + r.below(5)),
            1 => format!("in_port=1,udp6,{ports}{tag}"),
            2 => format!("in_port=2,tcp,{ip},nw_frag=later{tag}"),
            3 => format!("in_port={},udp,{ip}{tag}", 1 + r.below(5)),
            _ => format!("in_port={},tcp,{ip}{tag}", 1 + r.below(2)),
        })
    }

    fn text(d: &Decision) -> String {
        format!("{} {:?} {:?} {:?} {}", ops_text(&d.ops), d.drop, d.credits, d.mask, d.cacheable)
    }

    /// What is said about those packets alone which are decided about; they are those that are when
    /// all is asked.
    fn alone<'k>(lab: &mut Lab, keys: &'k [Key], expected: u32) -> Vec<(&'k Key, Decision)> {
        let mut used: Vec<Key> = keys.iter().rev().copied().collect();
        let mut out: Vec<Decision> = keys.iter().map(|_| Decision::default()).collect();
        out.iter_mut().for_each(Decision::clear);
        lab.sw.pipeline().resolve_unmasked(lab.sw.pin(), &mut used, &mut out);
        // What that left behind does not matter.
        for (used, key) in used.iter_mut().zip(keys) {
            used.words[..PACKET_LINES * 8].copy_from_slice(&key.words[..PACKET_LINES * 8]);
        }
        out.iter_mut().for_each(Decision::clear);
        let done = lab.sw.pipeline().resolve_unmasked(lab.sw.pin(), &mut used, &mut out);
        assert_eq!(done, expected);
        assert_eq!(twice(lab, keys), (done, out.iter().map(text).collect()));
        let decided = keys.iter().zip(out).enumerate().filter(|(i, _)| done >> i & 1 != 0);
        decided.map(|(_, (key, d))| (key, Decision { mask: flow::Mask::ZERO, ..d })).collect()
    }

    /// Which packets are decided about when both ways are asked, and what; what the whole way says
    /// is right.
    fn twice(lab: &mut Lab, keys: &[Key]) -> (u32, Vec<String>) {
        let requests = keys.iter().map(|key| Request { key, options: &[], packet: &[] });
        let requests: Vec<_> = requests.collect();
        let cleared = || {
            let all = keys.iter().map(|_| Decision::default());
            all.map(|d| Decision { cacheable: true, ..d }).collect::<Vec<_>>()
        };
        let (mut used, mut out, mut twins) = (keys.to_vec(), cleared(), cleared());
        let pipeline = lab.sw.pipeline();
        let done = pipeline.resolve_both(lab.sw.pin(), &requests, &mut used, &mut out, &mut twins);
        keys.iter().zip(&twins).for_each(|(k, d)| assert_eq!(text(d), text(&lab.decide(k))));
        (done, out.iter().map(text).collect())
    }

    /// Gives some ports states of a spanning tree.
    fn grow(lab: &mut Lab, r: &mut Random) {
        use crate::{BridgeConfig, PortSpec, TreePort, TreeProtocol, TreeState::*};
        if r.below(3) > 0 {
            return;
        }
        let config = lab.sw.bridge_config(lab.br).unwrap().clone();
        let tree = Some(TreeProtocol::Stp);
        lab.sw.configure_bridge(lab.br, BridgeConfig { tree, ..config }).unwrap();
        for port in 1..=4 {
            let state = [Disabled, Blocking, Learning, Forwarding][r.below(4) as usize];
            let tree = Some(TreePort { state, ..TreePort::default() });
            let spec = lab.sw.port(lab.br, port).unwrap().clone();
            lab.sw.update_port(lab.br, PortSpec { tree, ..spec }).unwrap();
        }
    }

    /// Makes some of the packets be of in-band control.
    fn control_in_band(lab: &mut Lab, r: &mut Random) {
        if r.below(3) > 0 {
            return;
        }
        lab.add_local();
        let remotes = ["10.1.2.3:80", "10.0.0.1:81"];
        let remotes = remotes.iter().filter(|_| r.below(2) == 0);
        let remotes = remotes.map(|remote| remote.parse().unwrap()).collect();
        let wanted = crate::InBand { remotes, local: Some([2; 6]), ..Default::default() };
        lab.sw.set_in_band(lab.br, &wanted, 0).unwrap();
    }

    #[test]
    fn the_plain_way_ends_where_the_whole_way_does() {
        let (mut r, mut plain, mut all) = (Random(1), 0, 0);
        for _ in 0..60 {
            let mut lab = Lab::new();
            grow(&mut lab, &mut r);
            control_in_band(&mut lab, &mut r);
            for _ in 0..r.below(40) {
                let table = r.below(4) as u8;
                let (m, list) = (rule(&mut r), instructions(&mut r, table));
                lab.add(flow(table, r.below(4) as u16, &m, list));
            }
            for _ in 0..40 {
                let keys: Vec<Key> = (0..1 + r.below(8)).map(|_| random_packet(&mut r)).collect();
                let requests: Vec<_> =
                    keys.iter().map(|key| Request { key, options: &[], packet: &[] }).collect();
                let mut found: Vec<Decision> = keys.iter().map(|_| Decision::default()).collect();
                found.iter_mut().for_each(Decision::clear);
                let done = lab.sw.plain(&requests, &mut found);
                for (i, (key, d)) in
                    keys.iter().zip(&found).enumerate().filter(|(i, _)| done >> i & 1 != 0)
                {
                    assert_eq!(text(d), text(&lab.decide(key)), "packet {i}: {key:?}");
                }
                let mut every: Vec<Decision> = keys.iter().map(|_| Decision::default()).collect();
                every.iter_mut().for_each(Decision::clear);
                lab.sw.pipeline().resolve_all(lab.sw.pin(), &requests, &mut every);
                for (key, d) in keys.iter().zip(&every) {
                    assert_eq!(text(d), text(&lab.decide(key)), "{key:?}");
                }
                for (key, d) in alone(&mut lab, &keys, done) {
                    let (all, none) = (lab.decide(key), flow::Mask::ZERO);
                    let all = Decision { mask: none, ..all };
                    assert_eq!(text(&d), text(&all), "alone: {key:?}");
                }
                plain += done.count_ones();
                all += keys.len() as u32;
            }
        }
        assert!(plain * 3 > all && plain < all, "{plain} of {all} are plain");
    }
}
