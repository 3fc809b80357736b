//! What a pipeline decides about a packet, and how it says so to the datapath.

use crate::Op;
use flow::{Key, Mask, PortNo, at};
use std::any::Any;
use std::sync::Arc;
use sync::Guard;
use telemetry::Drop;

/// Decides about packets. Implemented by the switch half, called by PMD threads inline on a miss
/// (and by the kernel-port thread, and by the control side for packet-out and trace).
///
/// A call may allocate but never blocks, locks or makes a system call. Everything it reads is
/// published in the QSBR domain whose guard the caller has.
pub trait Pipeline: Send + Sync {
    /// Fills `out` (cleared by the caller) with what to do with packets like `request.key`.
    fn resolve(&self, guard: Guard<'_>, request: &Request<'_>, out: &mut Decision);

    /// As [`Pipeline::resolve`] for each of several packets, of which there are as many as
    /// decisions (cleared by the caller); side by side where that is faster.
    fn resolve_all(&self, guard: Guard<'_>, requests: &[Request<'_>], out: &mut [Decision]) {
        requests.iter().zip(out).for_each(|(request, out)| self.resolve(guard, request, out));
    }

    /// Decides about these packets alone, at most 32, where that is simple: bit i of the answer
    /// says that packet i is decided about as [`Pipeline::resolve`] would. Their decisions
    /// ([`Decision::clear_keep_mask`]) have no effects, and what is in `mask` means nothing; nor
    /// does what is in the other decisions. Lines 4 and 5 of the keys are used: they are empty at
    /// first, and for later calls as this one left them.
    fn resolve_unmasked(&self, _: Guard<'_>, _keys: &mut [Key], _out: &mut [Decision]) -> u32 {
        0
    }

    /// As [`Pipeline::resolve_unmasked`] about the packets of these requests, whose keys are
    /// `keys`. To compare, `twins` (cleared by the caller) gets what [`Pipeline::resolve`] says
    /// about them, from the same version of the same tables.
    fn resolve_both(
        &self,
        guard: Guard<'_>,
        requests: &[Request<'_>],
        keys: &mut [Key],
        out: &mut [Decision],
        twins: &mut [Decision],
    ) -> u32 {
        let done = self.resolve_unmasked(guard, keys, out);
        self.resolve_all(guard, requests, twins);
        done
    }
}

/// A packet to decide about.
pub struct Request<'a> {
    /// Its key, lines 0 to 3 filled by the parser; `at::IN_PORT` and `at::RECIRC` set.
    pub key: &'a Key,
    /// The Geneve options of the header that it came in with; empty: none.
    pub options: &'a [u8],
    /// Its bytes, for what the key does not carry (learning from ARP, snooping); may be cut.
    pub packet: &'a [u8],
}

/// The outcome. Valid for every packet that equals the request's key under `mask`.
#[derive(Default)]
pub struct Decision {
    /// Bits of lines 0 to 3 that were looked at. The datapath always adds in_port and recirc id.
    pub mask: Mask,
    /// What to do, in order. Empty: drop.
    pub ops: Vec<Op>,
    /// Why it drops, when `ops` is empty.
    pub drop: Option<Drop>,
    /// Counters to credit with each packet and byte (dense ids given out by the control side), and
    /// [`longer`] where packets that the following ones count have another length ([`credited`]).
    pub credits: Vec<u32>,
    /// Anything else that the control side wants to know when this decision is used: handed
    /// over once when it is made, and referred to when its flow sees traffic again (learning,
    /// timeouts). Opaque here. None: nothing.
    pub effects: Option<Arc<dyn Any + Send + Sync>>,
    /// What must live for as long as a cached flow that is made of the decision: the pipeline may
    /// free it some seconds after the last copy of this is gone. Opaque here. None: nothing.
    pub keep_alive: Option<Arc<dyn Any + Send + Sync>>,
    /// False: do not cache; ask again for the next packet.
    pub cacheable: bool,
    /// How many steps it took to make: table lookups, actions, buckets, outputs.
    pub steps: u32,
}

/// In a list of counters: not a counter, but by how many bytes packets are longer that the counters
/// behind it count.
const LONGER: u32 = 1 << 31;

/// An entry of [`Decision::credits`]: packets that the counters behind it count are so many bytes
/// longer than the packet that was received, as they are in a tunnel; 0: as long.
pub fn longer(bytes: u32) -> u32 {
    LONGER | bytes
}

/// The counters of a list of credits, each with what it counts of this traffic in bytes.
pub fn credited(
    credits: &[u32],
    packets: u64,
    bytes: u64,
) -> impl Iterator<Item = (u32, u64)> + '_ {
    let mut more = 0;
    credits.iter().filter_map(move |entry| {
        if entry & LONGER != 0 {
            more = packets * u64::from(entry & !LONGER);
            return None;
        }
        Some((*entry, bytes + more))
    })
}

impl Decision {
    /// Ready for the next request, keeping the buffers.
    pub fn clear(&mut self) {
        self.mask = Mask::ZERO;
        self.clear_keep_mask();
    }

    /// What is kept of it with a cached flow.
    pub fn cached(&self) -> CachedDecision<'_> {
        let Decision { ops, credits, effects, .. } = self;
        CachedDecision { ops, credits, effects: effects.as_deref() }
    }

    /// As [`Decision::clear`], for callers that do not ask for the mask.
    pub fn clear_keep_mask(&mut self) {
        self.ops.clear();
        self.drop = None;
        self.credits.clear();
        self.effects = None;
        self.keep_alive = None;
        self.cacheable = true;
        self.steps = 0;
    }
}

/// What is known of a decision of which a cached flow is made, besides the flow's key and mask.
#[derive(Clone, Copy)]
pub struct CachedDecision<'a> {
    /// [`Decision::ops`].
    pub ops: &'a [Op],
    /// [`Decision::credits`].
    pub credits: &'a [u32],
    /// [`Decision::effects`].
    pub effects: Option<&'a (dyn Any + Send + Sync)>,
}

/// A region of packets whose decisions may have changed: every cached decision that overlaps it
/// must go before the change is acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// Values (only lines 0 to 3 matter; fields that the pipeline may rewrite are left out).
    pub key: Key,
    /// Bits that count; all zero means "everything".
    pub mask: Mask,
    /// Only packets that came in by one of these ports; None: by any.
    pub from: Option<Arc<PortSet>>,
}

impl Region {
    /// Every packet.
    pub const ALL: Region = Region::new(Key::ZERO, Key::ZERO);

    /// The packets that agree with `key` in the bits of `mask`.
    pub const fn new(key: Key, mask: Mask) -> Region {
        Region { key, mask, from: None }
    }

    /// The packets of this region that came in by one of these ports.
    pub fn from_ports(self, ports: &Arc<PortSet>) -> Region {
        match self.mask.u16(at::IN_PORT) {
            u16::MAX => self,
            _ => Region { from: Some(ports.clone()), ..self },
        }
    }

    /// True if a decision about packets like `key`, by the bits of `mask`, may be about one of
    /// these.
    pub fn overlaps(&self, key: &Key, mask: &Mask) -> bool {
        let port = key.u16(at::IN_PORT);
        self.from.as_ref().is_none_or(|from| from.contains(port))
            && key.overlaps(mask, &self.key, &self.mask)
    }
}

/// A set of datapath ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortSet(Vec<PortNo>);

impl PortSet {
    /// True if the port is one of these ports.
    pub fn contains(&self, port: PortNo) -> bool {
        self.0.binary_search(&port).is_ok()
    }

    /// Number of ports.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All ports, by ascending number.
    pub fn iter(&self) -> impl Iterator<Item = PortNo> + '_ {
        self.0.iter().copied()
    }
}

impl FromIterator<PortNo> for PortSet {
    fn from_iter<I: IntoIterator<Item = PortNo>>(ports: I) -> PortSet {
        let mut ports: Vec<PortNo> = ports.into_iter().collect();
        ports.sort_unstable();
        ports.dedup();
        PortSet(ports)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_behind_a_tunnel_count_its_header() {
        let list = [7, longer(50), 8, 9, longer(0), 7];
        let all: Vec<_> = credited(&list, 3, 300).collect();
        assert_eq!(all, [(7, 300), (8, 450), (9, 450), (7, 300)]);
    }
}
