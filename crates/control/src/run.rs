//! The daemon's main loop, on the control thread. Threads of their own talk to the database and ask
//! the kernel about devices and queues, which may take long; what they bring is taken over here.

use crate::appctl::Run;
use crate::config::{Change, Database, Desired, OvsdbClient, Target};
use crate::daemon::{Args, Daemon};
use crate::report::Reporter;
use crate::state::{Shared, State};
use crate::tls::Tls;
use crate::unixctl::{self, Registry, Server};
use crate::{appctl, dpdk_log, housekeeping, reconcile, standby, vlog};
use anyhow::{Context, Result};
use std::cell::RefCell;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::LocalSet;

const MODULE: &str = "vswitchd";
/// How long a thread that waited for the kernel or read a long request is kept for the next one:
/// it costs a thread's memory and shows in whatever counts threads.
const IDLE_THREAD_TIME_MAX: Duration = Duration::from_millis(100);

/// Runs until the command `exit`, or a signal.
pub fn run(args: &Args, daemon: Daemon, tls: &Tls) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_keep_alive(IDLE_THREAD_TIME_MAX)
        .build()?;
    let local = LocalSet::new();
    local.block_on(&runtime, main_loop(args, daemon, tls))
}

/// What commands work on: the switch, once the database has said how it is to be made.
#[derive(Default)]
struct Control {
    state: Option<Shared>,
    /// Replies owed by `exit`; not empty once the daemon is to end.
    exit: Vec<unixctl::Reply>,
    /// `exit --cleanup`: also what a restarted daemon would take over goes.
    cleanup: bool,
}

impl Control {
    /// Runs a command on the switch, if it is made.
    fn with(
        &self,
        run: impl FnOnce(&mut State) -> Result<String, String>,
    ) -> Result<String, String> {
        let state = self.state.as_ref().ok_or("the database has not been read yet")?;
        run(&mut state.borrow_mut())
    }

    /// Waits until a command has put the clock forward.
    async fn warped(&self) {
        match &self.state {
            Some(state) => {
                let warped = state.borrow().of.warped.clone();
                warped.notified().await
            }
            None => std::future::pending().await,
        }
    }

    /// Reports to the database what changed since `desired` was applied.
    fn report(&self, desired: Option<&Rc<Desired>>, to: &mut Reporter, db: &mut Database) {
        if let (Some(state), Some(want)) = (&self.state, desired) {
            to.write(&mut state.borrow_mut(), want, db, false);
        }
    }
}

/// A configuration that is being applied, in turns: commands are answered in between.
#[derive(Default)]
struct Applying(Option<Pin<Box<dyn Future<Output = Rc<Desired>>>>>);

impl Applying {
    fn begin(&mut self, state: &Shared, new: Rc<Desired>, rundir: &Path) {
        let (state, rundir) = (state.clone(), rundir.to_owned());
        self.0 = Some(Box::pin(async move {
            reconcile::apply(&state, &new, &rundir).await;
            crate::state::wait_for_changes(&state).await;
            new
        }));
    }

    fn is_over(&self) -> bool {
        self.0.is_none()
    }

    /// The configuration, once packets meet nothing from before it. Cancel-safe.
    async fn done(&mut self) -> Rc<Desired> {
        let Some(applying) = &mut self.0 else { return std::future::pending().await };
        let new = applying.await;
        self.0 = None;
        new
    }
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

/// Where ports are dummies nothing has to be fast: what is cached shows what decisions looked at.
fn show_own_masks(state: &Shared) {
    let dp = &mut state.borrow_mut().dp;
    let mut settings = dp.settings().clone();
    settings.debug.own_masks = true;
    dp.set_settings(settings);
}

async fn main_loop(args: &Args, mut daemon: Daemon, tls: &Tls) -> Result<()> {
    if !args.dummy_numa.is_empty() {
        datapath::assume_cores(args.dummy_numa.clone());
    }
    let mut pools = None;
    if args.standby {
        pools = standby::wait(args, &mut daemon, tls).await?;
        if pools.is_none() {
            return Ok(());
        }
    }
    let mut db = database(args, tls)?;
    let mut server = listen(args)?;
    let registry = commands(args.dummy.is_some());
    let mut control = Control::default();
    let mut desired: Option<Rc<Desired>> = None;
    let mut applying = Applying::default();
    let mut report = Reporter::default();
    let mut ends = Ends::new()?;
    let mut retry = tokio::time::interval(Duration::from_millis(100));
    retry.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut tried = Instant::now();
    while control.exit.is_empty() {
        tokio::select! {
            change = db.next(), if applying.is_over() && !report.owes() => match change {
                Change::Config(mut new) => {
                    new.put_dummies(args.dummy);
                    let state = match control.state.take() {
                        Some(state) => state,
                        None => start_or_again(&new, &daemon, (args, tls), pools.take())?,
                    };
                    applying.begin(&state, Rc::from(new), &args.dirs.run);
                    control.state = Some(state);
                }
                // Another daemon has the lock, or the server is away: what is there stays.
                Change::LockLost | Change::Written => {}
                Change::Empty => daemon.ready(),
            },
            new = applying.done() => {
                if let Some(state) = &control.state {
                    report.acknowledge(&new);
                    report.write(&mut state.borrow_mut(), &new, &mut db, true);
                }
                daemon.leave_terminal();
                if desired.replace(new).is_none() {
                    log_dpdk(desired.as_deref());
                }
                daemon.ready();
            }
            request = next_request(&mut server) => {
                registry.dispatch(&mut control, request);
                let applied = desired.as_ref().filter(|_| applying.is_over());
                control.report(applied, &mut report, &mut db);
            }
            () = control.warped(), if applying.is_over() => {
                control.report(desired.as_ref(), &mut report, &mut db);
            }
            () = tokio::task::yield_now(), if report.is_under_way() && applying.is_over() => {
                control.state.iter().for_each(|s| report.go_on(&mut s.borrow_mut(), &mut db));
            }
            _ = retry.tick() => {
                if let (Some(state), Some(want)) = (&control.state, &desired)
                    && applying.is_over()
                {
                    if tried.elapsed() > Duration::from_secs(1) {
                        tried = Instant::now();
                        if reconcile::take_returned(state) {
                            applying.begin(state, want.clone(), &args.dirs.run);
                        }
                    }
                    control.report(desired.as_ref(), &mut report, &mut db);
                }
            }
            name = ends.next() => {
                vlog::warn!("fatal_signal", "terminating with signal {name}");
                break;
            }
        }
    }
    vlog::dbg!(MODULE, "exiting");
    if let Some(state) = control.state.take() {
        stop(&state, control.cleanup);
        let closing = state.borrow().closing.clone();
        closing.finished().await;
    }
    control.exit.into_iter().for_each(|reply| reply.send(Ok(String::new())));
    if let Some(server) = server {
        server.finish().await;
    }
    Ok(())
}

/// The connection to the database.
fn database(args: &Args, tls: &Tls) -> Result<Database> {
    let target = Target::parse(&args.database, &args.dirs.run)?;
    let client = OvsdbClient::new(target, &args.database).with_tls(tls.without_row());
    Database::start(client).context("the thread of the database")
}

/// The socket of unixctl, unless the arguments want none.
fn listen(args: &Args) -> Result<Option<Server>> {
    let path = args.dirs.unixctl(args.unixctl.as_deref());
    path.map(|p| Server::bind(&p).with_context(|| p.display().to_string())).transpose()
}

async fn next_request(server: &mut Option<Server>) -> unixctl::Request {
    if let Some(server) = server
        && let Some(request) = server.next().await
    {
        return request;
    }
    std::future::pending().await
}

/// `dummy`: those for dummy ports too.
fn commands(dummy: bool) -> Registry<Control> {
    let mut registry = Registry::default();
    unixctl::register_basics(&mut registry);
    vlog::register(&mut registry);
    registry.add_later("exit", "[--cleanup]", 0..=1, |c: &mut Control, args, reply| {
        c.cleanup |= args.first().is_some_and(|a| a == "--cleanup");
        c.exit.push(reply);
    });
    let dummies = if dummy { appctl::dummy::COMMANDS } else { &[] };
    let all = appctl::COMMANDS
        .iter()
        .chain(appctl::bfd::COMMANDS)
        .chain(appctl::cfm::COMMANDS)
        .chain(appctl::lldp::COMMANDS)
        .chain(appctl::bond_commands::COMMANDS);
    let all = all
        .chain(appctl::stp_commands::COMMANDS)
        .chain(appctl::conntrack::COMMANDS)
        .chain(appctl::fragments::COMMANDS);
    let all = all.chain(appctl::absent::COMMANDS).chain(dummies);
    for command in all {
        let count = command.min..=command.max;
        registry.add_later(command.name, command.usage, count, |c: &mut Control, args, reply| {
            let Some(state) = &c.state else {
                return reply.send(Err("the database has not been read yet".into()));
            };
            if let Err(error) = command.check_options(args) {
                return reply.send(Err(error));
            }
            let mut s = state.borrow_mut();
            match command.run {
                Run::Now(run) => reply.send(run(&mut s, args)),
                Run::Later(begin) => match begin(&mut s, args) {
                    Ok(job) => drop(tokio::task::spawn_local(job(state.clone(), reply))),
                    Err(error) => reply.send(Err(error)),
                },
            }
        });
    }
    use appctl::capture::{ARGS_MAX, USAGE, begin};
    registry.add_later("weft/trace", USAGE, 1..=ARGS_MAX, |c: &mut Control, args, reply| {
        let client = reply.client();
        reply.send(c.with(|s| begin(s, args, client)));
    });
    registry
}

/// Starts the packet side. If that fails it may be because another process took hugepages that were
/// free a moment ago, and DPDK cannot be started twice: the program starts again without hugepages.
fn start_or_again(
    desired: &Desired,
    daemon: &Daemon,
    (args, tls): (&Args, &Tls),
    prepared: Option<Arc<dpdk::Pools>>,
) -> Result<Shared> {
    let pools = prepared.map_or_else(|| start_dpdk(desired, daemon.is_second()), Ok);
    let started = pools.and_then(|pools| start(desired, pools));
    let started = started.inspect(|state| state.borrow_mut().of.tls = tls.clone());
    started.inspect(|state| follow_kernel(state, args)).map_err(|error| {
        if daemon.is_second() {
            return error;
        }
        vlog::warn!("dpdk", "{error:#}; starting again without hugepages");
        error.context(daemon.start_again())
    })
}

/// True if the database asks for DPDK.
fn asks_for_dpdk(desired: &Desired) -> bool {
    let init = desired.other_config.get("dpdk-init").map(String::as_str);
    matches!(init, Some("true" | "try"))
}

/// Starts DPDK as the database wants it.
fn start_dpdk(desired: &Desired, no_huge: bool) -> Result<Arc<dpdk::Pools>> {
    let mut config = dpdk::EalConfig::from_other_config(&desired.other_config);
    config.no_huge = no_huge;
    config.log = Some(dpdk_log::take);
    if asks_for_dpdk(desired) {
        dpdk_log::begin();
    }
    let eal = dpdk::Eal::init(&config).context("starting DPDK")?;
    Ok(Arc::new(dpdk::Pools::new(eal).context("packet buffers")?))
}

/// Bytes of memory that the machine has.
fn machine_memory() -> u64 {
    // SAFETY: plain numbers, for which all-zero is valid.
    let mut info: libc::sysinfo = unsafe { std::mem::zeroed() };
    // SAFETY: writes the structure.
    match unsafe { libc::sysinfo(&mut info) } {
        0 => info.totalram.saturating_mul(info.mem_unit.into()),
        _ => u64::MAX,
    }
}

/// Starts the packet side.
fn start(desired: &Desired, pools: Arc<dpdk::Pools>) -> Result<Shared> {
    let domain = sync::Domain::new();
    let mut ofproto = ofproto::Switch::new(domain.writer());
    ofproto.set_flow_memory(machine_memory() / 2);
    let mut config = datapath::Config::new(pools.clone(), domain, ofproto.pipeline());
    config.register_thread = register_thread;
    config.warn = |text| vlog::warn!("dpif_netdev", "{text}");
    let dp = datapath::Datapath::new(config).context("the kernel-port thread")?;
    let state = Rc::new(RefCell::new(State::new(ofproto, dp, devices(pools, desired))));
    tokio::task::spawn_local(dpdk_log::run());
    tokio::task::spawn_local(housekeeping::run(state.clone()));
    tokio::task::spawn_local(housekeeping::run_each_second(state.clone()));
    tokio::task::spawn_local(crate::links::run_each_second(state.clone()));
    tokio::task::spawn_local(crate::device_changer::run(state.clone()));
    tokio::task::spawn_local(crate::qos::run(state.clone()));
    tokio::task::spawn_local(crate::qos::counters::run(state.clone()));
    tokio::task::spawn_local(housekeeping::run_oam(state.clone()));
    tokio::task::spawn_local(housekeeping::run_bonds(state.clone()));
    tokio::task::spawn_local(crate::export::run(state.clone()));
    Ok(state)
}

/// What the log says of DPDK once the daemon has left the terminal: scripts and ovs-vswitchd's own
/// test suite take unexpected lines on standard error for a failure. Who asks for DPDK in the
/// database may look for ovs-vswitchd's lines.
fn log_dpdk(desired: Option<&Desired>) {
    let Some(eal) = dpdk::Eal::get() else { return };
    if desired.is_some_and(asks_for_dpdk) {
        vlog::info!("dpdk", "Using {}", dpdk::dpdk_version());
        vlog::info!("dpdk", "DPDK Enabled - initializing...");
        vlog::info!("dpdk", "EAL ARGS: {}", eal.arguments());
        if let Some(wished) = desired.and_then(|d| d.other_config.get("shared-mempool-config")) {
            crate::mempools::log(wished);
        }
        vlog::info!("dpdk", "DPDK Enabled - initialized");
    }
    let pages = if eal.hugepages() { "hugepages" } else { "no hugepages" };
    vlog::info!("dpdk", "{} ready, {pages}", dpdk::dpdk_version());
    if !eal.hugepages() {
        vlog::warn!("dpdk", "no hugepages are free: running without them, slower");
    }
}

/// Makes the switch follow the kernel's links and routes (unless the command line says otherwise,
/// for tunnels, too); with dummies nothing has to be fast.
fn follow_kernel(state: &Shared, args: &Args) {
    if args.dummy.is_some() {
        show_own_masks(state);
    }
    tokio::task::spawn_local(crate::links::run(state.clone()));
    state.borrow_mut().underlay.system_routes = !args.disable_system_route;
    tokio::task::spawn_local(crate::underlay::run(state.clone()));
}

fn devices(pools: Arc<dpdk::Pools>, desired: &Desired) -> port_dpdk::Devices {
    let text = |key: &str| desired.other_config.get(key).map_or("", String::as_str);
    let dir = crate::daemon::Dirs::from_env().run.join(text("vhost-sock-dir"));
    let mut devices = port_dpdk::Devices::new(pools, dir);
    devices.vhost_iommu = text("vhost-iommu-support") == "true";
    devices.vhost_postcopy = text("vhost-postcopy-support") == "true";
    devices
}

/// A worker's first act. The registration lasts as long as the thread.
fn register_thread(worker: datapath::WorkerId) {
    appctl::dummy::panic_if_asked();
    if let datapath::WorkerId::Pmd(core) = worker {
        vhost_user::take_seat(core);
    }
    if let Some(guard) = dpdk::Eal::get().and_then(|eal| eal.register_thread().ok()) {
        std::mem::forget(guard);
    }
}

/// Closes everything in order, or begins to. TAPs stay for the next daemon unless `cleanup`.
fn stop(state: &Shared, cleanup: bool) {
    let mut s = state.borrow_mut();
    crate::export::stop(&mut s);
    s.conns.clear();
    if cleanup {
        let names: Vec<String> = s.bridges.keys().cloned().collect();
        let leaving: Vec<_> =
            names.iter().flat_map(|name| reconcile::remove_bridge(&mut s, name)).collect();
        s.flush_changes();
        s.close_ports(leaving);
    }
    s.bridges.clear();
    let nos: Vec<_> = s.dp.ports().collect();
    let ports = s.dp.del_ports(nos);
    s.closing.close_and_keep(ports);
    s.dp.shutdown();
}
