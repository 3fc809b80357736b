//! `autoattach/...`, in ovs-vswitchd's words. As there, a bridge that is named makes no difference.

use super::{Command, command};

/// Commands about LLDP and auto-attach.
pub const COMMANDS: &[Command] = &[
    command("autoattach/show-isid", "[bridge]", 0, 1, |s, _| Ok(s.oam.lldp.show_isids())),
    command("autoattach/statistics", "[bridge]", 0, 1, |s, _| Ok(s.oam.lldp.show_statistics())),
    command("autoattach/status", "[bridge]", 0, 1, |s, _| Ok(s.oam.lldp.show_status())),
];
