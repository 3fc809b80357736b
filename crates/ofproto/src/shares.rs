//! Which port has the most of something that is learned: a binary heap of ports.
//!
//! If several ports have as many, the first is the one that is first in ovs-vswitchd's heap, whose
//! order follows from the order of changes: a node moves only past nodes with less, and of two
//! children with as many the left one moves up.

use std::collections::HashMap;

/// How many each port has, for ports that have some.
#[derive(Default)]
pub(crate) struct Shares {
    /// Count and port of each node; the children of node `i` are at `2 * i + 1` and the next one.
    heap: Vec<(usize, u32)>,
    place: HashMap<u32, usize>,
}

impl Shares {
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// The port with the most.
    pub fn most(&self) -> Option<u32> {
        self.heap.first().map(|(_, port)| *port)
    }

    pub fn ports(&self) -> impl Iterator<Item = u32> {
        self.heap.iter().map(|(_, port)| *port)
    }

    /// Sets how many a port has.
    pub fn set(&mut self, port: u32, n: usize) {
        match (self.place.get(&port).copied(), n) {
            (None, 0) => {}
            (None, _) => {
                self.heap.push((n, port));
                self.settle(self.heap.len() - 1);
            }
            (Some(at), 0) => {
                self.heap.swap_remove(at);
                self.place.remove(&port);
                if at < self.heap.len() {
                    self.settle(at);
                }
            }
            (Some(at), _) => {
                self.heap[at].0 = n;
                self.settle(at);
            }
        }
    }

    /// Moves a node to its place in the heap.
    fn settle(&mut self, mut at: usize) {
        while at > 0 && self.heap[(at - 1) / 2].0 < self.heap[at].0 {
            self.swap(at, (at - 1) / 2);
            at = (at - 1) / 2;
        }
        while let Some(child) = self.larger_child(at).filter(|c| self.heap[*c].0 > self.heap[at].0)
        {
            self.swap(at, child);
            at = child;
        }
        self.place.insert(self.heap[at].1, at);
    }

    fn larger_child(&self, at: usize) -> Option<usize> {
        let (left, right) = (2 * at + 1, 2 * at + 2);
        let n = |i: usize| self.heap.get(i).map(|(n, _)| *n);
        n(left)?;
        Some(if n(right) > n(left) { right } else { left })
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.place.insert(self.heap[a].1, a);
        self.place.insert(self.heap[b].1, b);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn the_first_has_the_most_whatever_changes() {
        let (mut shares, mut all) = (Shares::default(), BTreeMap::new());
        let mut random = 1u64;
        for _ in 0..5000 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let (port, n) = ((random >> 33) as u32 % 20, (random >> 40) as usize % 5);
            shares.set(port, n);
            match n {
                0 => _ = all.remove(&port),
                _ => _ = all.insert(port, n),
            }
            let most = shares.most().map(|p| all[&p]);
            assert_eq!(most, all.values().max().copied());
            assert_eq!(shares.ports().count(), all.len());
            assert!(shares.heap.iter().enumerate().all(|(at, (_, p))| shares.place[p] == at));
        }
    }
}
