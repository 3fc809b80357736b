//! Traces: the recorded steps of a translation, and how they are printed.

pub(crate) mod recorder;

use crate::switch::Switch;
use crate::translate::effects::{
    BfdContext, CfmContext, LacpContext, LldpContext, McastContext, PacketInContext, SampleContext,
    Sampled,
};
use action::Punt;
use flow::TunMetadata;
use openflow::Action;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Mutex;

/// Options of a traced packet's tunnel header.
pub enum Options {
    /// The options' bytes, as in the header.
    Bytes(Vec<u8>),
    /// Fields `tun_metadataN`.
    Fields(Vec<TunMetadata>),
}

/// What a trace assumes, and how it is printed.
#[derive(Clone, Copy, Default)]
pub struct TraceStyle<'a> {
    /// `ct_state` of the packet after each `ct` in turn ([`at::CT_STATE`](flow::at::CT_STATE));
    /// after these, that it begins a connection.
    pub ct_next: &'a [u8],
    /// True: ports are named, not numbered.
    pub names: bool,
    /// The packet is a controller's, with these actions; None: it came from a port.
    pub actions: Option<&'a [Action]>,
    /// Bytes of text after which steps are not shown any more; None: as many as there may be.
    pub bytes_max: Option<usize>,
}

impl Default for Options {
    fn default() -> Self {
        Options::Bytes(Vec::new())
    }
}

/// States that have a number at the same time, at most.
const NUMBERED_STATES_MAX: usize = 1024;

/// Numbers by which texts name the states that controllers get with packets. Equal states of one
/// bridge have the same number; numbers are in the order in which texts first named the states. If
/// there are too many, all numbers are forgotten.
#[derive(Default)]
pub(crate) struct StateNumbers(Mutex<BTreeMap<u64, u32>>);

impl StateNumbers {
    fn of(&self, c: &PacketInContext) -> u32 {
        let mut hasher = DefaultHasher::new();
        (c.bridge.0, &c.matching).hash(&mut hasher);
        self.of_hash(hasher.finish())
    }

    fn of_hash(&self, state: u64) -> u32 {
        let mut numbers = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if numbers.len() >= NUMBERED_STATES_MAX && !numbers.contains_key(&state) {
            numbers.clear();
        }
        let next = numbers.len() as u32 + 1;
        *numbers.entry(state).or_insert(next)
    }
}

impl Switch {
    /// The text of a punt to controllers, as OVS's datapath prints it: `userspace(...)`.
    pub fn punt_text(&self, p: &Punt) -> String {
        if p.context.is::<BfdContext>() {
            return "userspace(pid=0,slow_path(bfd))".into();
        }
        if p.context.is::<CfmContext>() {
            return "userspace(pid=0,slow_path(cfm))".into();
        }
        if p.context.is::<LacpContext>() {
            return "userspace(pid=0,slow_path(lacp))".into();
        }
        if p.context.is::<LldpContext>() {
            return "userspace(pid=0,slow_path(lldp))".into();
        }
        if p.context.is::<McastContext>() {
            return "userspace(pid=0,slow_path(action))".into();
        }
        if let Some(sample) = p.context.downcast_ref::<SampleContext>() {
            return sample_text(sample);
        }
        let Some(c) = p.context.downcast_ref::<PacketInContext>() else {
            return "userspace(pid=0)".into();
        };
        let reason = c.reason as u8;
        let cookie = match c.cookie {
            0 => "0".into(),
            c => format!("{c:#x}"),
        };
        format!(
            "userspace(pid=0,controller(reason={reason},dont_send=0,continuation={},recirc_id={},\
             rule_cookie={cookie},controller_id={},max_len={}))",
            u8::from(c.continuation.is_some()),
            self.state_numbers.of(c),
            c.controller_id,
            c.max_len
        )
    }
}

/// The text of a sample, as OVS's datapath prints it.
fn sample_text(sample: &SampleContext) -> String {
    match &sample.what {
        Sampled::Sflow(note) => {
            let (vid, pcp) = (note.vlan_tci & 0xfff, note.vlan_tci >> 13);
            let output = match (note.outputs, note.output) {
                (0, _) => 1 << 30 | 256,
                (1, Some(no)) => u32::from(no),
                (n, _) => 1 << 31 | n,
            };
            format!("userspace(pid=0,sFlow(vid={vid},pcp={pcp},output={output}),actions)")
        }
        Sampled::Ipfix(note) => {
            let output = note.output.map_or(u32::MAX, |(_, no)| no.into());
            format!("userspace(pid=0,ipfix(output_port={output}))")
        }
        Sampled::Set(n) => {
            let output = n.output.map_or(u32::MAX, |(_, no)| no.into());
            let direction = ["", ",ingress", ",egress"][usize::from(n.direction.min(2))];
            format!(
                "userspace(pid=0,flow_sample(probability={},collector_set_id={},obs_domain_id={},\
                 obs_point_id={},output_port={output}{direction}))",
                n.probability, n.set, n.domain, n.point
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_switch_numbers_states_and_keeps_few_numbers() {
        let (numbers, others) = (StateNumbers::default(), StateNumbers::default());
        assert_eq!([7, 8, 7].map(|state| numbers.of_hash(state)), [1, 2, 1]);
        assert_eq!(others.of_hash(8), 1, "another switch knows nothing of them");
        for state in 0..10_000 {
            numbers.of_hash(state);
            assert!(numbers.0.lock().unwrap().len() <= NUMBERED_STATES_MAX);
        }
        assert_eq!(numbers.of_hash(9_999), numbers.of_hash(9_999));
    }
}
