//! `--user`: the daemon runs as another user, keeps five capabilities and works as before.

mod lab;

use lab::*;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use testkit::{Netns, Switch, SwitchConfig, privileged};

/// A daemon that a script starts with more options, after the directory of sockets and files became
/// NOBODY's.
fn start_as<'a>(ns: &'a Netns, options: &str, script: &std::path::Path) -> Switch<'a> {
    let weftd = env!("CARGO_BIN_EXE_weftd");
    let text =
        format!("#!/bin/sh\nchown -R nobody \"$OVS_RUNDIR\" && exec {weftd} {options} \"$@\"\n");
    fs::write(script, text).unwrap();
    fs::set_permissions(script, fs::Permissions::from_mode(0o755)).unwrap();
    let sw = Switch::start(ns, SwitchConfig::new(script)).unwrap();
    add_bridge(&sw, "br0");
    sw
}

#[test]
fn another_user_serves_veth_and_tap_with_five_capabilities() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let dir = tempfile::tempdir().unwrap();
    for options in ["--user=nobody:nogroup", "--monitor --user=nobody"] {
        let sw = start_as(&ns, options, &dir.path().join("start"));
        let pid = sw.daemon_pid().unwrap();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let field = |name: &str| {
            let line = status.lines().find_map(|l| l.strip_prefix(name)).expect(name);
            line.split_whitespace().map(String::from).collect::<Vec<_>>()
        };
        let nobody = fs::metadata(sw.dir()).unwrap().uid().to_string();
        assert_ne!(nobody, "0");
        assert_eq!(field("Uid:"), vec![nobody.clone(); 4]);
        assert_ne!(field("Gid:")[0], "0");
        // CAP_NET_BIND_SERVICE, _BROADCAST, _ADMIN, _RAW and CAP_IPC_LOCK.
        for set in ["CapEff:", "CapPrm:"] {
            assert_eq!(field(set), ["0000000000007c00"], "{set}");
        }
        for file in ["ovs-vswitchd.pid", "br0.mgmt", "ovs-vswitchd.log"] {
            assert_eq!(
                fs::metadata(sw.dir().join(file)).unwrap().uid().to_string(),
                nobody,
                "{file}"
            );
        }
        let (a, _b) = (host_on(&ns, &sw, 1), host_on(&ns, &sw, 2));
        ping(&a, 2);
        // The bridge's own port is a TAP.
        ns.ip("addr add 10.0.0.9/24 dev br0").unwrap();
        ns.ip("link set br0 up").unwrap();
        ping(&a, 9);
        vsctl(
            &sw,
            "set interface v1 mtu_request=1400 -- add-port br0 tap7 -- set interface tap7 type=internal",
        );
        wait_for("the MTU", || iface(&sw, "v1", "mtu") == "1400");
        assert!(ns.ip("link show tap7").is_ok());
        assert_eq!(iface(&sw, "tap7", "error"), "[]");
        vsctl(&sw, "del-br br0");
        ns.ip("link del v1").unwrap();
        ns.ip("link del v2").unwrap();
        sw.stop_daemon().unwrap();
    }
}

#[test]
fn keys_that_root_alone_may_read_are_read_while_it_may() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    ns.ip("link set lo up").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let keys = dir.path().join("keys");
    fs::create_dir(&keys).unwrap();
    fs::set_permissions(&keys, fs::Permissions::from_mode(0o700)).unwrap();
    for words in ["init", "req+sign sw switch", "req+sign ctl controller"] {
        let mut pki = std::process::Command::new("ovs-pki");
        pki.current_dir(&keys).args(["-u", "-d", "pki", "-l", "pki.log"]);
        assert!(pki.args(words.split(' ')).output().unwrap().status.success(), "{words}");
    }
    let at = keys.display();
    let [own, other] = [("sw", "controller"), ("ctl", "switch")].map(|(name, ca)| {
        format!("-p {at}/{name}-privkey.pem -c {at}/{name}-cert.pem -C {at}/pki/{ca}ca/cacert.pem")
    });
    let sw = start_as(&ns, &format!("--user=nobody {own}"), &dir.path().join("start"));
    vsctl(&sw, "set-controller br0 pssl:6653:127.0.0.1");
    wait_for("ofctl", || {
        let mut ofctl = sw.command("ovs-ofctl");
        ofctl.args(other.split(' ')).args(["--timeout=5", "show", "ssl:127.0.0.1:6653"]);
        ofctl.output().unwrap().status.success()
    });
    let log = fs::read_to_string(sw.dir().join("ovs-vswitchd.log")).unwrap();
    assert!(!log.contains("Permission denied"), "{log}");
}
