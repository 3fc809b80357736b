//! What the control side knows of marks: of ports, of workers' megaflows, and overall.

use crate::lookup::flow_store::{Column, Zero};
use crate::manage::watches::Watches;
use crate::marks::{MARK_FORMS_MAX, MarkMemory};
use flow::PortNo;
use offload::{FirstBytes, FlowId};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The marks of one port.
#[derive(Default)]
pub(crate) struct PortMarks {
    /// The tables' memories, by the worker's number.
    pub memories: BTreeMap<usize, Arc<MarkMemory>>,
    /// The forms of bindings (without values), and how many bindings have each; the position is the
    /// form's number in workers' tables.
    pub forms: Vec<(FirstBytes, u32)>,
    /// True: workers treat packets of the port as if they had no marks.
    pub ignored: bool,
}

/// The state of marks that belongs to no single port or worker.
#[derive(Default)]
pub(crate) struct MarkControl {
    /// Megaflows whose packets adapters forward.
    pub watches: Watches,
    /// Megaflows with marks that ended.
    pub ended: Vec<FlowId>,
    /// Memories of removed tables that workers may still read.
    pub retired: Vec<Arc<MarkMemory>>,
}

#[derive(Clone, Copy)]
pub(crate) struct Bound {
    pub flow: FlowId,
    pub port: PortNo,
    pub slot: u16,
    pub form: u8,
}

#[derive(Clone, Copy, Default)]
pub(crate) struct Sample {
    pub packets: u32,
    pub recent: u32,
}

// SAFETY: zero is a megaflow without packets.
unsafe impl Zero for Sample {}

/// What the control side knows of marks of one worker's megaflows.
#[derive(Default)]
pub(crate) struct FlowMarks {
    pub bound: HashMap<u32, Bound>,
    pub ended: Vec<Bound>,
    pub samples: Option<Column<Sample>>,
}

impl FlowMarks {
    /// Records that a megaflow ended.
    pub fn ended(&mut self, idx: u32) {
        if let Some(samples) = &mut self.samples {
            samples[idx as usize] = Sample::default();
        }
        self.ended.extend(self.bound.remove(&idx));
    }

    /// Records that a megaflow's packet counter has this value; returns the growth since the last
    /// sample. `room`: number of megaflow indices.
    pub fn sampled(&mut self, idx: u32, packets: u32, room: usize) -> u32 {
        let sample = &mut self.samples.get_or_insert_with(|| Column::new(room))[idx as usize];
        let recent = packets.wrapping_sub(sample.packets);
        *sample = Sample { packets, recent };
        recent
    }

    /// Packets in the last sample.
    pub fn pps(&self, idx: u32) -> u32 {
        self.samples.as_ref().map_or(0, |s| s[idx as usize].recent)
    }
}

impl PortMarks {
    /// The number of a binding's form in workers' tables; None: the port has too many forms.
    pub fn form(&mut self, bytes: &FirstBytes) -> Option<u8> {
        let form = FirstBytes { value: [0; 64], ..bytes.clone() };
        let same = self.forms.iter().position(|(f, refs)| *refs > 0 && *f == form);
        let free = || self.forms.iter().position(|(_, refs)| *refs == 0);
        let i = match same.or_else(free) {
            Some(i) => i,
            None if self.forms.len() < MARK_FORMS_MAX => {
                self.forms.push((form.clone(), 0));
                self.forms.len() - 1
            }
            None => return None,
        };
        self.forms[i] = (form, self.forms[i].1 + 1);
        Some(i as u8)
    }

    pub fn release(&mut self, form: u8) {
        if let Some((_, refs)) = self.forms.get_mut(usize::from(form)) {
            *refs = refs.saturating_sub(1);
        }
    }
}
