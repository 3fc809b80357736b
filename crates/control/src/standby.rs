//! `--standby`: everything that takes time and nothing of the switch that runs, while that one
//! still forwards. Devices, bridges, the database's lock, the pidfile and the control socket are
//! taken when the next start with the same arguments asks this process to be the daemon.

use crate::config::{Change, Desired, OvsdbClient, Target};
use crate::daemon::{Args, Daemon, Standby};
use crate::tls::Tls;
use crate::vlog;
use anyhow::{Context, Result, anyhow};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How long a process stands by: as long as a handover may wait for a switch to end, and more.
const WAIT_TIME_MAX: Duration = Duration::from_secs(60);
/// How long the database may take to say how DPDK is to be started.
const READ_TIME_MAX: Duration = Duration::from_secs(5);

/// Prepares and waits; DPDK's packet buffers, or None when nothing was asked of it.
pub async fn wait(args: &Args, daemon: &mut Daemon, tls: &Tls) -> Result<Option<Arc<dpdk::Pools>>> {
    let target = Target::parse(&args.database, &args.dirs.run)?;
    let mut db = OvsdbClient::reader(target, &args.database).with_tls(tls.without_row());
    let first = tokio::time::timeout(READ_TIME_MAX, configuration(&mut db)).await;
    let first = first.context("standing by: the database does not answer")?;
    let config = dpdk::EalConfig::from_other_config(&first);
    dpdk::Eal::can_start_beside(&config)
        .map_err(|why| anyhow!("not standing by while another switch runs: {why}"))?;
    let eal = dpdk::Eal::init(&config).context("starting DPDK")?;
    let pools = Arc::new(dpdk::Pools::new(eal).context("packet buffers")?);
    let standby = Standby::listen(&args.dirs)?;
    vlog::info!("vswitchd", "standing by until this daemon is started");
    daemon.let_parent_go();
    let end = tokio::time::sleep(WAIT_TIME_MAX);
    tokio::pin!(end);
    loop {
        tokio::select! {
            asked = standby.asked(args) => match asked {
                Ok(waiting) => {
                    daemon.take_place(args, waiting)?;
                    return Ok(Some(pools));
                }
                Err(why) => {
                    vlog::warn!("vswitchd", "standing by no more: {why}");
                    return Ok(None);
                }
            },
            other = configuration(&mut db) => if other != first {
                vlog::info!("vswitchd", "standing by no more: DPDK's options have changed");
                return Ok(None);
            },
            () = &mut end => {
                vlog::info!("vswitchd", "standing by no more: it was not started");
                return Ok(None);
            }
        }
    }
}

/// What the database says of DPDK, when it says something new of anything.
async fn configuration(db: &mut OvsdbClient) -> BTreeMap<String, String> {
    loop {
        if let Change::Config(desired) = db.next().await {
            let Desired { mut other_config, .. } = *desired;
            other_config.retain(|key, _| key.starts_with("dpdk-"));
            return other_config;
        }
    }
}
