//! Controllers of the database: connecting, listening, and what is written back about them.

use crate::config::{ControllerConf, FailMode};
use crate::of::server::{self, Target, Task, Timing, UnixSocket};
use crate::state::{Shared, State};
use crate::vlog;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const MODULE: &str = "connmgr";

/// A controller row at work.
pub struct Controller {
    conf: ControllerConf,
    /// Connected, with a version agreed?
    pub connected: bool,
    /// When `connected` last changed.
    pub since: Instant,
    /// What went wrong last.
    pub last_error: Option<String>,
    _keep: Keep,
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
        let kept = old.remove(&conf.target).filter(|c| c.conf == *conf);
        let controller = kept.unwrap_or_else(|| start(state, bridge, conf));
        new.insert(conf.target.clone(), controller);
    }
    let mut s = state.borrow_mut();
    let gone: Vec<String> = old.into_keys().collect();
    s.conns.retain(|_, c| {
        c.bridge != bridge || !matches!(&c.kind, crate::of::Kind::Controller(t) if gone.contains(t))
    });
    if let Some(b) = s.bridges.get_mut(bridge) {
        b.controllers = new;
    }
}

fn start(state: &Shared, bridge: &str, conf: &ControllerConf) -> Controller {
    let timing = Timing {
        max_backoff: conf.max_backoff.max(Duration::from_millis(100)),
        probe: conf.inactivity_probe,
    };
    let (kind, rest) = conf.target.split_once(':').unwrap_or((conf.target.as_str(), ""));
    let mut last_error = None;
    let keep = match kind {
        "tcp" => {
            let target = Target::Tcp(host_port(rest));
            Keep::Task(server::connect(state, bridge, &conf.target, target, timing))
        }
        "unix" => {
            let target = Target::Unix(PathBuf::from(rest));
            Keep::Task(server::connect(state, bridge, &conf.target, target, timing))
        }
        "ptcp" => Keep::Task(server::listen_tcp(state, listen_addr(rest), bridge)),
        "punix" => match server::listen_unix(
            state,
            &PathBuf::from(rest),
            bridge,
            server::Service::OpenFlow,
        ) {
            Ok(socket) => Keep::Socket(socket),
            Err(e) => {
                last_error = Some(e.to_string());
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
        connected: false,
        since: Instant::now(),
        last_error,
        _keep: keep,
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

    /// The connection is up and a version agreed.
    pub fn controller_joined(&mut self, bridge: &str, target: &str) {
        if let Some(c) = self.controller(bridge, target) {
            (c.connected, c.since, c.last_error) = (true, Instant::now(), None);
            vlog::info!("rconn", "{bridge}<->{target}: connected");
        }
    }

    /// The connection ended.
    pub fn controller_left(&mut self, bridge: &str, target: &str) {
        if let Some(c) = self.controller(bridge, target) {
            (c.connected, c.since) = (false, Instant::now());
            vlog::info!("rconn", "{bridge}<->{target}: connection closed by peer");
        }
    }

    /// An attempt to connect failed.
    pub fn controller_failed(&mut self, bridge: &str, target: &str, error: &str) {
        if let Some(c) = self.controller(bridge, target) {
            c.last_error = Some(error.to_string());
        }
    }

    /// Fail-mode standalone falls back to NORMAL when no controller has been there for three probe
    /// intervals, as ovs-vswitchd does; here only where no controller left any flow.
    pub fn run_fail_mode(&mut self) {
        for bridge in self.bridges.values_mut() {
            let standalone = bridge.conf.fail_mode == FailMode::Standalone;
            let active: Vec<&Controller> = bridge
                .controllers
                .values()
                .filter(|c| c.conf.target.starts_with("tcp:") || c.conf.target.starts_with("unix:"))
                .collect();
            let limit = |c: &Controller| 3 * c.conf.inactivity_probe.max(Duration::from_secs(1));
            let lost = active.iter().all(|c| !c.connected && c.since.elapsed() > limit(c));
            let open = standalone && !active.is_empty() && lost;
            if open && self.ofproto.n_flows(bridge.id) == Ok(0) {
                let now = datapath::now_ms() * 1_000_000;
                let _ = self.ofproto.install_default_flow(bridge.id, now);
            }
        }
    }
}
