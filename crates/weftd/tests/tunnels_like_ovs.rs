//! What the stock tools print about tunnels with Weft and with ovs-vswitchd behind them.

use testkit::{Netns, Switch, SwitchConfig, privileged, veth};

fn words(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

/// An underlay with addresses and neighbours, and a bridge with tunnels and an inert port.
fn prepare<'a>(ns: &'a Netns, config: SwitchConfig) -> Switch<'a> {
    veth((ns, "nic0"), (ns, "far0")).unwrap();
    for dev in ["nic0", "far0"] {
        ns.ipv6_off(dev).unwrap();
    }
    let sw = Switch::start(ns, config).unwrap();
    let vsctl = |text: &str| drop(sw.vsctl(&words(text)).unwrap());
    let bridge = |name: &str, mac: &str| {
        vsctl(&format!(
            "add-br {name} -- set bridge {name} datapath_type=netdev other-config:hwaddr={mac}"
        ))
    };
    bridge("br-phy", "aa:55:00:00:00:01");
    vsctl("add-port br-phy nic0");
    bridge("br-int", "aa:55:00:00:00:02");
    vsctl("add-port br-int t1 -- set interface t1 type=internal");
    let vxlan = [
        ("vx1", "remote_ip=10.1.1.2 key=42"),
        ("vx2", "remote_ip=flow key=flow csum=true dst_port=4790"),
        ("vx3", "remote_ip=fd00::2 local_ip=fd00::1 key=7 dst_port=4791"),
        ("vx4", "remote_ip=10.1.1.99 in_key=flow out_key=5 tos=inherit ttl=inherit"),
        ("vx5", "remote_ip=99.1.1.1 ttl=9 tos=8 df_default=false"),
    ];
    let erspan = [
        ("er1", "remote_ip=10.1.1.2 key=42 erspan_ver=1 erspan_idx=12345"),
        ("er2", "remote_ip=flow key=flow erspan_ver=flow"),
        (
            "er3",
            "remote_ip=10.1.1.254 key=1023 erspan_ver=2 erspan_dir=1 erspan_hwid=3f tos=inherit",
        ),
        ("er4", "remote_ip=10.1.1.254 key=1024 erspan_ver=2"),
        ("er5", "remote_ip=10.1.1.254 key=9"),
        ("er6", "remote_ip=fd00::2 key=flow erspan_ver=2 erspan_dir=flow erspan_hwid=flow"),
    ];
    let gtpu = [
        ("gt1", "remote_ip=10.1.1.2 key=4294967295 tos=inherit ttl=inherit"),
        ("gt2", "remote_ip=flow key=flow dst_port=2153 packet_type=legacy_l3"),
        ("gt3", "remote_ip=fd00::2 key=7"),
    ];
    let gpe = [
        ("gp1", "remote_ip=10.1.1.2 key=43 exts=gpe"),
        ("gp2", "remote_ip=10.1.1.2 key=43 exts=gpe packet_type=legacy_l3"),
        ("gp3", "remote_ip=fd00::2 key=44 exts=gpe packet_type=ptap"),
    ];
    let gre = [
        ("gr1", "remote_ip=10.1.1.2 key=42"),
        ("gr2", "remote_ip=10.1.1.2 key=42 packet_type=legacy_l3"),
        ("gr3", "remote_ip=10.1.1.254 packet_type=ptap csum=true"),
    ];
    let vxlan = vxlan.map(|(name, options)| (name, "vxlan", options));
    let erspan = erspan.map(|(name, options)| (name, "erspan", options));
    let gtpu = gtpu.map(|(name, options)| (name, "gtpu", options));
    let gpe = gpe.map(|(name, options)| (name, "vxlan", options));
    let gre = gre.map(|(name, options)| (name, "gre", options));
    let all = vxlan.into_iter().chain(erspan).chain(gtpu).chain(gpe).chain(gre);
    for (name, kind, options) in all {
        let options: String =
            options.split(' ').map(|o| format!(" options:{o}")).collect::<Vec<_>>().concat();
        vsctl(&format!("add-port br-int {name} -- set interface {name} type={kind}{options}"));
    }
    // Without detection of duplicates, the address is the switch's at once.
    for address in ["10.1.1.1/24", "fd00::1/64 nodad"] {
        ns.ip(&format!("addr add dev br-phy {address}")).unwrap();
    }
    ns.ip("link set br-phy up").unwrap();
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while sw.appctl(&["ovs/route/lookup", "fd00::2"]).is_err() {
        assert!(std::time::Instant::now() < end, "the kernel's routes are not seen");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    for (ip, mac) in [("10.1.1.2", 2), ("fd00::2", 3), ("10.1.1.254", 4)] {
        let mac = format!("00:11:22:33:44:0{mac}");
        sw.appctl(&["tnl/neigh/set", "br-phy", ip, &mac]).unwrap();
    }
    sw
}

/// What a command prints, or the error it prints.
fn say(sw: &Switch, tool: &str, line: &str) -> String {
    let args: Vec<&str> = line.split_whitespace().collect();
    let result = match tool {
        "appctl" => sw.appctl(&args),
        // OVS's flows of tunnels list fields that are zero.
        "trace" => sw.appctl(&[&["ofproto/trace"], &args[..]].concat()).map(|text| {
            let what = |l: &&str| l.contains(">>") || l.starts_with("Datapath actions");
            text.lines().filter(what).collect::<Vec<_>>().join("\n")
        }),
        "ofctl" => sw.ofctl(&args),
        _ => sw.vsctl(&args),
    };
    match result {
        Ok(text) => normal(&text),
        Err(e) => {
            let first = e.lines().next().unwrap_or("").to_string();
            format!("error: {}", first.rsplit(": ").next().unwrap_or(""))
        }
    }
}

/// Datapath port numbers are the daemon's choice: where one is printed stands N.
fn normal(text: &str) -> String {
    let mut out: Vec<String> = text.lines().map(numbers_out).collect();
    if text.starts_with("Listening") || text.starts_with("IP ") || text.starts_with("port ") {
        out.sort();
    }
    out.join("\n")
}

fn numbers_out(line: &str) -> String {
    let mut line = line.to_string();
    let marks = [
        "tnl_port(",
        "out_port(",
        "tnl_pop(",
        "dp port=",
        "_sys_4789 (",
        "_sys_4790 (",
        "_sys_4791 (",
        "erspan_sys (",
        "gre_sys (",
        "genev_sys_6081 (",
        "gtpu_sys_2152 (",
        "gtpu_sys_2153 (",
        "port ",
    ];
    for mark in marks {
        let mut from = 0;
        while let Some(at) = line[from..].find(mark).map(|i| from + i + mark.len()) {
            let n = line[at..].bytes().take_while(u8::is_ascii_digit).count();
            line.replace_range(at..at + n, "N");
            from = at;
        }
    }
    // A plain output behind the last operation, or the only one.
    let plain = line.trim_end_matches(|c: char| c.is_ascii_digit());
    if plain.len() < line.len() && (plain.ends_with("),") || plain.ends_with("actions: ")) {
        line = format!("{plain}N");
    }
    if line.contains("set(tunnel(") {
        // Outputs to tunnels, which stand alone behind that.
        let number = |item: &str| !item.is_empty() && item.bytes().all(|b| b.is_ascii_digit());
        let items = line.split(',').map(|item| if number(item) { "N" } else { item });
        line = items.collect::<Vec<_>>().join(",");
    }
    // And inside a clone.
    (0..9).fold(line, |l, n| l.replace(&format!("),{n})"), "),N)"))
}

const FROM_T1: &str = "in_port=t1,tcp,eth_src=00:00:00:00:00:01,eth_dst=00:00:00:00:00:02,\
                       nw_src=1.1.1.1,nw_dst=2.2.2.2,nw_ttl=33";
const TO_VTEP: &str = "nw_ttl=64,udp_src=1000,in_port=nic0,eth_src=00:11:22:33:44:02";

/// Commands in order, for the tool named first.
fn script() -> Vec<String> {
    let mut all: Vec<String> = [
        "appctl ovs/route/lookup 10.1.1.2",
        "appctl ovs/route/lookup 11.1.1.2",
        "appctl ovs/route/lookup nonsense",
        "appctl ovs/route/add 11.0.0.0/8 br-phy 10.1.1.254",
        "appctl ovs/route/add 12.0.0.0/8 br-phy",
        "appctl ovs/route/add 13.0.0.0/8 nosuch",
        "appctl ovs/route/add nonsense br-phy",
        "appctl ovs/route/add 14.0.0.0/8 br-phy 10.1.1.254 pkt_mark=5",
        "appctl ovs/route/lookup 11.1.1.2",
        "appctl ovs/route/lookup 14.1.1.2",
        "appctl ovs/route/lookup 14.1.1.2 pkt_mark=5",
        "appctl ovs/route/del 12.0.0.0/8",
        "appctl ovs/route/del 10.1.1.0/24",
        "appctl tnl/neigh/show",
        "appctl tnl/arp/show",
        "appctl tnl/neigh/set br-phy nonsense 00:11:22:33:44:55",
        "appctl tnl/arp/set br-phy 10.1.1.9 nonsense",
        "appctl tnl/neigh/aging",
        "appctl tnl/neigh/aging 100",
        "appctl tnl/neigh/aging 0",
        "appctl tnl/neigh/aging",
        "appctl tnl/ports/show",
        "appctl tnl/egress_port_range",
        "appctl tnl/egress_port_range 50000 40000",
        "appctl tnl/egress_port_range",
        "appctl ofproto/list-tunnels",
        "vsctl get interface vx1 ofport error status mtu link_state admin_state",
        "vsctl get interface vx2 ofport error status mtu link_state admin_state",
    ]
    .map(String::from)
    .into();
    let trace = |flow: &str| format!("appctl ofproto/trace {flow}");
    for actions in
        ["vx1", "vx3", "vx1,mod_dl_src:00:00:00:00:00:09,vx1", "vx1,vx3,vx1", "vx4", "vx5"]
    {
        all.push("ofctl del-flows br-int".into());
        all.push(format!("ofctl add-flow br-int priority=9,in_port=t1,actions={actions}"));
        for tos in ["nw_tos=0", "nw_tos=8,nw_ecn=1", "nw_ecn=3"] {
            all.push(trace(&format!("br-int {FROM_T1},{tos}")));
        }
    }
    all.push("appctl tnl/neigh/set br-phy 10.1.1.99 00:11:22:33:44:05".into());
    all.push("ofctl add-flow br-int priority=11,in_port=t1,actions=vx4".into());
    all.push(trace(&format!("br-int {FROM_T1},nw_tos=8,nw_ecn=1")));
    all.push("ofctl del-flows br-phy".into());
    all.push("ofctl add-flow br-phy in_port=nic0,actions=LOCAL".into());
    for rest in [
        "udp,eth_dst=aa:55:00:00:00:01,nw_src=10.1.1.2,nw_dst=10.1.1.1,udp_dst=4789",
        "udp,eth_dst=aa:55:00:00:00:01,nw_src=10.1.1.2,nw_dst=10.1.1.1,udp_dst=4790",
        "udp,eth_dst=aa:55:00:00:00:09,nw_src=10.1.1.2,nw_dst=10.1.1.1,udp_dst=4789",
        "udp,eth_dst=aa:55:00:00:00:01,nw_src=10.1.1.2,nw_dst=10.1.1.7,udp_dst=4789",
        "udp6,eth_dst=aa:55:00:00:00:01,ipv6_src=fd00::2,ipv6_dst=fd00::1,udp_dst=4791",
    ] {
        let (protocol, fields) = rest.split_once(',').unwrap();
        all.push(trace(&format!("br-phy {protocol},{TO_VTEP},{fields}")));
    }
    all.extend(others_script());
    all.extend(types_script());
    all.extend(kernel_script());
    for options in [
        "key=3",
        "remote_ip=nonsense",
        "remote_ip=nonsense options:nonsense=5",
        "remote_ip=nonsense options:tos=nonsense",
        "remote_ip=10.1.1.2 options:key=42",
        "remote_ip=10.1.1.7 options:local_ip=fd00::1",
        "remote_ip=10.1.1.12 options:local_ip=flow",
        "remote_ip=224.0.0.1",
        "remote_ip=10.1.1.15 options:dst_port=4791 options:exts=gbp",
        "remote_ip=10.1.1.17 options:packet_type=nonsense",
        "remote_ip=10.1.1.18 options:tos=inherit options:egress_pkt_mark=5",
    ] {
        all.push(format!("vsctl -- --may-exist add-port br-int e1 -- set interface e1 type=vxlan options:{options}"));
        all.push("vsctl get interface e1 error".into());
        all.push("vsctl del-port e1".into());
    }
    all
}

/// What a kernel's datapath would be asked: tunnels' packets are left to it, and then no more.
fn kernel_script() -> Vec<String> {
    let switch = |on: bool| format!("appctl dpif/set-dp-features br-int tnl_push_pop {on}");
    let mut all = vec![switch(false), "appctl dpif/set-dp-features br-int tnl_push_pop".into()];
    let geneve = "type=geneve options:remote_ip=10.1.1.2 options:key=9 options:csum=true";
    all.push(format!("vsctl add-port br-int ge1 -- set interface ge1 {geneve}"));
    let options =
        "{class=0xffff,type=0,len=4}->tun_metadata0,{class=0x1,type=2,len=0}->tun_metadata1";
    all.push(format!("ofctl add-tlv-map br-int {options}"));
    for actions in [
        "vx1",
        "vx1,vx1,vx3",
        "vx4,mod_dl_src:00:00:00:00:00:09,vx5",
        "load:5->NXM_NX_PKT_MARK[],vx1",
        "output(port=vx1,max_len=100)",
        "set_field:10.1.1.2->tun_dst,set_field:9.9.9.9->tun_src,set_tunnel:5,vx2",
        "vx2",
        "ge1",
        "set_field:0xa->tun_metadata0,ge1",
        "er1",
        "gt1",
        "gr1",
        "gr2",
    ] {
        all.push("ofctl del-flows br-int".into());
        all.push(format!("ofctl add-flow br-int priority=9,in_port=t1,actions={actions}"));
        all.push(format!("trace br-int {FROM_T1},nw_tos=8,nw_ecn=1"));
    }
    all.push(switch(true));
    all.push(format!("trace br-int {FROM_T1},nw_tos=8,nw_ecn=1"));
    all.extend(["ofctl del-flows br-int", "ofctl del-tlv-map br-int"].map(String::from));
    all.push("vsctl del-port ge1".into());
    all
}

/// What goes into ERSPAN and GTP-U, what comes out, and what they are not configured as.
fn others_script() -> Vec<String> {
    let trace = |flow: &str| format!("trace {flow}");
    let mut all = vec!["ofctl add-flow br-phy in_port=LOCAL,actions=nic0".into()];
    for actions in [
        "er1",
        "er3",
        "er4",
        "er5",
        "set_field:10.1.1.2->tun_dst,set_tunnel:5,set_field:1->tun_erspan_ver,set_field:0x54321->tun_erspan_idx,er2",
        "set_field:10.1.1.2->tun_dst,set_field:2->tun_erspan_ver,set_field:0x21->tun_erspan_hwid,er2",
        "set_field:10.1.1.2->tun_dst,set_field:3->tun_erspan_ver,er2",
        "set_field:10.1.1.2->tun_dst,er2",
        "set_tunnel:7,set_field:1->tun_erspan_dir,load:0x5->NXOXM_ET_ERSPAN_HWID[0..2],er6",
        "gt1",
        "set_field:10.1.1.2->tun_dst,set_tunnel:5,gt2",
        "gt3",
        "set_field:1->tun_gtpu_flags,gt3",
    ] {
        all.push("ofctl del-flows br-int".into());
        all.push(format!("ofctl add-flow br-int in_port=t1,actions={actions}"));
        all.push("ofctl --no-stats dump-flows br-int".into());
        all.push(trace(&format!("br-int {FROM_T1},nw_tos=8,nw_ecn=1")));
    }
    all.push("ofctl del-flows br-int".into());
    for flow in [
        "tun_erspan_ver=1,tun_erspan_idx=0x7/0xf,actions=t1",
        "tun_erspan_ver=2,tun_erspan_dir=1,tun_erspan_hwid=0x5/0x7,actions=t1",
        "priority=1,actions=move:NXOXM_ET_ERSPAN_IDX[]->NXM_NX_REG0[0..19],drop",
    ] {
        all.push(format!("ofctl add-flow br-int {flow}"));
    }
    all.push("ofctl --no-stats dump-flows br-int".into());
    all.push("ofctl --no-stats dump-flows br-int tun_erspan_ver=1".into());
    for fields in ["tun_erspan_ver=1,tun_erspan_idx=0x17", "tun_erspan_ver=2,tun_erspan_hwid=0x3d"]
    {
        all.push(trace(&format!(
            "br-int in_port=er2,tun_src=10.1.1.9,tun_dst=10.1.1.1,tun_id=3,{fields}"
        )));
    }
    for flow in [
        "priority=9,tun_gtpu_flags=0x30,tun_gtpu_msgtype=255,actions=t1",
        "priority=8,tun_gtpu_flags=0x32/0x32,actions=t1",
        "priority=7,tun_gtpu_msgtype=1,actions=move:NXOXM_ET_GTPU_MSGTYPE[]->NXM_NX_REG0[0..7],t1",
    ] {
        all.push(format!("ofctl add-flow br-int {flow}"));
    }
    all.push("ofctl --no-stats dump-flows br-int".into());
    for rest in [
        "udp,nw_src=10.1.1.2,nw_dst=10.1.1.1,udp_dst=2153",
        "udp6,ipv6_src=fd00::2,ipv6_dst=fd00::1,udp_dst=2152",
        "udp6,ipv6_src=fd00::2,ipv6_dst=fd00::1,udp_dst=2154",
    ] {
        let (protocol, fields) = rest.split_once(',').unwrap();
        let to = "in_port=nic0,eth_src=00:11:22:33:44:02,eth_dst=aa:55:00:00:00:01,nw_ttl=64";
        all.push(trace(&format!("br-phy {protocol},{to},{fields}")));
    }
    for options in ["packet_type=legacy_l2", "packet_type=nonsense"] {
        all.push(format!("vsctl -- --may-exist add-port br-int e1 -- set interface e1 type=gtpu options:remote_ip=10.1.1.77 options:{options}"));
        all.push("vsctl get interface e1 error".into());
        all.push("vsctl del-port e1".into());
    }
    for rest in ["ip,nw_src=10.1.1.2,nw_dst=10.1.1.1", "ipv6,ipv6_src=fd00::2,ipv6_dst=fd00::1"] {
        let (protocol, fields) = rest.split_once(',').unwrap();
        let to = "in_port=nic0,eth_src=00:11:22:33:44:02,eth_dst=aa:55:00:00:00:01,nw_ttl=64";
        all.push(trace(&format!("br-phy {protocol},nw_proto=47,{to},{fields}")));
    }
    for options in [
        "erspan_ver=3",
        "erspan_ver=1 options:erspan_idx=0x100000",
        "erspan_ver=2 options:erspan_dir=2",
        "erspan_ver=2 options:erspan_hwid=40",
        "erspan_ver=2 options:erspan_hwid=0x3f",
    ] {
        all.push(format!("vsctl -- --may-exist add-port br-int e1 -- set interface e1 type=erspan options:remote_ip=10.1.1.77 options:{options}"));
        all.push("vsctl get interface e1 error".into());
        all.push("vsctl del-port e1".into());
    }
    all
}

/// What goes into tunnels with and without an Ethernet header, and what they may be configured as.
fn types_script() -> Vec<String> {
    let mut all = vec!["ofctl del-flows br-int".to_string()];
    for actions in [
        "gp1",
        "gp2",
        "gp3",
        "decap(),gp1",
        "decap(),gp2",
        "decap(),gp3",
        "gr1",
        "gr2",
        "gr3",
        "decap(),gr1",
        "decap(),gr2",
        "decap(),gr3",
        "t1,gr2",
        "mod_dl_dst:00:00:00:00:00:09,gr2",
        "dec_ttl,gr2",
    ] {
        all.push(format!("ofctl -OOpenFlow13 add-flow br-int in_port=t1,actions={actions}"));
        all.push(format!("trace br-int {FROM_T1},nw_tos=8,nw_ecn=1"));
        let addresses = "eth_src=00:00:00:00:00:01,eth_dst=00:00:00:00:00:02";
        all.push(format!("trace br-int in_port=t1,ipv6,{addresses},nw_ttl=9"));
    }
    for (port, actions) in [
        ("gr2", "t1"),
        ("gr2", "mod_dl_dst:00:00:00:00:00:09,t1"),
        ("gr3", "t1"),
        ("gr3", "encap(ethernet),t1"),
        ("gr3", "encap(ethernet),set_field:00:00:00:00:00:09->eth_dst,t1"),
    ] {
        all.push("ofctl del-flows br-int".into());
        all.push(format!("ofctl -OOpenFlow13 add-flow br-int in_port={port},actions={actions}"));
        let outer = "tun_src=10.1.1.2,tun_dst=10.1.1.1,tun_id=42";
        let flow = format!("in_port={port},packet_type=(1,0x800),nw_dst=2.2.2.2,{outer}");
        all.push(format!("trace br-int {flow}"));
    }
    for options in ["legacy_l2", "legacy_l3", "ptap", "nonsense"] {
        for kind in [
            "gre",
            "ip6gre",
            "geneve",
            "vxlan",
            "vxlan options:exts=gpe",
            "erspan options:erspan_ver=1",
        ] {
            let to = if kind == "ip6gre" { "fd00::77" } else { "10.1.1.77" };
            all.push(format!("vsctl -- --may-exist add-port br-int e1 -- set interface e1 options:remote_ip={to} options:packet_type={options} type={kind}"));
            all.push("vsctl get interface e1 error".into());
            all.push("appctl tnl/ports/show".into());
            all.push("vsctl del-port e1".into());
        }
    }
    all
}

#[test]
fn the_tools_say_the_same_about_tunnels() {
    if !privileged() {
        return;
    }
    let (a, b) = (Netns::new().unwrap(), Netns::new().unwrap());
    let weft = prepare(&a, SwitchConfig::new(env!("CARGO_BIN_EXE_weftd")));
    let ovs = prepare(&b, SwitchConfig::oracle());
    let mut differences = Vec::new();
    for line in script() {
        let (tool, args) = line.split_once(' ').unwrap();
        let (mine, theirs) = (say(&weft, tool, args), say(&ovs, tool, args));
        if mine != theirs {
            let only = |a: &str, b: &str, mark: &str| -> String {
                let other: Vec<&str> = b.lines().collect();
                a.lines().filter(|l| !other.contains(l)).map(|l| format!("{mark} {l}\n")).collect()
            };
            let (weft, ovs) = (only(&mine, &theirs, "weft"), only(&theirs, &mine, "ovs "));
            let order = format!("weft:\n{mine}\novs:\n{theirs}\n");
            let what = if weft.is_empty() && ovs.is_empty() { order } else { weft + &ovs };
            differences.push(format!("$ {line}\n{what}"));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// The bridge that tunnels leave through counts their packets as they are there.
#[test]
fn the_outer_header_counts_where_the_packet_has_it() {
    if !privileged() {
        return;
    }
    let packet = format!(
        "50540000000a50540000000908004500003200000000404066570a0000010a000002{}",
        "00".repeat(30)
    );
    let counted = |config: SwitchConfig, tunnels: &[&str]| -> Vec<String> {
        let ns = Netns::new().unwrap();
        let sw = prepare(&ns, config);
        sw.ofctl(&["del-flows", "br-phy"]).unwrap();
        sw.ofctl(&["add-flow", "br-phy", "ip,in_port=LOCAL,actions=1"]).unwrap();
        sw.ofctl(&["add-flow", "br-phy", "udp6,in_port=LOCAL,actions=drop"]).unwrap();
        let send = |to: &str| {
            let what = format!("packet={packet} actions={to}");
            sw.ofctl(&["packet-out", "br-int", &what]).unwrap();
            let flows = sw.ofctl(&["--no-names", "dump-flows", "br-phy"]).unwrap();
            let mut flows: Vec<String> = flows
                .lines()
                .filter(|l| l.contains("n_bytes"))
                .map(|l| {
                    l.split(", ").filter(|w| w.starts_with("n_")).collect::<Vec<_>>().join(" ")
                })
                .collect();
            flows.sort();
            format!("{to}: {}", flows.join("; "))
        };
        tunnels.iter().map(|to| send(to)).collect()
    };
    let weft = || SwitchConfig::new(env!("CARGO_BIN_EXE_weftd"));
    let tunnels = ["vx1", "vx3", "gr1", "gp1", "er1", "vx1,t1"];
    assert_eq!(counted(weft(), &tunnels), counted(SwitchConfig::oracle(), &tunnels));
    // OVS counts the Ethernet header that such tunnels leave out, and what the first of two tunnels
    // adds with the packet of the second, too.
    assert_eq!(
        counted(weft(), &["gr2", "vx1,t1,gr1"]),
        [
            "gr2: n_packets=0 n_bytes=0; n_packets=1 n_bytes=92",
            "vx1,t1,gr1: n_packets=0 n_bytes=0; n_packets=3 n_bytes=312"
        ]
    );
}
