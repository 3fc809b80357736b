//! The times of connections to controllers: how long to wait before connecting again, and when to
//! probe. A row of the database may change them while its connections last.

use std::time::Duration;
use tokio::sync::watch;

/// Silence after which a client of a bridge's own sockets is asked: what ovs-vswitchd has for them.
const LOCAL_PROBE: Duration = Duration::from_secs(60);

/// Times of the connections of one row of table `Controller`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Longest pause between attempts (`Controller.max_backoff`).
    pub max_backoff: Duration,
    /// Silence after which the peer is asked, and then given up (`inactivity_probe`); zero: never.
    pub probe: Duration,
}

/// A connection's view of the [`Times`] of its row, which the row may change.
#[derive(Clone)]
pub struct Timing(watch::Receiver<Times>);

impl Timing {
    /// Begins with `times`. Returns the sender, by which the row changes them, and the view, of
    /// which each connection gets a copy.
    pub fn new(times: Times) -> (watch::Sender<Times>, Timing) {
        let (sender, receiver) = watch::channel(times);
        (sender, Timing(receiver))
    }

    /// The present times.
    pub fn now(&self) -> Times {
        *self.0.borrow()
    }

    /// Waits until the row changes its times; for ever if the connection has no row, or none any
    /// more.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

impl Default for Timing {
    /// Times of a connection to a bridge's own sockets, which has no row.
    fn default() -> Self {
        Timing::new(Times { max_backoff: Duration::from_secs(8), probe: LOCAL_PROBE }).1
    }
}
