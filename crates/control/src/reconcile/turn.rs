//! Turns of others while a configuration is applied.

use crate::state::Shared;
use std::time::{Duration, Instant};

/// How long a configuration is applied before others have their turn.
const TURN_TIME_MAX: Duration = Duration::from_millis(5);

/// Gives others their turn, if they did not have it for long.
pub(super) async fn give_turn(state: &Shared, turn: &mut Instant) {
    if turn.elapsed() > TURN_TIME_MAX {
        state.borrow_mut().flush_changes();
        tokio::task::yield_now().await;
        *turn = Instant::now();
    }
}
