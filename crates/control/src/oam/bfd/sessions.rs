//! The BFD sessions of all interfaces, and when they are to be run.

use super::bfd_conf::Conf;
use super::session::{Session, Status};
use crate::oam::wakeups::Wakeups;
use ofproto::{BfdFilter, Gate};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};

/// Source ports (RFC 5881, section 4).
const FIRST_SOURCE_PORT: u16 = 49_152;
const SOURCE_PORTS: u16 = 16_384;

/// The sessions of all interfaces.
#[derive(Default)]
pub struct Sessions {
    /// Sessions, by interface.
    pub(super) all: BTreeMap<String, Entry>,
    /// When which is to be run.
    pub wakeups: Wakeups,
    /// Sessions so far.
    count: u16,
    random: RandomState,
    /// Random numbers so far.
    drawn: u64,
    /// How often sessions were run: for a packet, or because it was time to.
    pub runs: u64,
    /// Packets that were not looked at, as their interface had more than its share of them.
    pub unheard: u64,
}

/// An interface's session.
pub(super) struct Entry {
    pub session: Session,
    pub source_port: u16,
    /// Packets that the interface had received at the last look, where that matters.
    pub received: u64,
    /// What is wrong with the settings, as the log has it.
    pub wrong: Vec<String>,
    /// Whether its packets are handed over to the control side.
    pub gate: Gate,
    /// As the switch half and the database have it.
    pub published: Status,
}

impl Sessions {
    /// The packets that the port is to take for its session.
    pub fn filter(&self, iface: &str) -> Option<BfdFilter> {
        self.all.get(iface).map(|e| e.session.conf().filter(&e.gate))
    }

    /// True if packets get through. None: the interface has no session.
    pub fn forwards(&self, iface: &str) -> Option<bool> {
        self.all.get(iface).map(|e| e.published.forwarding)
    }

    /// `Interface.bfd_status`; None: the interface has no session.
    pub fn status(&self, iface: &str) -> Option<Status> {
        self.all.get(iface).map(|e| e.published)
    }

    /// What `bfd/show` prints, by interface.
    pub fn show(&self, now: u64) -> impl Iterator<Item = (&str, String)> {
        self.all.iter().map(move |(name, e)| (name.as_str(), e.session.show(now)))
    }

    pub(super) fn draw(&mut self) -> u64 {
        self.drawn += 1;
        self.random.hash_one(self.drawn)
    }

    /// A discriminator that no session has.
    fn discriminator(&mut self) -> u32 {
        loop {
            let disc = self.draw() as u32;
            if disc != 0 && self.all.values().all(|e| e.session.disc() != disc) {
                return disc;
            }
        }
    }

    pub(super) fn add(&mut self, iface: &str, conf: Conf, now: u64, received: u64) {
        let session = Session::new(conf, self.discriminator(), now, received);
        let source_port = FIRST_SOURCE_PORT + self.count % SOURCE_PORTS;
        self.count = self.count.wrapping_add(1);
        let (published, wrong, gate) = (Status::default(), Vec::new(), Gate::default());
        let entry = Entry { session, source_port, received, wrong, gate, published };
        self.all.insert(iface.into(), entry);
    }

    pub(super) fn remove(&mut self, iface: &str) {
        self.all.remove(iface);
        self.wakeups.remove(iface);
    }
}
