//! Controllers of the database: connecting, listening, and what is written back about them.

use crate::config::{ControllerConf, FailMode};
use crate::of::Kind;
use crate::of::server::{self, End, Target, Task, Timing, UnixSocket};
use crate::state::{Bridge, Shared, State};
use crate::vlog;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const MODULE: &str = "connmgr";
/// The probe interval that counts where controllers are not probed.
const NO_PROBE: Duration = Duration::from_secs(5);

/// A controller row at work.
pub struct Controller {
    conf: ControllerConf,
    /// How many connections have agreed on a version (a passive one may have several).
    pub connections: usize,
    /// Since when the row is there: the start of an absence before the first connection.
    started: Instant,
    /// When the last connection came up.
    pub connected_at: Option<Instant>,
    /// When the last connection ended.
    pub left_at: Option<Instant>,
    /// What went wrong last.
    pub last_error: Option<String>,
    /// Packet-ins held back by the rate limit: misses, others.
    limits: [Limit; 2],
    _keep: Keep,
}

impl Controller {
    /// Is somebody connected?
    pub fn connected(&self) -> bool {
        self.connections > 0
    }

    /// Do we connect to it, rather than it to us?
    pub fn active(&self) -> bool {
        is_active(&self.conf)
    }

    /// May another packet-in go out? What may not is counted.
    pub fn admit(&mut self, miss: bool, now_ms: u64) -> bool {
        let (rate, burst) = (self.conf.rate_limit, self.conf.burst_limit);
        self.limits[usize::from(!miss)].admit(rate, burst, now_ms)
    }

    /// Packet-ins that the rate limit dropped: misses, others. None without a limit.
    pub fn held_back(&self) -> Option<[u64; 2]> {
        (self.conf.rate_limit > 0).then(|| [self.limits[0].dropped, self.limits[1].dropped])
    }
}

/// Do we connect to the controller of this row (`tcp:`, `unix:`)?
pub fn is_active(conf: &ControllerConf) -> bool {
    conf.target.starts_with("tcp:") || conf.target.starts_with("unix:")
}

/// A token bucket, in thousandths of a packet.
#[derive(Default)]
struct Limit {
    tokens: u64,
    at_ms: Option<u64>,
    dropped: u64,
}

impl Limit {
    /// `rate`: packets per second, 0 for no limit; `burst`: packets at once, 0 for a quarter of that.
    fn admit(&mut self, rate: u32, burst: u32, now_ms: u64) -> bool {
        if rate == 0 {
            return true;
        }
        let burst = if burst == 0 { rate / 4 } else { burst };
        let full = u64::from(burst.max(1)) * 1000;
        let passed = self.at_ms.map_or(u64::MAX, |at| now_ms.saturating_sub(at));
        self.at_ms = Some(now_ms);
        self.tokens = self.tokens.saturating_add(passed.saturating_mul(rate.into())).min(full);
        let pass = self.tokens >= 1000;
        if pass {
            self.tokens -= 1000;
        } else {
            self.dropped += 1;
        }
        pass
    }
}

/// What lives as long as the row.
enum Keep {
    Task(#[allow(dead_code)] Task),
    Socket(#[allow(dead_code)] UnixSocket),
    Nothing,
}

/// Starts, keeps and stops controllers so that they are as `wanted` says.
pub fn reconcile(state: &Shared, bridge: &str, wanted: &[ControllerConf]) {
    let mut old = match state.borrow_mut().bridges.get_mut(bridge) {
        Some(b) => std::mem::take(&mut b.controllers),
        None => return,
    };
    let mut new = BTreeMap::new();
    for conf in wanted {
        // One that does not stay is gone before the next one starts, with its socket's file.
        let controller = match old.remove(&conf.target).filter(|c| stays(&c.conf, conf)) {
            Some(mut c) => {
                c.conf = conf.clone();
                c
            }
            None => start(state, bridge, conf),
        };
        new.insert(conf.target.clone(), controller);
    }
    let mut s = state.borrow_mut();
    let gone: Vec<String> = old.into_keys().collect();
    s.conns.retain(|_, c| {
        c.bridge != bridge || c.kind.target().is_none_or(|t| !gone.iter().any(|g| g == t))
    });
    if let Some(b) = s.bridges.get_mut(bridge) {
        b.controllers = new;
    }
}

/// Can the connection stay, with limits taken over as they are?
fn stays(old: &ControllerConf, new: &ControllerConf) -> bool {
    let live = |c: &ControllerConf| ControllerConf {
        rate_limit: 0,
        burst_limit: 0,
        queue_size: 0,
        ..c.clone()
    };
    live(old) == live(new)
}

fn start(state: &Shared, bridge: &str, conf: &ControllerConf) -> Controller {
    let timing = Timing {
        max_backoff: conf.max_backoff.max(Duration::from_millis(100)),
        probe: conf.inactivity_probe,
    };
    let (kind, rest) = conf.target.split_once(':').unwrap_or((conf.target.as_str(), ""));
    let row =
        Kind::Row { target: conf.target.clone(), active: is_active(conf), primary: conf.primary };
    let mut last_error = None;
    let refused = refusal(&conf.target, bridge, &crate::daemon::Dirs::from_env().run);
    let keep = match kind {
        _ if refused.is_some() => {
            let why = refused.unwrap_or_default();
            vlog::err!(
                "bridge",
                "bridge {bridge}: Not adding Unix domain socket controller \"{}\": {why}",
                conf.target
            );
            last_error = Some(why);
            Keep::Nothing
        }
        "tcp" => {
            let target = Target::Tcp(host_port(rest));
            Keep::Task(server::connect(state, bridge, row, target, timing))
        }
        "unix" => {
            let target = Target::Unix(PathBuf::from(rest));
            Keep::Task(server::connect(state, bridge, row, target, timing))
        }
        "ptcp" => {
            let addr = listen_addr(rest);
            Keep::Task(server::listen_tcp(state, addr, bridge, row, timing))
        }
        "punix" => match server::listen_unix(
            state,
            &PathBuf::from(rest),
            bridge,
            server::Service::OpenFlow(row),
        ) {
            Ok(socket) => Keep::Socket(socket),
            Err(e) => {
                last_error = Some(server::error_text(&e));
                Keep::Nothing
            }
        },
        _ => {
            let error = format!("{}: unsupported kind of controller", conf.target);
            vlog::warn!(MODULE, "{bridge}: {error}");
            last_error = Some(error);
            Keep::Nothing
        }
    };
    Controller {
        conf: conf.clone(),
        connections: 0,
        started: Instant::now(),
        connected_at: None,
        left_at: None,
        last_error,
        limits: Default::default(),
        _keep: keep,
    }
}

/// Whoever may write the database must not have us connect to sockets, or replace files, anywhere: `unix:` must be
/// below the run-time directory, `punix:` in it and start with the bridge's name, as ovs-vswitchd has it.
fn refusal(target: &str, bridge: &str, run: &Path) -> Option<String> {
    let (kind, path) = target.split_once(':')?;
    let path = Path::new(path);
    let below = || path.starts_with(run) && !path.components().any(|c| c.as_os_str() == "..");
    let name = || path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    let run_shown = run.display();
    match kind {
        "unix" if path.components().count() > 1 && !below() => Some(format!(
            "a socket outside of {run_shown}/ (unix:{run_shown}/{bridge}.mgmt is always there)"
        )),
        "punix" if path.parent() != Some(run) || !name().starts_with(&format!("{bridge}.")) => {
            Some(format!(
                "it could overwrite a file; only punix:{run_shown}/{bridge}.* may be used"
            ))
        }
        _ => None,
    }
}

/// `HOST[:PORT]`, IPv6 in brackets; the port defaults to 6653.
fn host_port(rest: &str) -> String {
    let bare = rest.rsplit_once(']').map_or(rest, |(_, tail)| tail);
    if bare.contains(':') { rest.to_string() } else { format!("{rest}:6653") }
}

/// `[PORT][:HOST]`.
fn listen_addr(rest: &str) -> String {
    let (port, host) = rest.split_once(':').unwrap_or((rest, "0.0.0.0"));
    let port = if port.is_empty() { "6653" } else { port };
    format!("{host}:{port}")
}

impl State {
    fn controller(&mut self, bridge: &str, target: &str) -> Option<&mut Controller> {
        self.status_dirty = true;
        self.bridges.get_mut(bridge)?.controllers.get_mut(target)
    }

    /// Is the controller of the row to get no asynchronous messages unless it asks?
    pub fn is_silent(&self, bridge: &str, target: &str) -> bool {
        let row = self.bridges.get(bridge).and_then(|b| b.controllers.get(target));
        row.is_some_and(|c| !c.conf.async_messages)
    }

    /// A connection is up and a version agreed.
    pub fn controller_joined(&mut self, bridge: &str, target: &str) {
        if let Some(c) = self.controller(bridge, target) {
            c.connections += 1;
            c.connected_at = Some(Instant::now());
            vlog::info!("rconn", "{bridge}<->{target}: connected");
        }
        self.run_fail_mode();
    }

    /// A connection that was up ended.
    pub fn controller_left(&mut self, bridge: &str, target: &str) {
        if let Some(c) = self.controller(bridge, target) {
            c.connections = c.connections.saturating_sub(1);
            c.left_at = Some(Instant::now());
        }
    }

    /// Says why a connection ends.
    pub fn controller_ended(&mut self, bridge: &str, target: &str, name: &str, why: End) {
        let error = match why {
            End::Closed => {
                vlog::info!("rconn", "{name}: connection closed by peer");
                "End of file"
            }
            End::Silent => {
                vlog::err!("rconn", "{name}: no response to inactivity probe, disconnecting");
                "Connection timed out"
            }
            End::Protocol => "Protocol error",
            End::Ours => return,
        };
        if let Some(c) = self.controller(bridge, target).filter(|c| c.active()) {
            c.last_error = Some(error.to_string());
        }
    }

    /// An attempt to connect failed.
    pub fn controller_failed(&mut self, bridge: &str, target: &str, error: &str) {
        if let Some(c) = self.controller(bridge, target) {
            c.last_error = Some(error.to_string());
        }
    }

    /// Fail-mode standalone: when all controllers have been away for three probe intervals, the
    /// bridge forgets its flows and forwards on its own, whatever flows come, until one is back.
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
                let now = self.now_ns();
                let _ = self.ofproto.flush_flows(id, now);
            }
        }
        self.flush_changes();
    }
}

/// Is it time for the bridge to do without its controllers?
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_lets_a_burst_and_then_its_rate_pass() {
        let mut limit = Limit::default();
        let passed = |l: &mut Limit, ms: u64| (0..100).filter(|_| l.admit(100, 10, ms)).count();
        assert_eq!(passed(&mut limit, 5), 10);
        assert_eq!(passed(&mut limit, 25), 2);
        assert_eq!(limit.dropped, 188);
        assert_eq!(passed(&mut limit, 100_000), 10, "no more than a burst is saved up");
        assert!((0..1000).all(|_| Limit::default().admit(0, 0, 0)));
    }

    #[test]
    fn targets_have_their_defaults() {
        assert_eq!(host_port("192.0.2.1"), "192.0.2.1:6653");
        assert_eq!(host_port("[::1]:1"), "[::1]:1");
        assert_eq!(host_port("[::1]"), "[::1]:6653");
        assert_eq!(listen_addr(""), "0.0.0.0:6653");
        assert_eq!(listen_addr("1:[::1]"), "[::1]:1");
    }
}
