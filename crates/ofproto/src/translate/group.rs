//! Groups.

use super::Xlate;
use super::set::in_order;
use crate::fields;
use crate::view::{BucketView, GroupView};
use flow::{Field, Key, Mask, at, frag};
use openflow::{GROUP_ANY, GroupType, port};
use telemetry::Drop;

impl<'a> Xlate<'a, '_> {
    pub(super) fn group(&mut self, id: u32) {
        if self.depth >= super::MAX_DEPTH {
            return self.fail(Drop::DepthLimit);
        }
        let bridge = self.bridge;
        let Some(group) = bridge.group(id) else {
            return self.warn(|| format!("output to nonexistent group {id}"));
        };
        self.out.credits.push(group.credit);
        self.depth += 1;
        self.origin.groups += 1;
        match group.kind {
            GroupType::All => group.buckets.iter().for_each(|b| self.bucket(b)),
            GroupType::Indirect => group.buckets.iter().take(1).for_each(|b| self.bucket(b)),
            GroupType::FastFailover => {
                let live = group.buckets.iter().find(|b| self.live(b, 0));
                self.chosen(live);
            }
            GroupType::Select => {
                let best = self.select(group);
                self.chosen(best);
            }
        }
        self.origin.groups -= 1;
        self.depth -= 1;
    }

    fn chosen(&mut self, bucket: Option<&'a BucketView>) {
        match bucket {
            Some(b) => self.bucket(b),
            None => self.detail(|| "no live bucket".into()),
        }
    }

    /// A bucket works on a copy of the packet, its actions as an action set.
    fn bucket(&mut self, b: &'a BucketView) {
        self.note_bucket(b.bucket.id);
        self.out.credits.push(b.credit);
        let mark = self.mark();
        let saved = (self.key, self.exit, self.was_mpls, self.labels);
        let (set, stack) = (std::mem::take(&mut self.set), self.stack.clone());
        let list: Vec<_> = b.bucket.actions.iter().collect();
        self.actions(in_order(&list).into_iter());
        self.freeze();
        self.close();
        (self.set, self.stack) = (set, stack);
        (self.key, self.exit, self.was_mpls, self.labels) = saved;
        self.exit |= self.failed.is_some();
        self.isolate(mark);
    }

    /// Is what the bucket watches alive? One that watches nothing is.
    fn live(&self, b: &BucketView, depth: usize) -> bool {
        let b = &b.bucket;
        if b.watch_port == port::ANY && b.watch_group == GROUP_ANY {
            return true;
        }
        let port = self.bridge.port(b.watch_port).is_some_and(|p| p.live());
        let group = || self.bridge.group(b.watch_group);
        port || depth < 16
            && group().is_some_and(|g| g.buckets.iter().any(|b| self.live(b, depth + 1)))
    }

    /// The bucket with the highest weighted hash: a change of buckets moves few flows.
    fn select(&mut self, group: &'a GroupView) -> Option<&'a BucketView> {
        let basis = match group.selection_fields.is_empty() {
            true => hash_headers(&self.key, &mut self.wc),
            false => hash_fields(&group.selection_fields, &self.key, &mut self.wc),
        };
        let score = |b: &BucketView| {
            (mix(basis, u64::from(b.bucket.id)) >> 48) * u64::from(b.bucket.weight)
        };
        let live = group.buckets.iter().filter(|b| b.bucket.weight > 0 && self.live(b, 0));
        live.max_by_key(|b| score(b))
    }
}

fn mix(h: u64, v: u64) -> u64 {
    let x = (h ^ v).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ x >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

fn hash_fields(list: &[Field], key: &Key, wc: &mut Mask) -> u64 {
    list.iter().fold(0, |h, f| {
        let prereq = fields::prereq(*f);
        fields::look(prereq, wc);
        if !fields::met(prereq, key) {
            return h;
        }
        f.unwildcard(wc);
        let v = f.get(key);
        mix(mix(h, v as u64), (v >> 64) as u64)
    })
}

/// Addresses, protocol and ports; both directions of a connection have the same hash.
fn hash_headers(key: &Key, wc: &mut Mask) -> u64 {
    let mut pair = |a: Field, b: Field| {
        a.unwildcard(wc);
        b.unwildcard(wc);
        let v = a.get(key) ^ b.get(key);
        mix(v as u64, (v >> 64) as u64)
    };
    let eth_type = key.u16(at::ETH_TYPE);
    let h = match eth_type {
        fields::ETH_IP => pair(Field::Ipv4Src, Field::Ipv4Dst),
        fields::ETH_IPV6 => pair(Field::Ipv6Src, Field::Ipv6Dst),
        _ => return mix(pair(Field::EthSrc, Field::EthDst), u64::from(eth_type)),
    };
    let proto = key.u8(at::PROTO);
    let first = key.u8(at::FRAG) & frag::LATER == 0;
    let ports = match first && matches!(proto, 6 | 17 | 132) {
        true => pair(Field::TcpSrc, Field::TcpDst),
        false => 0,
    };
    wc.set_u8(at::PROTO, 0xff);
    wc.set_u8(at::FRAG, wc.u8(at::FRAG) | frag::LATER);
    mix(mix(h, ports), u64::from(proto))
}
