//! Probes: does the adapter match what it is asked to, and no more? The host does not see the
//! packets of a forwarding rule. Drivers are known to widen, without an error, a mask that has only
//! some bits of a field, or to match tagged packets where untagged ones are meant. So the first
//! flow whose rule has such doubtful fields waits while probes count packets: rules like its own,
//! but with the opposite value in one of these fields, which leave their packets to the host. If
//! masks are honoured, probes get no packets.

use super::*;
use port::TAGGED;

/// Time after which a flow's packets have met its probes, milliseconds.
const MEET_MS: u64 = 1200;
/// Probes whose flow has no packets any more are removed after this time, milliseconds.
const PROBES_MS_MAX: u64 = 10_000;
/// Shapes that are probed at a time, at most.
const SHAPES_MAX: usize = 8;
/// The ECN codepoint "congestion experienced" in a TOS byte.
const ECN_CE: u8 = 3;

/// A shape: headers and masks. All rules of one shape are honoured, or none.
pub(super) type Shape = Vec<(Header, [u8; 40])>;

/// What is known of a shape.
pub(super) enum Trust {
    /// Probes are under way.
    Probing(Probing),
    /// Its masks are honoured, or none is doubtful.
    Honoured,
    /// Its masks are not honoured, or that cannot be found out.
    Barred(Barred),
}

/// The probes of a shape, which count packets.
pub(super) struct Probing {
    ids: Vec<Id>,
    /// The flow whose packets the probes would get.
    witness: FlowId,
    began_ms: u64,
    /// How long the shape was barred before, milliseconds.
    barred_ms: u64,
    /// When the probes had all been in the adapter for [`MEET_MS`] with packets of the witness,
    /// milliseconds: their counters are meaningful if read after it.
    met_ms: Option<u64>,
}

pub(super) fn shape_of(rule: &ForwardRule) -> Shape {
    rule.items.iter().map(|i| (i.header, i.mask)).collect()
}

impl ForwardTable {
    /// True if a rule of this flow is known to match no other packets. If that is not known, false;
    /// unless another flow is the witness, this requests probes for the rule's shape, or evaluates
    /// them.
    pub(super) fn trusts(&mut self, now_ms: u64, flow: FlowId, plan: &Plan) -> bool {
        let shape = shape_of(&plan.rule);
        let p = match self.shapes.get_mut(&shape) {
            None => return self.begin_probes(now_ms, flow, plan, shape, 0),
            Some(Trust::Barred(b)) => {
                let barred_ms = b.wait_ms;
                return self.begin_probes(now_ms, flow, plan, shape, barred_ms);
            }
            Some(Trust::Honoured) => return true,
            Some(Trust::Probing(p)) if p.witness != flow => return false,
            Some(Trust::Probing(p)) => p,
        };
        if p.began_ms == now_ms {
            // The packets may be of any rule of the flow.
            self.add_probes(now_ms, plan, &shape);
            return false;
        }
        let since = |id: &Id| match self.units.get(id) {
            Some(Unit { state: State::In(_), since_ms, .. }) => Some(*since_ms),
            _ => None,
        };
        let all: Option<Vec<u64>> = p.ids.iter().map(since).collect();
        let last = all.and_then(|all| all.into_iter().max());
        if last.is_some_and(|since| now_ms >= since + MEET_MS) {
            p.met_ms.get_or_insert(now_ms);
        }
        let honoured = p.met_ms.is_some_and(|met| self.counting.counted_ms >= met);
        if honoured {
            self.end_probes(now_ms, &shape, Trust::Honoured);
        }
        honoured
    }

    fn begin_probes(
        &mut self,
        now_ms: u64,
        witness: FlowId,
        plan: &Plan,
        shape: Shape,
        barred_ms: u64,
    ) -> bool {
        if probes(&plan.rule.items).is_empty() {
            self.shapes.insert(shape, Trust::Honoured);
            return true;
        }
        let under_way = self.shapes.values().filter(|t| matches!(t, Trust::Probing(_))).count();
        if under_way < SHAPES_MAX {
            let (ids, began_ms, met_ms) = (Vec::new(), now_ms, None);
            let p = Probing { ids, witness, began_ms, barred_ms, met_ms };
            self.shapes.insert(shape.clone(), Trust::Probing(p));
            self.add_probes(now_ms, plan, &shape);
        }
        false
    }

    fn add_probes(&mut self, now_ms: u64, plan: &Plan, shape: &Shape) {
        for items in probes(&plan.rule.items) {
            let rule = ForwardRule { items, edits: Vec::new(), fate: Fate::Host };
            if self.by_rule.contains_key(&rule) {
                continue;
            }
            let id = self.insert(now_ms, Plan { rule, outer: None, outer_bytes: 0 }, 0.0);
            let unit = self.units.get_mut(&id).expect("it was inserted");
            unit.probes = Some(shape.clone());
            if let Some(Trust::Probing(p)) = self.shapes.get_mut(shape) {
                p.ids.push(id);
            }
        }
    }

    /// Removes the probes of a shape, and records what is known of it.
    fn end_probes(&mut self, now_ms: u64, shape: &Shape, trust: Trust) {
        if let Some(Trust::Probing(p)) = self.shapes.insert(shape.clone(), trust) {
            p.ids.into_iter().for_each(|id| self.leave(now_ms, id));
        }
    }

    /// Bars a shape for a while: a probe got packets, or was refused.
    pub(super) fn distrust(&mut self, now_ms: u64, shape: &Shape, reason: Reason) {
        let before = match self.shapes.get(shape) {
            Some(Trust::Probing(p)) => p.barred_ms,
            _ => 0,
        };
        let barred = Barred::again(now_ms, before, reason);
        self.end_probes(now_ms, shape, Trust::Barred(barred));
    }

    /// Gives probes up that take too long. Called each second.
    pub(super) fn expire_probes(&mut self, now_ms: u64) {
        let late =
            |t: &Trust| matches!(t, Trust::Probing(p) if now_ms >= p.began_ms + PROBES_MS_MAX);
        let all = self.shapes.iter().filter(|(_, t)| late(t));
        let all: Vec<Shape> = all.map(|(shape, _)| shape.clone()).collect();
        all.iter().for_each(|shape| self.give_up_probes(now_ms, shape));
    }

    /// True if rules of this shape are known to match what they are asked to.
    pub(super) fn is_honoured(&self, rule: &ForwardRule) -> bool {
        matches!(self.shapes.get(&shape_of(rule)), Some(Trust::Honoured))
    }

    /// Removes the probes of a shape as if there had been none.
    pub(super) fn give_up_probes(&mut self, now_ms: u64, shape: &Shape) {
        if let Some(Trust::Probing(p)) = self.shapes.remove(shape) {
            p.ids.into_iter().for_each(|id| self.leave(now_ms, id));
        }
    }

    /// Forgets what was found out about the adapter, which may not hold any more.
    pub fn doubt(&mut self) {
        self.shapes.retain(|_, t| !matches!(t, Trust::Honoured));
    }
}

/// Offsets of a header's fields, and their bytes.
fn fields(header: Header) -> &'static [(usize, usize)] {
    match header {
        Header::Ethernet => &[(0, 6), (6, 6), (12, 2)],
        Header::Vlan => &[(0, 2), (2, 2)],
        Header::Ipv4 => &[(1, 1), (8, 1), (9, 1), (12, 4), (16, 4)],
        Header::Ipv6 => &[(0, 4), (6, 1), (7, 1), (8, 16), (24, 16)],
        Header::Tcp => &[(0, 2), (2, 2), (12, 2)],
        Header::Udp | Header::Sctp => &[(0, 2), (2, 2)],
        Header::Icmp | Header::Icmp6 => &[(0, 1), (1, 1)],
        Header::Vxlan => &[(0, 1), (4, 3)],
    }
}

/// Patterns that match none of a rule's packets, unless a field's mask is not honoured.
fn probes(items: &[Item]) -> Vec<Vec<Item>> {
    let mut all = Vec::new();
    for (i, item) in items.iter().enumerate() {
        let tagged = items.get(i + 1).is_some_and(|next| next.header == Header::Vlan);
        if item.header == Header::Ethernet && !tagged {
            let mut probe = items.to_vec();
            (probe[i].value[TAGGED], probe[i].mask[TAGGED]) = (1, 1);
            all.push(probe);
        }
        for (at, n) in fields(item.header) {
            let mask = &item.mask[*at..at + n];
            if mask.iter().all(|m| *m == 0) || mask.iter().all(|m| *m == 0xff) {
                continue;
            }
            let mut probe = items.to_vec();
            let opposite = &mut probe[i];
            if item.header == Header::Ipv4 && (*at, mask[0]) == (1, 1) {
                // ECT(1) may occur; congestion hardly does.
                (opposite.value[1], opposite.mask[1]) = (ECN_CE, ECN_CE);
            } else {
                (*at..at + n).for_each(|k| opposite.value[k] ^= item.mask[k]);
            }
            all.push(probe);
        }
    }
    all
}
