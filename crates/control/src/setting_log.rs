//! What the log says of settings that have no effect, of which the database may have very many.

use crate::budget::Budget;
use crate::vlog::{self, Level};

/// Messages at once: a row of the database may have as many settings as fit into megabytes, and
/// others each time.
const MESSAGES_COUNT_MAX: u64 = 1000;
/// After those, there is one more in this time.
const MESSAGE_MS: u64 = 100;

/// How many messages more may come into the log; None: none came yet.
#[derive(Default)]
pub struct SettingLog(Option<Budget>);

impl SettingLog {
    /// Logs messages (level, module, text); of very many it says how many there are.
    pub fn say<'a>(
        &mut self,
        now_ms: u64,
        all: impl Iterator<Item = (Level, &'static str, &'a str)>,
    ) {
        let left = self.0.get_or_insert_with(|| Budget::full(MESSAGES_COUNT_MAX, now_ms));
        let mut unsaid = 0;
        for (level, module, text) in all {
            if !left.has(now_ms, MESSAGE_MS) {
                unsaid += 1;
                continue;
            }
            left.spend();
            // Each says something else: no limit on messages from one place.
            vlog::write(&vlog::Site::new(), level, module, format_args!("{text}"));
        }
        if unsaid > 0 {
            vlog::warn!("bridge", "{unsaid} more settings are not known or not supported");
        }
    }
}
