//! `other_config:userspace-tso-enable`.

use crate::config::Desired;
use crate::state::State;
use crate::vlog;

/// Makes ports that are opened from now on take segments of TCP that are left to the switch. That
/// stays so until the daemon ends, as with ovs-vswitchd.
pub fn apply(s: &mut State, desired: &Desired) {
    let wanted = desired.other_config.get("userspace-tso-enable").is_some_and(|v| v == "true");
    if wanted && !s.devices.userspace_tso {
        s.devices.userspace_tso = true;
        vlog::info!("userspace_tso", "Userspace TCP Segmentation Offloading support enabled");
    }
}
