//! Controllers of the database: connecting, listening, and what is written back about them.

use crate::address::Address;
use crate::config::ControllerConf;
use crate::of::Kind;
use crate::of::connect::{self, Target};
use crate::of::controller::{Controller, Keep, is_active, times};
use crate::of::io::error_text;
use crate::of::timing::Timing;
use crate::state::{Shared, State};
use crate::tls::Identity;
use crate::vlog;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

const MODULE: &str = "connmgr";
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
                c.reconfigure(conf);
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

/// Connects to controllers with these keys from now on. If the keys cannot be used, the status of
/// controllers over TLS says so.
pub fn set_ssl(state: &Shared, s: &State, row: Option<&Identity>) {
    if !s.of.tls.set_row(row) {
        return;
    }
    let (state, tls) = (state.clone(), s.of.tls.clone());
    tokio::task::spawn_local(async move {
        let Err(error) = tls.check().await else { return };
        let mut s = state.borrow_mut();
        let bridges = s.bridges.values_mut();
        let all = bridges.flat_map(|b| b.controllers.values_mut());
        for controller in all.filter(|c| is_tls(&c.conf.target)) {
            controller.last_error = Some(error_text(&error));
        }
        s.status_dirty = true;
    });
}

fn is_tls(target: &str) -> bool {
    target.starts_with("ssl:") || target.starts_with("pssl:")
}

/// True if the connection can stay, with limits and times changed while it lives. As with
/// ovs-vswitchd, a connection outlives its row if another row has the same target.
fn stays(old: &ControllerConf, new: &ControllerConf) -> bool {
    let live = |c: &ControllerConf| ControllerConf {
        uuid: Default::default(),
        max_backoff: Duration::ZERO,
        inactivity_probe: Duration::ZERO,
        async_messages: true,
        rate_limit: 0,
        burst_limit: 0,
        queue_size: 0,
        out_of_band: false,
        local: None,
        ..c.clone()
    };
    live(old) == live(new)
}

fn start(state: &Shared, bridge: &str, conf: &ControllerConf) -> Controller {
    let (times, timing) = Timing::new(times(conf));
    let (kind, rest) = conf.target.split_once(':').unwrap_or((conf.target.as_str(), ""));
    let row =
        Kind::Row { target: conf.target.clone(), active: is_active(conf), primary: conf.primary };
    let address = |place| Address { place, dscp: conf.dscp };
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
            let target = Target::Tcp(address(host_port(rest)));
            Keep::Task(connect::connect(state, bridge, row, target, timing))
        }
        "ssl" => {
            let target = Target::Tls(address(host_port(rest)));
            Keep::Task(connect::connect(state, bridge, row, target, timing))
        }
        "unix" => {
            let target = Target::Unix(PathBuf::from(rest));
            Keep::Task(connect::connect(state, bridge, row, target, timing))
        }
        "ptcp" => {
            let addr = address(listen_addr(rest));
            Keep::Task(connect::listen_tcp(state, addr, bridge, row, timing))
        }
        "pssl" => {
            let addr = address(listen_addr(rest));
            Keep::Task(connect::listen_tls(state, addr, bridge, row, timing))
        }
        "punix" => match connect::listen_unix(
            state,
            &PathBuf::from(rest),
            bridge,
            connect::Service::OpenFlow(row),
        ) {
            Ok(socket) => Keep::Socket(socket),
            Err(e) => {
                last_error = Some(error_text(&e));
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
    Controller::new(conf, (times, keep), last_error)
}

/// A client that may write the database must not have us connect to sockets, or replace files,
/// anywhere: `unix:` must be below the run-time directory, `punix:` in it and start with the
/// bridge's name, as ovs-vswitchd has it.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_have_their_defaults() {
        assert_eq!(host_port("192.0.2.1"), "192.0.2.1:6653");
        assert_eq!(host_port("[::1]:1"), "[::1]:1");
        assert_eq!(host_port("[::1]"), "[::1]:6653");
        assert_eq!(listen_addr(""), "0.0.0.0:6653");
        assert_eq!(listen_addr("1:[::1]"), "[::1]:1");
    }
}
