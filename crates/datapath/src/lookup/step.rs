//! Step 3, lookup, of packets that differ from the one before them.

use crate::batch::Vector;
use crate::verify::Twin;
use packet::VECTOR;

impl Vector {
    /// Step 3.
    pub fn lookup(&mut self, now_ms: u64) {
        let mut todo = std::mem::take(&mut self.todo);
        self.leaders(&mut todo);
        self.table.classify(&mut self.keys, &mut todo);
        if self.validate {
            self.validate_lookup(&todo);
        }
        if self.runs < self.packets.len() {
            self.follow(&mut todo);
        }
        if !todo.is_empty() {
            self.misses(&mut todo, now_ms);
        }
        self.todo = todo;
    }

    /// The lookup's twin: what was found covers its packet, and no subtable of its port has a
    /// megaflow for a packet that was not found.
    fn validate_lookup(&mut self, missed: &[u8]) {
        let leaders = &self.leaders[..self.runs];
        let found = leaders.iter().filter_map(|i| {
            let key = self.keys.get(usize::from(*i));
            let megaflow =
                (self.keys.megaflow[usize::from(*i)], self.keys.program[usize::from(*i)]);
            self.table.compare(&key, (!missed.contains(i)).then_some(megaflow))
        });
        let found: Vec<_> = found.collect();
        self.count_validated(Twin::Megaflows, leaders.len(), found);
    }

    /// Packets whose key is that of the packet before them need no lookup of their own.
    fn leaders(&mut self, todo: &mut Vec<u8>) {
        let mut runs = 0;
        for (i, same) in self.columns.same[..self.packets.len()].iter().enumerate() {
            self.leaders[runs] = i as u8;
            runs += !same as usize;
        }
        self.runs = runs;
        todo.clear();
        todo.extend_from_slice(&self.leaders[..runs]);
        if self.marks.known > 0 {
            let known = &self.columns.known;
            todo.retain(|i| !known[usize::from(*i)]);
        }
    }

    /// Gives followers what their leaders found. Those whose leader found nothing are misses too:
    /// each of them is decided about, in its turn.
    fn follow(&mut self, todo: &mut Vec<u8>) {
        let mut missed = [false; VECTOR];
        todo.iter().for_each(|i| missed[*i as usize] = true);
        let (before, mut hits) = (todo.len(), 0);
        for run in 0..self.runs {
            let leader = self.leaders[run] as usize;
            let end = match run + 1 < self.runs {
                true => self.leaders[run + 1] as usize,
                false => self.packets.len(),
            };
            if missed[leader] {
                todo.extend((leader + 1..end).map(|i| i as u8));
            } else {
                let (first, rest) = (self.keys.megaflow[leader], leader + 1..end);
                self.keys.megaflow[rest.clone()].fill(first);
                let first = self.keys.program[leader];
                hits += rest.len() as u64;
                self.keys.program[rest].fill(first);
            }
        }
        self.table.followed(hits);
        if todo.len() > before {
            todo.sort_unstable();
        }
    }
}
