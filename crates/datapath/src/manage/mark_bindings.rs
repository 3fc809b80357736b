//! What the control side keeps of marks: of ports, of workers' megaflows, of the whole packet side.

use crate::lookup::flow_store::{Column, Zero};
use crate::manage::watches::Watches;
use crate::marks::{MARK_FORMS_MAX, MarkMemory};
use flow::PortNo;
use offload::{FirstBytes, FlowId};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// One port's marks.
#[derive(Default)]
pub(crate) struct PortMarks {
    /// By worker's slot.
    pub memories: BTreeMap<usize, Arc<MarkMemory>>,
    /// Forms of bindings (no value), and how many have them; the place is the worker's number for
    /// it.
    pub forms: Vec<(FirstBytes, u32)>,
    /// Workers treat its packets as if they had no marks.
    pub ignored: bool,
}

/// Of the whole packet side.
#[derive(Default)]
pub(crate) struct MarkControl {
    /// Megaflows whose packets adapters have.
    pub watches: Watches,
    /// Megaflows that were bound and ended.
    pub ended: Vec<FlowId>,
    /// What workers may still look at.
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

/// What is known of one worker's megaflows as far as marks go.
#[derive(Default)]
pub(crate) struct FlowMarks {
    pub bound: HashMap<u32, Bound>,
    pub ended: Vec<Bound>,
    pub samples: Option<Column<Sample>>,
}

impl FlowMarks {
    /// A megaflow ended.
    pub fn ended(&mut self, idx: u32) {
        if let Some(samples) = &mut self.samples {
            samples[idx as usize] = Sample::default();
        }
        self.ended.extend(self.bound.remove(&idx));
    }

    /// A megaflow's counter stands at this; packets since the last time. `room`: as many megaflows
    /// may be.
    pub fn sampled(&mut self, idx: u32, packets: u32, room: usize) -> u32 {
        let sample = &mut self.samples.get_or_insert_with(|| Column::new(room))[idx as usize];
        let recent = packets.wrapping_sub(sample.packets);
        *sample = Sample { packets, recent };
        recent
    }

    /// Packets of the last sample.
    pub fn pps(&self, idx: u32) -> u32 {
        self.samples.as_ref().map_or(0, |s| s[idx as usize].recent)
    }
}

impl PortMarks {
    /// The worker's number for a binding's form; None: there are too many.
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
