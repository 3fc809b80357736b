//! Walks over all connections, of which there may be millions: some entries at a time, with
//! everybody else's turn in between, and one walk's entries in each turn however many walks are
//! under way.

use conntrack::{Absent, Conn, Filter, Shown, Table};
use datapath::now_ms;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::task::{spawn_local, yield_now};

/// Entries of the table, or buckets of its index, that are looked at in one turn: a millisecond's
/// work or two, if all of them are printed.
pub const STEPS_PER_TURN: u32 = 2048;

/// Connections, for those who want to see all of them, and whose turn it is among those who show
/// much.
#[derive(Clone)]
pub struct Walker {
    table: Arc<Table>,
    /// One walk goes on in each turn.
    turns: Rc<Semaphore>,
}

/// A walk that shows connections.
pub struct Walk {
    walker: Walker,
    zone: Option<u16>,
    next: Option<u32>,
}

impl Walker {
    /// A walker over the connections of a table.
    pub fn new(table: &Arc<Table>) -> Walker {
        Walker { table: table.clone(), turns: Rc::new(Semaphore::new(1)) }
    }

    /// The table.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Waits until everybody else had a turn.
    pub async fn turn(&self) {
        let _mine = self.turns.acquire().await;
        yield_now().await;
    }

    /// A walk over a zone's connections; None: over all.
    pub fn walk(&self, zone: Option<u16>) -> Walk {
        Walk { walker: self.clone(), zone, next: Some(0) }
    }

    /// Ends the connections that the filter fits. Once begun it goes on to its end, whatever
    /// becomes of the client that asked for it.
    ///
    /// # Errors
    /// The filter names a single connection, and there is none.
    pub async fn flush(&self, filter: Filter) -> Result<(), Absent> {
        let Some(mut from) = self.table.flush_where(&filter, 0, STEPS_PER_TURN, now_ms())? else {
            return Ok(());
        };
        let walker = self.clone();
        let rest = spawn_local(async move {
            loop {
                walker.turn().await;
                match walker.table.flush_where(&filter, from, STEPS_PER_TURN, now_ms())? {
                    Some(next) => from = next,
                    None => return Ok(()),
                }
            }
        });
        rest.await.unwrap_or(Ok(()))
    }

    /// Waits for a turn; which of these buckets of the index to look at in it.
    pub async fn buckets(&self, all: Range<u32>) -> Range<u32> {
        self.turn().await;
        all.start..all.end.min(all.start + STEPS_PER_TURN)
    }
}

impl Walk {
    /// Waits for a turn and shows some connections, each with the one that announced it and what
    /// the clock shows; false: these were the last.
    pub async fn go_on(&mut self, mut to: impl FnMut(&Conn, Option<&Conn>, u64)) -> bool {
        let Some(from) = self.next else { return false };
        self.walker.turn().await;
        let (table, now) = (&self.walker.table, now_ms());
        self.next = table.show(from, STEPS_PER_TURN, now, |Shown { conn, .. }| {
            if self.zone.is_none_or(|zone| zone == conn.orig.zone) {
                let parent = conn.parent.and_then(|name| table.parent(name));
                to(&conn, parent.as_ref(), now);
            }
        });
        self.next.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conntrack::{Arrival, Class, Keeper, Store, Tuple, TupleFilter, Worker};
    use std::cell::Cell;
    use std::net::IpAddr;
    use tokio::task::LocalSet;

    /// Connections, and the entries that their table looks at (its memory comes in chunks of so
    /// many).
    const CONNECTIONS: u16 = 10_000;
    const ENTRIES: u32 = 1 << 16;

    /// Connections with an even port are from the first address, the others from the second.
    fn filled() -> Arc<Table> {
        let table = Arc::new(Table::new());
        let _keeper = Keeper::new(&table, sync::Domain::new(), now_ms());
        let mut worker = Worker::new(&table);
        for sport in 0..CONNECTIONS {
            let src = u128::from(1 + sport % 2);
            let orig = Tuple { src, dst: 9, sport, dport: 53, proto: 17, ..Tuple::default() };
            let conn = Conn { orig, reply: orig.reversed(), ..Conn::default() };
            let came = Arrival { port: 1, now: now_ms() };
            worker.insert(&conn, Class::UdpMultiple, came).unwrap();
        }
        table
    }

    async fn show_all(walker: Walker, seen: Rc<Cell<u32>>) {
        let mut walk = walker.walk(None);
        loop {
            let mut of_turn = 0;
            let more = walk.go_on(|_, _, _| of_turn += 1).await;
            assert!(of_turn <= STEPS_PER_TURN);
            seen.set(seen.get() + of_turn);
            if !more {
                return;
            }
        }
    }

    #[test]
    fn others_have_a_turn_after_each_piece_of_all_walks() {
        let (table, seen) = (filled(), Rc::new(Cell::new(0)));
        let walker = Walker::new(&table);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let turns = LocalSet::new().block_on(&runtime, async {
            let turns = Rc::new(Cell::new(0u32));
            let count = turns.clone();
            let others = spawn_local(async move {
                loop {
                    count.set(count.get() + 1);
                    yield_now().await;
                }
            });
            let src = Some(IpAddr::from([0, 0, 0, 1]));
            let orig = TupleFilter { src, ..TupleFilter::default() };
            let filter = Filter { orig, ..Filter::default() };
            let shows = [0, 1].map(|_| spawn_local(show_all(walker.clone(), seen.clone())));
            for show in shows {
                show.await.unwrap();
            }
            assert_eq!(seen.get(), 2 * u32::from(CONNECTIONS));
            walker.flush(filter).await.unwrap();
            others.abort();
            turns.get()
        });
        assert_eq!(table.len(), u32::from(CONNECTIONS) / 2, "those from one address");
        assert!(turns >= 3 * ENTRIES / STEPS_PER_TURN - 1, "{turns} turns of others");
    }
}
