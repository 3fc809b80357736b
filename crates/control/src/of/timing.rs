//! Times of a controller's connections, which change while these last.

use std::time::Duration;
use tokio::sync::watch;

/// The times themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Longest pause between attempts (`Controller.max_backoff`).
    pub max_backoff: Duration,
    /// Silence after which the peer is asked, and then given up (`inactivity_probe`); zero: never.
    pub probe: Duration,
}

/// The times as a connection sees them.
#[derive(Clone)]
pub struct Timing(watch::Receiver<Times>);

impl Timing {
    /// Those of a row of the database, and where to say that they are others.
    pub fn new(times: Times) -> (watch::Sender<Times>, Timing) {
        let (sender, receiver) = watch::channel(times);
        (sender, Timing(receiver))
    }

    /// What they are now.
    pub fn now(&self) -> Times {
        *self.0.borrow()
    }

    /// Waits until they are others.
    pub async fn changed(&mut self) {
        // Without a row, or when it is gone, they stay as they are.
        if self.0.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

impl Default for Timing {
    /// Without a row of the database: no probes.
    fn default() -> Self {
        Timing::new(Times { max_backoff: Duration::from_secs(8), probe: Duration::ZERO }).1
    }
}
