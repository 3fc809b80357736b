//! What becomes of controllers' connections, and what a bridge does without its controllers.

use super::{Bridge, Forgetting, State};
use crate::config::FailMode;
use crate::of::controller::Controller;
use crate::of::server::CloseReason;
use crate::vlog;
use std::time::{Duration, Instant};

/// The probe interval that counts where controllers are not probed.
const NO_PROBE: Duration = Duration::from_secs(5);

impl State {
    fn controller(&mut self, bridge: &str, target: &str) -> Option<&mut Controller> {
        self.status_dirty = true;
        self.bridges.get_mut(bridge)?.controllers.get_mut(target)
    }

    /// True if the controller of the row gets no asynchronous messages unless it asks for them.
    pub fn is_silent(&self, bridge: &str, target: &str) -> bool {
        let row = self.bridges.get(bridge).and_then(|b| b.controllers.get(target));
        row.is_some_and(|c| !c.conf.async_messages)
    }

    /// A connection is up and a version agreed.
    pub fn controller_joined(&mut self, bridge: &str, target: &str) {
        if let Some(c) = self.controller(bridge, target) {
            c.connections += 1;
            c.connected_at = Some(datapath::now_ms());
            vlog::info!("rconn", "{bridge}<->{target}: connected");
        }
        self.run_fail_mode();
    }

    /// A connection that was up ended.
    pub fn controller_left(&mut self, bridge: &str, target: &str) {
        if let Some(c) = self.controller(bridge, target) {
            c.connections = c.connections.saturating_sub(1);
            c.disconnected_at = Some(datapath::now_ms());
            c.left_at = Some(Instant::now());
        }
    }

    /// Says why a connection ends.
    pub fn controller_ended(&mut self, bridge: &str, target: &str, name: &str, why: CloseReason) {
        let error = match why {
            CloseReason::Closed => {
                vlog::info!("rconn", "{name}: connection closed by peer");
                "End of file".into()
            }
            CloseReason::Broken(why) => {
                vlog::warn!("rconn", "{name}: connection dropped ({why})");
                why
            }
            CloseReason::Silent => {
                vlog::err!("rconn", "{name}: no response to inactivity probe, disconnecting");
                "Connection timed out".into()
            }
            CloseReason::Replaced => "Connection reset by peer".into(),
            CloseReason::Protocol => "Protocol error".into(),
            CloseReason::Ours => return,
        };
        if let Some(c) = self.controller(bridge, target).filter(|c| c.active()) {
            c.last_error = Some(error);
        }
    }

    /// An attempt to connect failed.
    pub fn controller_failed(&mut self, bridge: &str, target: &str, error: &str) {
        if let Some(c) = self.controller(bridge, target) {
            c.last_error = Some(error.to_string());
        }
    }

    /// Fail-mode standalone: when all controllers have been away for three probe intervals, the
    /// bridge forwards on its own, whatever flows come, until one is back. It forgets its flows
    /// within a second, some at a time.
    pub fn run_fail_mode(&mut self) {
        let bridges = self.bridges.iter().map(|(n, b)| (n.clone(), b.id, fails_open(b)));
        let all: Vec<_> = bridges.collect();
        for (name, id, open) in all {
            let was = self.ofproto.bridge_config(id).is_some_and(|c| c.fail_open);
            match (was, open) {
                (false, true) => {
                    vlog::warn!(
                        "fail_open",
                        "{name}: could not connect to controller (or switch failed controller's \
                         post-connection admission control policy), failing open"
                    );
                }
                (true, false) => {
                    vlog::warn!("fail_open", "{name}: no longer in fail-open mode");
                }
                _ => continue,
            }
            self.change_bridge(id, |c| c.fail_open = open);
            if open {
                self.pending.forgetting.entry(id).or_insert(Forgetting::Wanted);
            }
        }
        self.flush_changes();
    }
}

/// True if it is time for the bridge to do without its controllers.
fn fails_open(bridge: &Bridge) -> bool {
    let primary = || bridge.controllers.values().filter(|c| c.conf.primary);
    let active = || primary().filter(|c| c.active());
    let probe = primary().map(|c| c.conf.inactivity_probe).max().unwrap_or_default();
    let probe = if probe.is_zero() { NO_PROBE } else { probe };
    let away = |c: &Controller| c.left_at.unwrap_or(c.started).elapsed();
    bridge.conf.fail_mode == FailMode::Standalone
        && active().next().is_some()
        && active().all(|c| !c.connected() && away(c) >= 3 * probe)
}
