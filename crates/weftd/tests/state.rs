//! `weft/state`: the tree says what the stock tools say, part by part, and its sums are right.

mod lab;

use lab::*;
use serde_json::Value;
use testkit::{Netns, Switch, privileged};

fn state(sw: &Switch, paths: &str) -> Value {
    let text = appctl(sw, &format!("weft/state {paths}"));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

fn number(v: &Value, pointer: &str) -> u64 {
    v.pointer(pointer).and_then(Value::as_u64).unwrap_or_else(|| panic!("no {pointer} in {v:#}"))
}

#[test]
fn the_tree_says_what_the_tools_say() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    let hosts = [host_on(&ns, &sw, 1), host_on(&ns, &sw, 2)];
    ping(&hosts[0], 2);
    vsctl(&sw, "set Open_vSwitch . other_config:max-idle=60000");
    let socket = sw.dir().join("vhu");
    let guest = format!("type=dpdkvhostuserclient options:vhost-server-path={}", socket.display());
    vsctl(&sw, &format!("add-port br0 vhu -- set interface vhu {guest}"));
    let tunnel = "type=vxlan options:remote_ip=192.0.2.7 options:key=5";
    vsctl(&sw, &format!("add-port br0 vx -- set interface vx {tunnel}"));
    // A packet that the rules drop, for the drops and for their sums.
    ofctl(&sw, "add-flow br0 priority=9,icmp,in_port=v1,actions=drop");
    let _ = hosts[0].exec(&["ping", "-c", "3", "-i", "0.2", "-W", "1", "10.0.0.2"]);
    wait_for("a drop", || coverage(&sw, "datapath_drop_policy") >= 3);

    let all = state(&sw, "");
    let p = |name: &str| number(&all, &format!("/switch/packets/{name}"));
    assert!(p("received") > 0 && p("dropped") >= 3, "{:#}", all["switch"]);
    assert_eq!(all["switch"]["other_config"]["max-idle"], "60000");
    let dropped: u64 =
        all["drops"].as_object().unwrap().values().map(|d| number(d, "/packets")).sum();
    assert_eq!(dropped, p("dropped"));
    assert!(
        all["drops"]
            .as_object()
            .unwrap()
            .values()
            .all(|d| d["help"].as_str().unwrap().ends_with('.'))
    );
    assert_eq!(all["ports"]["v1"]["bridge"], "br0");
    assert_eq!(number(&all, "/ports/v1/ofport").to_string(), iface(&sw, "v1", "ofport"));
    assert_eq!(all["ports"]["v1"]["link"]["up"], true);
    assert!(number(&all, "/ports/v1/drops/policy") >= 3);
    assert_eq!(number(&all, "/bridges/br0/flows"), 2);
    assert!(number(&all, "/bridges/br0/macs/current") >= 2);
    assert_eq!(all["guests"]["vhu"]["connected"], false);
    assert_eq!(all["tunnels"]["vx"]["options"]["key"], "5");
    assert!(number(&all, "/memory/packet_pools/0/buffers") > 0);
    let pmd = all["cores"].as_object().unwrap().values().find(|c| c["polls"] == true).unwrap();
    assert!(number(pmd, "/cycles/idle") > 0 && pmd["queues"].is_array(), "{pmd:#}");
    assert!(all.get("megaflows").is_none(), "only when asked for");

    let hottest = state(&sw, "megaflows");
    let drop = hottest["hottest"].as_array().unwrap().iter().find(|f| f["actions"] == "drop");
    let drop = drop.unwrap_or_else(|| panic!("{hottest:#}"));
    assert_eq!((&drop["in_port"], number(drop, "/packets") >= 2), (&"v1".into(), true), "{drop:#}");
}

#[test]
fn a_path_is_followed_or_said_to_be_wrong() {
    if !privileged() {
        return;
    }
    let (_turn, ns) = (turn(), Netns::new().unwrap());
    let sw = start_with_bridge(&ns);
    assert_eq!(state(&sw, "ports/br0/ofport"), 65534);
    assert!(state(&sw, "drops/policy/help").as_str().unwrap().contains("drop"));
    let two = state(&sw, "switch/ovs_version ports/br0/bridge");
    assert_eq!(two, serde_json::json!({"switch/ovs_version": "3.1.0", "ports/br0/bridge": "br0"}));
    let wrong = |path: &str| sw.appctl(&["weft/state", path]).unwrap_err().to_string();
    assert!(wrong("ports/x").contains("there is no x; there is br0"), "{}", wrong("ports/x"));
    assert!(wrong("nonesuch").contains("there is switch, cores, "), "{}", wrong("nonesuch"));
    assert!(
        wrong("ports/br0/ofport/1").contains("nothing is below"),
        "{}",
        wrong("ports/br0/ofport/1")
    );
}
