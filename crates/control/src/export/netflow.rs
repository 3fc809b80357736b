//! NetFlow of a bridge.

use super::collectors::Collectors;
use super::counts::{Counts, wall_clock, warn};
use super::past::{Ending, Past};
use crate::config::BridgeConf;
use ::export::Traffic;
use ::export::netflow::Exporter;
use ofproto::FlowExport;

/// Engine ids from here on do not fit into interface fields.
const ENGINE_ID_BITS: u8 = 7;

/// Datagrams that wait until all are sent.
const DATAGRAMS_MAX: usize = 16;

/// An exporter, and where what it tells goes.
pub struct NetFlow {
    /// What is known.
    pub exporter: Exporter,
    collectors: Collectors,
}

/// Makes, changes or ends it, as the database asks for.
pub fn apply(is: &mut Option<NetFlow>, conf: &BridgeConf, now: u64, past: &mut Past) {
    let Some(wanted) = &conf.netflow else {
        return is.take().into_iter().for_each(|n| past.end(Ending::NetFlow(n)));
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
        past.add(netflow.counts());
        netflow.collectors = Collectors::open(&wanted.targets, None);
    }
}

impl NetFlow {
    /// What was counted so far.
    pub fn counts(&self) -> Counts {
        let (sent, failed) = self.collectors.counts();
        Counts { lost: 0, sent, failed }
    }

    /// Packets of a flow went to a port.
    pub fn update(&mut self, flow: &FlowExport, traffic: Traffic) {
        self.exporter.update(&flow.flow, flow.output, flow.tcp_flags, traffic);
        if self.exporter.full() >= DATAGRAMS_MAX {
            self.send();
        }
    }

    /// Looks at some flows, and sends what is due. True: there are more.
    pub fn turn(&mut self, now: u64, left: &mut usize) -> bool {
        let more = self.exporter.run(now, left);
        self.send();
        more
    }

    /// Reports some of all that is known. True: there is more.
    pub fn end(&mut self, now: u64, left: &mut usize) -> bool {
        let more = self.exporter.finish(now, left);
        self.send();
        more
    }

    fn send(&mut self) {
        for datagram in self.exporter.take(wall_clock()) {
            self.collectors.send(&datagram);
        }
    }
}
