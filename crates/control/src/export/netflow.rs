//! NetFlow of a bridge.

use super::collectors::Collectors;
use super::counts::{Counts, wall_clock, warn};
use crate::config::BridgeConf;
use ::export::netflow::Exporter;

/// Engine ids from here on do not fit into interface fields.
const ENGINE_ID_BITS: u8 = 7;

/// An exporter, and where what it tells goes.
pub struct NetFlow {
    /// What is known.
    pub exporter: Exporter,
    collectors: Collectors,
}

/// Makes, changes or ends it, as the database asks for.
pub fn apply(is: &mut Option<NetFlow>, conf: &BridgeConf, now: u64, past: &mut Counts) {
    let Some(wanted) = &conf.netflow else {
        return is.take().into_iter().for_each(|n| n.end(now, past));
    };
    let settings = &wanted.settings;
    if settings.add_id_to_interface && settings.engine_id >> ENGINE_ID_BITS != 0 && is.is_none() {
        warn(
            &conf.name,
            "NetFlow port mangling may conflict with another vswitch, choose an engine id less \
             than 128",
        );
    }
    let netflow = is.get_or_insert_with(|| NetFlow {
        exporter: Exporter::new(settings.clone(), now),
        collectors: Collectors::default(),
    });
    netflow.exporter.configure(settings.clone());
    if !netflow.collectors.are(&wanted.targets) {
        netflow.note_counts(past);
        netflow.collectors = Collectors::open(&wanted.targets, None);
    }
}

impl NetFlow {
    /// What was counted so far.
    pub fn counts(&self) -> Counts {
        let (sent, failed) = self.collectors.counts();
        Counts { lost: self.exporter.lost(), sent, failed }
    }

    /// What the collectors counted, which are to be replaced.
    fn note_counts(&self, past: &mut Counts) {
        *past += Counts { lost: 0, ..self.counts() };
    }

    /// Looks at some flows, and sends what is due. True: there are more.
    pub fn turn(&mut self, now: u64, most: usize) -> bool {
        let more = self.exporter.run(now, most);
        self.send();
        more
    }

    /// Tells all that is known.
    pub fn end(mut self, now: u64, past: &mut Counts) {
        self.exporter.finish(now);
        self.send();
        *past += self.counts();
    }

    fn send(&mut self) {
        for datagram in self.exporter.take(wall_clock()) {
            self.collectors.send(&datagram);
        }
    }
}
