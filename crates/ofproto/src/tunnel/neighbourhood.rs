//! Next hops' hardware addresses as translation reads them, in parts that publications share.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;

/// Number of parts: in a full table of 16,384 entries a change copies 64.
const PARTS: usize = 256;

type Part = HashMap<(String, IpAddr), [u8; 6]>;

/// Hardware addresses of next hops, by port name and IP address. A clone shares all parts; a change
/// copies its part, if a clone shares it.
#[derive(Clone)]
pub(crate) struct Neighbourhood {
    parts: Vec<Arc<Part>>,
    by: RandomState,
    #[cfg(test)]
    copied: u64,
}

impl Default for Neighbourhood {
    fn default() -> Self {
        Neighbourhood {
            parts: vec![Arc::default(); PARTS],
            by: RandomState::new(),
            #[cfg(test)]
            copied: 0,
        }
    }
}

impl Neighbourhood {
    fn part(&self, place: &(String, IpAddr)) -> usize {
        self.by.hash_one(place) as usize % PARTS
    }

    /// The hardware address of a next hop.
    pub fn get(&self, place: &(String, IpAddr)) -> Option<[u8; 6]> {
        self.parts[self.part(place)].get(place).copied()
    }

    /// Sets the hardware address of a next hop; None removes it.
    pub fn set(&mut self, place: &(String, IpAddr), mac: Option<[u8; 6]>) {
        let i = self.part(place);
        #[cfg(test)]
        if Arc::strong_count(&self.parts[i]) > 1 {
            self.copied += self.parts[i].len() as u64;
        }
        let part = Arc::make_mut(&mut self.parts[i]);
        match mac {
            Some(mac) => _ = part.insert(place.clone(), mac),
            None => _ = part.remove(place),
        }
    }

    /// Number of entries that were copied so far.
    #[cfg(test)]
    pub fn copied(&self) -> u64 {
        self.copied
    }
}
