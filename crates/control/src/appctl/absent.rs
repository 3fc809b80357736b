//! Commands of ovs-vswitchd whose feature is not here, or whose setting has no meaning here. They
//! print what ovs-vswitchd prints when nothing is configured; what would change something is
//! refused.

use super::{Command, command};

/// `answer!(text)`: prints the text whatever the arguments are.
macro_rules! answer {
    ($text:expr) => {
        |_, _| Ok(String::from($text))
    };
}

/// `refuse!(text)`: an error whatever the arguments are.
macro_rules! refuse {
    ($error:expr) => {
        |_, _| Err(String::from($error))
    };
}

const NO_FLOWS: &str =
    "ovs-vswitchd: datapath flows follow from OpenFlow only (Operation not supported)";
const NO_PORTS: &str = "ovs-vswitchd: ports come from the database only (Operation not supported)";

/// Commands of what is not here: each says so.
pub const COMMANDS: &[Command] = &[
    command("dpctl/add-dp", "dp [iface...]", 1, usize::MAX, refuse!(NO_PORTS)),
    command("dpctl/add-flow", "[dp] flow actions", 2, 3, refuse!(NO_FLOWS)),
    command("dpctl/add-flows", "[dp] file", 1, 2, refuse!(NO_FLOWS)),
    command("dpctl/add-if", "dp iface...", 2, usize::MAX, refuse!(NO_PORTS)),
    command("dpctl/cache-get-size", "[dp]", 0, 1, |s, args| {
        super::dpctl::check_opened(s, args, "Opening")?;
        Ok(format!("{}:\n", super::dpctl::name(s)))
    }),
    command(
        "dpctl/cache-set-size",
        "dp cache <size>",
        3,
        3,
        refuse!("ovs-vswitchd: Setting caches not supported (Operation not supported)"),
    ),
    command("dpctl/del-dp", "dp", 1, 1, refuse!(NO_PORTS)),
    command("dpctl/del-flow", "[dp] flow", 1, 2, refuse!(NO_FLOWS)),
    command("dpctl/del-if", "dp iface...", 2, usize::MAX, refuse!(NO_PORTS)),
    command("dpctl/mod-flow", "[dp] flow actions", 2, 3, refuse!(NO_FLOWS)),
    command("dpctl/mod-flows", "[dp] file", 1, 2, refuse!(NO_FLOWS)),
    command("dpctl/set-if", "dp iface...", 2, usize::MAX, refuse!(NO_PORTS)),
    command("dpif-netlink/dispatch-mode", "", 0, 0, refuse!("there is no kernel datapath here")),
    // How flows are dumped inside of ovs-vswitchd: nothing of it is seen outside.
    command(
        "upcall/disable-ufid",
        "",
        0,
        0,
        answer!("Datapath dumping tersely using UFID disabled\n"),
    ),
    command(
        "upcall/enable-ufid",
        "",
        0,
        0,
        answer!("Datapath dumping tersely using UFID enabled for supported datapaths\n"),
    ),
];
