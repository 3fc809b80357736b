//! Exporters that are gone, and those that end: they report what they know in turns.

use super::counts::Counts;
use super::ipfix::One;
use super::netflow::NetFlow;
use std::collections::VecDeque;

/// An exporter that ends.
pub enum Ending {
    /// A record of NetFlow.
    NetFlow(NetFlow),
    /// A record of IPFIX.
    Ipfix(Box<One>),
}

impl Ending {
    fn counts(&self) -> Counts {
        match self {
            Ending::NetFlow(n) => n.counts(),
            Ending::Ipfix(one) => one.counts(),
        }
    }

    /// Reports some flows. True: there are more.
    fn turn(&mut self, now: u64, left: &mut usize) -> bool {
        match self {
            Ending::NetFlow(n) => n.end(now, left),
            Ending::Ipfix(one) => one.end(now, left),
        }
    }
}

/// What is left of exporters that the database does not ask for any more.
#[derive(Default)]
pub struct Past {
    counts: Counts,
    ending: VecDeque<Ending>,
}

impl Past {
    /// What they counted.
    pub fn counts(&self) -> Counts {
        let mut all = self.counts;
        self.ending.iter().for_each(|e| all += e.counts());
        all
    }

    /// Adds what one counted that is gone.
    pub fn add(&mut self, counts: Counts) {
        self.counts += counts;
    }

    /// One ends.
    pub fn end(&mut self, one: Ending) {
        self.ending.push_back(one);
    }

    /// Reports `left` flows of those that end. True: there are more.
    pub fn turn(&mut self, now: u64, mut left: usize) -> bool {
        while let Some(first) = self.ending.front_mut() {
            if first.turn(now, &mut left) {
                return true;
            }
            let counts = first.counts();
            self.counts += counts;
            self.ending.pop_front();
        }
        false
    }
}
