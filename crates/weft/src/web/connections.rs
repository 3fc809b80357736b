//! Connections that are served: when all places are taken, one that comes gets another one's.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::Notify;

/// A connection's place.
struct Taken {
    /// When the connection came, or its last request began or ended, counted.
    since: u64,
    /// A request is being answered.
    busy: bool,
    /// Ends the connection.
    end: Arc<Notify>,
}

#[derive(Default)]
struct All {
    taken: BTreeMap<u64, Taken>,
    last: u64,
}

/// Places of all connections.
#[derive(Clone)]
pub struct WebConnections {
    all: Arc<Mutex<All>>,
    most: usize,
}

/// One connection's; free again when dropped.
pub struct WebConnection {
    all: Arc<Mutex<All>>,
    id: u64,
    end: Arc<Notify>,
}

fn lock(all: &Mutex<All>) -> MutexGuard<'_, All> {
    all.lock().unwrap_or_else(|e| e.into_inner())
}

impl WebConnections {
    /// `most`: how many connections are served at once.
    pub fn new(most: usize) -> WebConnections {
        WebConnections { all: Arc::default(), most }
    }

    /// A place. If none is free, the connection ends that has been silent for longest, or else the
    /// one whose request takes longest.
    pub fn take(&self) -> WebConnection {
        let mut all = lock(&self.all);
        if all.taken.len() >= self.most {
            let longest = all.taken.iter().min_by_key(|(_, t)| (t.busy, t.since));
            if let Some(gone) = longest.map(|(id, _)| *id).and_then(|id| all.taken.remove(&id)) {
                gone.end.notify_one();
            }
        }
        all.last += 1;
        let id = all.last;
        let end = Arc::<Notify>::default();
        all.taken.insert(id, Taken { since: id, busy: false, end: end.clone() });
        WebConnection { all: self.all.clone(), id, end }
    }
}

impl WebConnection {
    /// Returns when another connection has got the place.
    pub async fn lost(&self) {
        self.end.notified().await;
    }

    /// Takes note that a request of the connection begins, or ends.
    pub fn set_busy(&self, busy: bool) {
        let mut all = lock(&self.all);
        all.last += 1;
        let since = all.last;
        if let Some(taken) = all.taken.get_mut(&self.id) {
            (taken.busy, taken.since) = (busy, since);
        }
    }
}

impl Drop for WebConnection {
    fn drop(&mut self) {
        lock(&self.all).taken.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_silent_for_longest_makes_room() {
        let places = WebConnections::new(3);
        let all: Vec<WebConnection> = (0..3).map(|_| places.take()).collect();
        let there = |place: &WebConnection| lock(&places.all).taken.contains_key(&place.id);
        all[0].set_busy(true);
        let one = places.take();
        assert!([0, 2].iter().all(|i| there(&all[*i])) && !there(&all[1]), "the first is busy");
        all[0].set_busy(false);
        let two = places.take();
        assert!(there(&all[0]) && !there(&all[2]), "the first was heard of last");
        [&all[0], &one, &two].iter().for_each(|p| p.set_busy(true));
        let three = places.take();
        assert!(!there(&all[0]) && there(&one) && there(&two) && there(&three));
        drop(one);
        let four = places.take();
        assert!(there(&two) && there(&three) && there(&four), "a place was free");
    }
}
