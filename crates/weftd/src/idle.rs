//! A main loop without a packet path: it talks to the database and to ovs-appctl and can have
//! nothing but LOCAL ports. It stands in until `control::run` is there.

use anyhow::Context;
use control::config::{Change, Desired, InterfaceStatus, OvsdbClient, Status, Target};
use control::daemon::{Args, Daemon};
use control::unixctl::{self, Registry, Reply, Server};
use control::vlog;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// OpenFlow's number of the LOCAL port.
const OFPP_LOCAL: i64 = 65534;

/// What unixctl commands work on.
#[derive(Default)]
struct State {
    /// Replies owed by `exit`; not empty once the daemon is to end.
    exit: Vec<Reply>,
}

/// Runs the daemon until it is told to end. The process has started its last fork; threads may
/// start here.
pub fn run(args: &Args, daemon: Daemon) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(args, daemon))
}

async fn serve(args: &Args, mut daemon: Daemon) -> anyhow::Result<()> {
    let target = Target::parse(&args.database, &args.dirs.run)?;
    let mut server = match args.dirs.unixctl(args.unixctl.as_deref()) {
        Some(path) => Some(Server::bind(&path).with_context(|| path.display().to_string())?),
        None => None,
    };
    let registry = commands();
    let mut state = State::default();
    let mut client = OvsdbClient::new(target, &args.database);
    let mut ends = Ends::new()?;
    while state.exit.is_empty() {
        tokio::select! {
            request = next_request(&mut server) => registry.dispatch(&mut state, request),
            change = client.next() => {
                if let Change::Config(desired) = change {
                    client.write(&acknowledge(&desired));
                }
                if client.can_write() {
                    daemon.ready();
                }
            }
            name = ends.next() => {
                vlog::warn!("fatal_signal", "terminating with signal {name}");
                break;
            }
        }
    }
    state.exit.into_iter().for_each(|reply| reply.send(Ok(String::new())));
    if let Some(server) = server {
        server.finish().await;
    }
    Ok(())
}

/// Signals that end the daemon.
struct Ends([(&'static str, Signal); 3]);

impl Ends {
    fn new() -> std::io::Result<Self> {
        Ok(Self([
            ("15 (Terminated)", signal(SignalKind::terminate())?),
            ("2 (Interrupt)", signal(SignalKind::interrupt())?),
            ("1 (Hangup)", signal(SignalKind::hangup())?),
        ]))
    }

    /// The name of the next signal.
    async fn next(&mut self) -> &'static str {
        let [(term, a), (int, b), (hup, c)] = &mut self.0;
        tokio::select! {
            _ = a.recv() => term,
            _ = b.recv() => int,
            _ = c.recv() => hup,
        }
    }
}

async fn next_request(server: &mut Option<Server>) -> unixctl::Request {
    if let Some(server) = server
        && let Some(request) = server.next().await
    {
        return request;
    }
    std::future::pending().await
}

fn commands() -> Registry<State> {
    let mut registry = Registry::default();
    unixctl::register_basics(&mut registry);
    vlog::register(&mut registry);
    registry.add_later("exit", "[--cleanup]", 0..=1, |state: &mut State, _, reply| {
        state.exit.push(reply);
    });
    registry
}

/// Acknowledges a configuration of which only LOCAL ports can be had so far.
fn acknowledge(desired: &Desired) -> Status {
    let mut status = Status::default();
    status.switch.cur_cfg = Some(desired.next_cfg);
    status.switch.dpdk_initialized = Some(false);
    status.switch.dpdk_version = Some("none".into());
    status.switch.iface_types =
        Some(["internal", "patch", "system", "tap"].map(String::from).into());
    status.switch.datapath_types = Some(["netdev", "system"].map(String::from).into());
    for bridge in &desired.bridges {
        for interface in bridge.interfaces() {
            let report = if interface.name == bridge.name {
                InterfaceStatus { ofport: Some(OFPP_LOCAL), ..InterfaceStatus::default() }
            } else {
                InterfaceStatus::failed(format!("{}: no packet path yet", interface.name))
            };
            status.interfaces.insert(interface.uuid, report);
        }
    }
    for conflict in &desired.conflicts {
        status.interfaces.insert(conflict.interface, InterfaceStatus::failed(&conflict.error));
    }
    status
}
