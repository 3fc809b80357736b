//! Executes groups.

use super::set::in_order;
use crate::fields;
use crate::groups::group::{BucketView, GroupView};
use crate::groups::liveness::Groups;
use crate::translate::xlate::Xlate;
use flow::{Field, Key, Mask, at, frag};
use openflow::{GROUP_ANY, GroupType, port};
use wire::{IP_SCTP, IP_TCP, IP_UDP};

impl<'a> Xlate<'a, '_> {
    pub(super) fn group(&mut self, id: u32) {
        if self.is_too_much() {
            return;
        }
        let groups = self.bridge.groups_at(self.guard(), self.snapshot.version);
        let Some((groups, group)) = groups.and_then(|all| Some((all, all.get(id)?))) else {
            return self.trace_warning(|| format!("output to nonexistent group {id}"));
        };
        self.credit(group.credit);
        self.spent.depth += 1;
        self.run.origin.groups += 1;
        match group.kind {
            GroupType::All => group.buckets.iter().for_each(|b| self.bucket(b)),
            GroupType::Indirect => group.buckets.iter().take(1).for_each(|b| self.bucket(b)),
            GroupType::FastFailover => {
                let live = group.buckets.iter().find(|b| self.live(groups, b));
                self.chosen(live);
            }
            GroupType::Select => {
                let best = self.select(groups, group);
                self.chosen(best);
            }
        }
        self.run.origin.groups -= 1;
        self.spent.depth -= 1;
    }

    fn chosen(&mut self, bucket: Option<&'a BucketView>) {
        match bucket {
            Some(b) => self.bucket(b),
            None => self.trace_detail(|| "no live bucket".into()),
        }
    }

    /// Executes a bucket on a copy of the packet, with the bucket's actions as an action set of
    /// their own. What tables do to the packet's action set, and what they push, stays, as in OVS.
    fn bucket(&mut self, b: &'a BucketView) {
        if !self.spend(1) {
            return;
        }
        self.note_bucket(b.bucket.id);
        self.credit(b.credit);
        let mark = self.mark();
        let (saved, exited) = (self.save(), self.end.exited);
        let list: Vec<_> = b.bucket.actions.iter().collect();
        if list.is_empty() {
            self.note_action(|| "drop".into());
        }
        self.actions(in_order(&list).into_iter());
        self.end_alone();
        self.freeze();
        self.trace_close();
        self.restore(saved);
        self.end.exit |= self.end.failed.is_some();
        self.end.exited = exited;
        self.isolate(mark);
    }

    /// True if the port or group that the bucket watches is live, or if it watches none.
    fn live(&mut self, groups: &Groups, b: &BucketView) -> bool {
        let b = &b.bucket;
        if !self.spend(1) {
            return false;
        }
        if b.watch_port == port::ANY && b.watch_group == GROUP_ANY {
            return true;
        }
        self.look_at_ports();
        let port = self.bridge.port(b.watch_port).is_some_and(|p| p.live());
        port || groups.live(b.watch_group)
    }

    /// Selects the bucket with the highest weighted hash: so a change of buckets moves few flows.
    fn select(&mut self, groups: &Groups, group: &'a GroupView) -> Option<&'a BucketView> {
        let basis = match group.selection_fields.is_empty() {
            true => hash_headers(&self.key, &mut self.wc),
            false => hash_fields(&group.selection_fields, &self.key, &mut self.wc),
        };
        let basis = match group.selection_param {
            0 => basis,
            param => mix(basis, param),
        };
        let score = |b: &BucketView| score(mix(basis, u64::from(b.bucket.id)), b.bucket.weight);
        let live = group.buckets.iter().filter(|b| b.bucket.weight > 0 && self.live(groups, b));
        live.max_by(|a, b| score(a).total_cmp(&score(b)))
    }
}

/// A bucket's score for a packet. Each bucket has the highest score for a share of packets in
/// proportion to its weight (weighted rendezvous hashing: `ln(u) / weight` for u uniformly in (0,
/// 1)).
fn score(hash: u64, weight: u16) -> f64 {
    let u = ((hash >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    u.ln() / f64::from(weight)
}

/// A hash of two fields that is the same when they are exchanged.
pub(super) fn pair(a: Field, b: Field, key: &Key, wc: &mut Mask) -> u64 {
    a.unwildcard(wc);
    b.unwildcard(wc);
    let v = a.get(key) ^ b.get(key);
    mix(v as u64, (v >> 64) as u64)
}

pub(super) fn mix(h: u64, v: u64) -> u64 {
    let x = (h ^ v).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ x >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

/// A hash of these bits of fields, as far as the packet has them.
fn hash_fields(list: &[(Field, u128)], key: &Key, wc: &mut Mask) -> u64 {
    list.iter().fold(0, |h, (f, bits)| {
        let prereq = fields::prereq(*f);
        fields::look(prereq, wc);
        if !fields::met(prereq, key) {
            return h;
        }
        f.set_masked(wc, u128::MAX, *bits);
        let v = f.get(key) & bits;
        mix(mix(h, v as u64), (v >> 64) as u64)
    })
}

/// A hash of addresses, protocol and ports, the same for both directions of a connection. The
/// Ethernet addresses of IP packets are left out: a connection keeps its bucket when another router
/// takes over.
fn hash_headers(key: &Key, wc: &mut Mask) -> u64 {
    let mut pair = |a: Field, b: Field| pair(a, b, key, wc);
    let eth_type = key.u16(at::ETH_TYPE);
    let h = match eth_type {
        wire::ETH_IPV4 => pair(Field::Ipv4Src, Field::Ipv4Dst),
        wire::ETH_IPV6 => pair(Field::Ipv6Src, Field::Ipv6Dst),
        wire::ETH_ARP => {
            let stations = pair(Field::EthSrc, Field::EthDst);
            return mix(mix(stations, pair(Field::ArpSpa, Field::ArpTpa)), u64::from(eth_type));
        }
        _ => return mix(pair(Field::EthSrc, Field::EthDst), u64::from(eth_type)),
    };
    let proto = key.u8(at::PROTO);
    let first = key.u8(at::FRAG) & frag::LATER == 0;
    let ports = match first && matches!(proto, IP_TCP | IP_UDP | IP_SCTP) {
        true => pair(Field::TcpSrc, Field::TcpDst),
        false => 0,
    };
    wc.set_u8(at::PROTO, 0xff);
    wc.set_u8(at::FRAG, wc.u8(at::FRAG) | frag::LATER);
    mix(mix(h, ports), u64::from(proto))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of 30,000 keys, which differ in what `vary` writes, take each of two buckets.
    fn shares(weights: [u16; 2], vary: impl Fn(&mut Key, u32)) -> [u32; 2] {
        let mut shares = [0; 2];
        for i in 0..30_000 {
            let mut key = Key::ZERO;
            vary(&mut key, i);
            let basis = hash_headers(&key, &mut Mask::default());
            let scores = [0, 1].map(|b| score(mix(basis, b as u64), weights[b]));
            shares[usize::from(scores[1] > scores[0])] += 1;
        }
        shares
    }

    fn about(n: u32, want: u32) {
        assert!(n.abs_diff(want) < want / 20, "{n} instead of {want}");
    }

    #[test]
    fn buckets_get_their_weight() {
        let ipv4 = |key: &mut Key, i| {
            key.set_u16(at::ETH_TYPE, wire::ETH_IPV4);
            key.set_u32(at::IP_SRC, i);
        };
        about(shares([1, 1], ipv4)[0], 15_000);
        about(shares([1, 2], ipv4)[0], 10_000);
        about(shares([9, 1], ipv4)[1], 3_000);
    }

    #[test]
    fn arp_and_other_packets_spread_too() {
        let arp = |key: &mut Key, i| {
            key.set_u16(at::ETH_TYPE, wire::ETH_ARP);
            Field::ArpTpa.set(key, u128::from(i));
        };
        about(shares([1, 2], arp)[0], 10_000);
        let other = |key: &mut Key, i| Field::EthSrc.set(key, u128::from(i));
        about(shares([1, 2], other)[0], 10_000);
    }

    #[test]
    fn both_directions_take_one_bucket() {
        let (mut there, mut back) = (Key::ZERO, Key::ZERO);
        for (key, a, b) in
            [(&mut there, at::IP_SRC, at::IP_DST), (&mut back, at::IP_DST, at::IP_SRC)]
        {
            key.set_u16(at::ETH_TYPE, wire::ETH_IPV4);
            key.set_u32(a, 0x0a00_0001);
            key.set_u32(b, 0x0a00_0002);
        }
        let hash = |key| hash_headers(key, &mut Mask::default());
        assert_eq!(hash(&there), hash(&back));
    }
}
