//! Looks at the switch when a client asks, at most once a second, however many ask.

use crate::dirs::Dirs;
use crate::view::{self, Tree, View};
use anyhow::Result;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// How old an answer may be.
const FRESH: Duration = Duration::from_secs(1);
/// A look that is older than this says nothing about rates of now.
const STALE: Duration = Duration::from_secs(10);

/// A look and what happened since the one before.
pub struct Look {
    /// The look.
    pub tree: Tree,
    /// What happened between the two samples.
    pub view: View,
    at: Instant,
}

/// The last sample.
pub struct Sampler {
    dirs: Dirs,
    last: Mutex<Option<Arc<Look>>>,
}

impl Sampler {
    /// Nothing has been looked at.
    pub fn new(dirs: &Dirs) -> Sampler {
        Sampler { dirs: dirs.clone(), last: Mutex::new(None) }
    }

    /// A sample that is fresh. The first one after a pause has a short look before it, for rates.
    pub async fn sample(&self) -> Result<Arc<Look>> {
        let mut last = self.last.lock().await;
        if let Some(sample) = last.as_ref().filter(|s| s.at.elapsed() < FRESH) {
            return Ok(sample.clone());
        }
        let before = match last.take().filter(|s| s.at.elapsed() < STALE) {
            Some(sample) => sample.tree.clone(),
            None => {
                let tree = self.look().await?;
                tokio::time::sleep(FRESH / 4).await;
                tree
            }
        };
        let tree = self.look().await?;
        let sample =
            Arc::new(Look { view: View::between(&before, &tree), tree, at: Instant::now() });
        *last = Some(sample.clone());
        Ok(sample)
    }

    async fn look(&self) -> Result<Tree> {
        let dirs = self.dirs.clone();
        tokio::task::spawn_blocking(move || view::look(&dirs, true)).await?
    }
}
