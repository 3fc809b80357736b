//! The fragments of each port that wait: their number, and their order by age. The port that has
//! most gives way.

use super::END;
use std::collections::{BTreeSet, HashMap};

/// The fragments of one port: their number, and the places of the oldest and the newest.
#[derive(Clone, Copy)]
struct Share {
    count: u32,
    oldest: u32,
    newest: u32,
}

/// A place's neighbours among those of its port, by age.
#[derive(Clone, Copy)]
struct Link {
    older: u32,
    newer: u32,
}

/// The fragments of all ports that wait, by the places that they have.
#[derive(Default)]
pub struct Shares {
    ports: HashMap<u16, Share>,
    ranks: BTreeSet<(u32, u16)>,
    links: Vec<Link>,
}

impl Shares {
    /// Shares without fragments, with memory for `most` places.
    pub fn new(most: usize) -> Shares {
        let ports = HashMap::with_capacity(most);
        Shares { ports, ranks: BTreeSet::new(), links: Vec::with_capacity(most) }
    }

    /// Number of fragments of a port.
    pub fn of(&self, port: u16) -> u32 {
        self.ports.get(&port).map_or(0, |share| share.count)
    }

    /// The place of the oldest fragment of the port that has most fragments; None: that port has at
    /// most one fragment more than this one.
    pub fn victim(&self, port: u16) -> Option<u32> {
        let (most, of) = self.ranks.last()?;
        (*most > self.of(port) + 1).then(|| self.ports.get(of).map(|share| share.oldest))?
    }

    /// Records that a port's newest fragment has this place.
    pub fn enter(&mut self, port: u16, at: u32) {
        let empty = Share { count: 0, oldest: END, newest: END };
        let share = self.ports.entry(port).or_insert(empty);
        let link = Link { older: share.newest, newer: END };
        match self.links.get_mut(at as usize) {
            Some(place) => *place = link,
            None => self.links.push(link),
        }
        match share.newest {
            END => share.oldest = at,
            newest => self.links[newest as usize].newer = at,
        }
        share.newest = at;
        self.ranks.remove(&(share.count, port));
        share.count += 1;
        self.ranks.insert((share.count, port));
    }

    /// Records that a port's fragment left this place.
    pub fn leave(&mut self, port: u16, at: u32) {
        let Some(share) = self.ports.get_mut(&port) else { return };
        let Link { older, newer } = self.links[at as usize];
        match older {
            END => share.oldest = newer,
            older => self.links[older as usize].newer = newer,
        }
        match newer {
            END => share.newest = older,
            newer => self.links[newer as usize].older = older,
        }
        self.ranks.remove(&(share.count, port));
        share.count -= 1;
        match share.count {
            0 => drop(self.ports.remove(&port)),
            n => drop(self.ranks.insert((n, port))),
        }
    }
}
