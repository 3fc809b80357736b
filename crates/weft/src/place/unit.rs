//! What weftd's unit does around a restart, so that the next one begins with the flows of the last.

use super::handover::{Running, get_ready, hold, release};
use super::record::Folder;
use super::systemctl;
use crate::dirs::Dirs;
use anyhow::Result;

/// The flows of a switch that is being restarted.
const RESTART: Folder = Folder("/run/weft/restart");

/// When the unit asks.
#[derive(Clone, Copy, clap::ValueEnum)]
pub enum Moment {
    /// Before the daemon is ended.
    Stopping,
    /// Before the daemon is started.
    Starting,
    /// After the daemon was started.
    Started,
}

/// What has to be done then.
pub fn at(dirs: &Dirs, moment: Moment) -> Result<()> {
    match moment {
        Moment::Stopping if is_restart()? => {
            get_ready(dirs);
            if let Some(running) = Running::look(dirs, &RESTART)? {
                RESTART.store(&running)?;
            }
        }
        Moment::Stopping => RESTART.remove(),
        Moment::Starting if RESTART.holds() => hold(dirs)?,
        Moment::Starting => {}
        Moment::Started => {
            if let Some(running) = RESTART.load::<Running>()? {
                running.restore_flows(dirs);
                release(dirs)?;
                RESTART.remove();
            }
        }
    }
    Ok(())
}

/// True if the unit stops in order to be started again, which the job that stops it says.
fn is_restart() -> Result<bool> {
    let jobs = systemctl(&["list-jobs", "--no-legend", "--plain", "ovs-vswitchd.service"])?;
    Ok(jobs.split_whitespace().any(|word| word == "restart"))
}
