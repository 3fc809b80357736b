//! Debian's OVN on top, unchanged: two hypervisors, one or both of them Weft, and what a cloud asks
//! of them; ovn-controller installs its flows without an error.

mod cloud;
#[path = "../lab/mod.rs"]
mod lab;
mod rig;
mod services;

use std::path::Path;
use testkit::{SwitchConfig, available, privileged};

fn usable() -> bool {
    let there = Path::new("/usr/bin/ovn-controller").exists();
    privileged() && available(there, "the packages ovn-central and ovn-host")
}

fn weft() -> SwitchConfig {
    SwitchConfig::new(env!("CARGO_BIN_EXE_weftd"))
}

#[test]
fn over_geneve_beside_ovs() {
    if usable() {
        let _turn = lab::turn();
        cloud::with("geneve", [weft(), SwitchConfig::oracle()], |cloud| cloud.everything());
    }
}

#[test]
fn over_vxlan_among_ourselves() {
    if usable() {
        let _turn = lab::turn();
        cloud::with("vxlan", [weft(), weft()], |cloud| cloud.everything());
    }
}
