//! What the stock tools print with Weft and with ovs-vswitchd behind them, for the same commands.

use std::process::Command;
use std::time::{Duration, Instant};
use testkit::{Frame, Netns, Probe, Switch, SwitchConfig, privileged, veth};

/// Starts a daemon with a bridge of inert ports.
fn start(ns: &Netns, mut config: SwitchConfig) -> Switch<'_> {
    config.args.push("--enable-dummy".into());
    let sw = Switch::start(ns, config).unwrap();
    let words = "add-br br0 -- set bridge br0 datapath_type=dummy fail_mode=secure \
                 other-config:datapath-id=0000000000000b01 other-config:hwaddr=aa:55:aa:55:00:00 \
                 protocols=OpenFlow10,OpenFlow13,OpenFlow14,OpenFlow15";
    sw.vsctl(&words.split_whitespace().collect::<Vec<_>>()).unwrap();
    for i in 1..4 {
        let words =
            format!("add-port br0 p{i} -- set interface p{i} type=dummy ofport_request={i}");
        sw.vsctl(&words.split_whitespace().collect::<Vec<_>>()).unwrap();
    }
    sw
}

/// Runs a shell line in the switch's directory: what it prints on both outputs, and its status.
fn run(sw: &Switch<'_>, line: &str) -> String {
    let mut c: Command = sw.command("timeout");
    c.args(["20", "sh", "-c", &format!("exec 2>&1; {line}")]).current_dir(sw.dir());
    let out = c.output().unwrap();
    format!("{}status {:?}\n", String::from_utf8_lossy(&out.stdout), out.status.code())
}

/// Takes out what differs from run to run: times, transaction ids, names of directories. Lines are
/// sorted where the order is that of a hash table.
fn normal(text: &str, dir: &str) -> String {
    let mut lines: Vec<String> = text.replace(dir, "DIR").lines().map(strip).collect();
    if !text.contains("OFPT_ERROR") {
        lines.sort();
    }
    lines.join("\n")
}

fn strip(line: &str) -> String {
    // What a tool logs begins with the time.
    let logged = line.split_once("Z|").filter(|(time, _)| time.starts_with("20"));
    let mut line = logged.map_or(line, |(_, rest)| rest).to_string();
    if let Some((port, _)) = line.split_once("(p").and_then(|_| line.split_once(": addr:")) {
        // Inert ports have addresses of the daemon's choice.
        line = format!("{port}: addr:ANY");
    }
    for key in ["duration=", "idle_age=", "xid="] {
        let mut from = 0;
        while let Some(at) = line[from..].find(key).map(|i| from + i + key.len()) {
            let rest = &line[at..];
            let end = rest.find([',', ')', ' ']).unwrap_or(rest.len());
            line.replace_range(at..at + end, "N");
            from = at;
        }
    }
    line
}

#[test]
fn the_tools_print_the_same() {
    if !privileged() {
        return;
    }
    let (a, b) = (Netns::new().unwrap(), Netns::new().unwrap());
    let weft = start(&a, SwitchConfig::new(env!("CARGO_BIN_EXE_weftd")));
    let ovs = start(&b, SwitchConfig::oracle());
    let text = include_str!("data/ofctl.txt");
    let lines: Vec<&str> = text.lines().filter(|l| !l.starts_with('#')).collect();
    let all = |sw: &Switch<'_>| -> Vec<String> {
        let dir = sw.dir().display().to_string();
        lines.iter().map(|line| normal(&run(sw, line), &dir)).collect()
    };
    let (mine, theirs) = std::thread::scope(|s| {
        let mine = s.spawn(|| all(&weft));
        let theirs = all(&ovs);
        (mine.join().unwrap(), theirs)
    });
    let mut differences = Vec::new();
    for (line, (mine, theirs)) in lines.iter().zip(mine.iter().zip(&theirs)) {
        if mine != theirs {
            let only = |a: &str, b: &str, mark: &str| -> String {
                let other: Vec<&str> = b.lines().collect();
                let lines = a.lines().filter(|l| !other.contains(l));
                lines.map(|l| format!("{mark} {l}\n")).collect()
            };
            let (weft, ovs) = (only(mine, theirs, "weft"), only(theirs, mine, "ovs "));
            differences.push(format!("$ {line}\n{weft}{ovs}"));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    let log = weft.log();
    let bad = log.lines().filter(|l| ["|WARN|", "|ERR|", "|EMER|"].iter().any(|w| l.contains(w)));
    let expected = ["hugepages", "reassemble", "name is reserved"];
    let bad: Vec<_> = bad.filter(|l| !expected.iter().any(|w| l.contains(w))).collect();
    assert!(bad.is_empty(), "{bad:#?}");
}

/// Clients of a bridge's socket are asked after a minute of the daemon's clock, which test suites
/// put forward.
#[test]
fn a_client_that_says_nothing_is_asked() {
    if !privileged() {
        return;
    }
    let line = "ovs-ofctl monitor br0 65534 --detach --no-chdir --pidfile=$PWD/m.pid 2>m.log; \
        ovs-appctl time/stop; for ms in 45000 30000 45000 75000; do ovs-appctl time/warp $ms; \
        sleep 0.5; grep -c . m.log; done; cat m.log; kill $(cat m.pid)";
    let (a, b) = (Netns::new().unwrap(), Netns::new().unwrap());
    let weft = start(&a, SwitchConfig::new(env!("CARGO_BIN_EXE_weftd")));
    let mine = run(&weft, line);
    assert_eq!(mine.matches("OFPT_ECHO_REQUEST (xid=0x0): 0 bytes of payload").count(), 2);
    assert_eq!(mine, run(&start(&b, SwitchConfig::oracle()), line));
}

/// OpenFlow messages in the log, and how many flow-mods a connection sent.
#[test]
fn the_log_of_messages_is_the_same() {
    if !privileged() {
        return;
    }
    let packet = "50540000000a50540000000908004500001c000000004011a4cd0a0000010a000002000100020008";
    let lines = [
        "ovs-appctl vlog/set vconn:file:dbg",
        "ovs-ofctl add-flow br0 'cookie=0x12,priority=5,idle_timeout=10,hard_timeout=20,\
             send_flow_rem,check_overlap,tcp,in_port=1,tp_dst=80 \
             actions=mod_dl_src:00:11:22:33:44:55,output:2,controller'",
        "ovs-ofctl -O OpenFlow14 --bundle add-flow br0 'table=3,importance=7,priority=0 \
             actions=write_actions(output:1),goto_table:4'",
        "ovs-ofctl -O OpenFlow13 --bundle --no-names mod-flows br0 'tcp,cookie=0x12/0xff actions=3'",
        "ovs-ofctl -O OpenFlow10 --strict mod-flows br0 'priority=7,udp actions=3'",
        "ovs-ofctl --no-names dump-flows br0 'table=0,out_port=3,tcp'",
        "ovs-ofctl -O OpenFlow13 --no-names dump-flows br0 tcp",
        "ovs-ofctl -O OpenFlow14 --no-names dump-flows br0 table=3",
        "ovs-ofctl -O OpenFlow15 --no-names dump-flows br0 table=3",
        "ovs-ofctl -O OpenFlow13 --no-names dump-aggregate br0",
        "ovs-ofctl get-frags br0; ovs-ofctl set-frags br0 drop",
        "ovs-ofctl -O OpenFlow13 --no-names del-flows br0 out_port=3",
        &format!(
            "ovs-ofctl --no-names packet-out br0 'in_port=1 packet={packet} actions=output:2'"
        ),
        "ovs-ofctl -O OpenFlow13 --no-names add-flow br0 actions=group:77",
        "ovs-ofctl probe br0",
        "ovs-appctl vlog/set vconn:file:info",
        "ovs-ofctl -O OpenFlow14 --bundle del-flows br0",
    ];
    let all = |config: SwitchConfig| -> Vec<String> {
        let ns = Netns::new().unwrap();
        let sw = start(&ns, config);
        lines.iter().for_each(|line| drop(run(&sw, line)));
        // The last connection's end.
        let is_end =
            |line: &&str| line.contains(" flow_mods in the last ") && line.ends_with("(1 deletes)");
        let (mut log, began) = (sw.log(), Instant::now());
        while log.lines().filter(is_end).count() < 2 && began.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(20));
            log = sw.log();
        }
        messages(&log)
    };
    let (mine, theirs) = std::thread::scope(|s| {
        let mine = s.spawn(|| all(SwitchConfig::new(env!("CARGO_BIN_EXE_weftd"))));
        let theirs = all(SwitchConfig::oracle());
        (mine.join().unwrap(), theirs)
    });
    assert!(theirs.len() > 100, "{theirs:#?}");
    for (mine, theirs) in mine.iter().zip(&theirs) {
        assert_eq!(mine, theirs);
    }
    assert_eq!(mine.len(), theirs.len());
}

/// What module `vconn` says, and of flow-mods module `connmgr`, without what differs each time.
/// Replies that have their contents in ovs-vswitchd's log only are left out, and so are checksums.
fn messages(log: &str) -> Vec<String> {
    let (mut out, mut wanted) = (Vec::new(), false);
    for line in log.lines() {
        let rest = line.split_once("|vconn|DBG|").map(|(_, rest)| rest);
        let counted = line.split_once("|connmgr|INFO|").map(|(_, rest)| rest);
        let counted = counted.filter(|rest| rest.contains(" flow_mods in the last "));
        if line.starts_with("20") {
            wanted = rest.is_some() || counted.is_some();
            let others = ["TABLE reply", "TABLE_FEATURES", "FEATURES_REPLY", "PORT_DESC reply"];
            wanted &= !others.iter().any(|what| line.contains(what));
        }
        if wanted {
            let line = rest.or(counted).unwrap_or(line);
            let line = line.split_once(" udp_csum:").map_or(line, |(line, _)| line);
            let (name, rest) = line.split_once("unix#").unwrap_or(("", line));
            let rest = if rest.len() < line.len() {
                rest.trim_start_matches(|c: char| c.is_ascii_digit())
            } else {
                rest
            };
            out.push(strip(&format!("{name}{rest}")).trim_end().to_string());
        }
    }
    out
}

#[test]
fn levels_of_enable_dummy_replace_devices() {
    if !privileged() {
        return;
    }
    for level in ["system", "override"] {
        let ns = Netns::new().unwrap();
        let mut config = SwitchConfig::new(env!("CARGO_BIN_EXE_weftd"));
        config.args.push(format!("--enable-dummy={level}"));
        let sw = Switch::start(&ns, config).unwrap();
        sw.vsctl(&["add-br", "br0", "--", "add-port", "br0", "p1"]).unwrap();
        let shown = sw.appctl(&["dpif/show"]).unwrap();
        assert!(shown.contains("br0 65534/100: (dummy-internal)\n"), "{level}: {shown}");
        assert!(shown.contains("p1 1/1: (dummy)\n"), "{level}: {shown}");
        let device = ns.command("ip").args(["link", "show", "br0"]).output().unwrap();
        assert!(!device.status.success(), "{level}");
    }
}

/// Who asks for a number gets it from one who did not, with the next change; who asked first keeps
/// it.
#[test]
fn requested_port_numbers_are_given_by_the_same_rules() {
    if !privileged() {
        return;
    }
    let numbers = |daemon: SwitchConfig| -> Vec<String> {
        let ns = Netns::new().unwrap();
        let mut config = daemon;
        config.args.push("--enable-dummy".into());
        let sw = Switch::start(&ns, config).unwrap();
        sw.vsctl(&["add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=dummy"]).unwrap();
        let steps = [
            "add-port br0 a -- set interface a type=dummy",
            "add-port br0 b -- set interface b type=dummy ofport_request=1",
            "add-port br0 c -- set interface c type=dummy",
            "add-port br0 d -- set interface d type=dummy ofport_request=1",
            "set interface a ofport_request=9",
            "set interface c ofport_request=9",
            "clear interface a ofport_request",
            "add-port br0 f -- set interface f type=dummy",
        ];
        let step = |line: &&str| {
            sw.vsctl(&line.split(' ').collect::<Vec<_>>()).unwrap();
            let list = sw.vsctl(&["-f", "csv", "--columns=name,ofport", "list", "interface"]);
            let mut lines: Vec<_> = list.unwrap().lines().map(String::from).collect();
            lines.sort();
            format!("{line}: {}", lines.join(" "))
        };
        steps.iter().map(step).collect()
    };
    let mine = numbers(SwitchConfig::new(env!("CARGO_BIN_EXE_weftd")));
    assert_eq!(mine, numbers(SwitchConfig::oracle()));
}

#[test]
fn every_command_of_ovs_is_there() {
    if !privileged() {
        return;
    }
    let (a, b) = (Netns::new().unwrap(), Netns::new().unwrap());
    let weft = start(&a, SwitchConfig::new(env!("CARGO_BIN_EXE_weftd")));
    let ovs = Switch::start(&b, SwitchConfig::oracle()).unwrap();
    let names = |sw: &Switch<'_>| -> Vec<String> {
        let list = sw.appctl(&["list-commands"]).unwrap();
        list.lines().skip(1).filter_map(|l| l.split_whitespace().next().map(Into::into)).collect()
    };
    let mine = names(&weft);
    let missing: Vec<_> = names(&ovs).into_iter().filter(|c| !mine.contains(c)).collect();
    assert_eq!(missing, Vec::<String>::new());
}

#[test]
fn cached_flows_have_names_where_they_are_wanted() {
    if !privileged() {
        return;
    }
    let (net, hosts) = (Netns::new().unwrap(), Netns::new().unwrap());
    let sw = Switch::start(&net, SwitchConfig::new(env!("CARGO_BIN_EXE_weftd"))).unwrap();
    sw.vsctl(&["add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev"]).unwrap();
    let mut probe = Probe::new();
    for i in 1..3 {
        let (port, host) = (format!("p{i}"), format!("h{i}"));
        veth((&net, &port), (&hosts, &host)).unwrap();
        net.ipv6_off(&port).unwrap();
        hosts.ipv6_off(&host).unwrap();
        sw.vsctl(&["add-port", "br0", &port]).unwrap();
        probe.add(&hosts, &host).unwrap();
    }
    sw.ofctl(&["add-flow", "br0", "udp,in_port=p1,actions=output:p2,controller:40"]).unwrap();
    let macs = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    let frame = Frame::udp4(macs, ([10, 0, 0, 1], [10, 0, 0, 2]), (1, 2), b"x").bytes();
    let got = probe.inject("h1", &frame, Duration::from_millis(500)).unwrap();
    assert_eq!(got.keys().collect::<Vec<_>>(), ["h2"]);
    let flow = |args: &[&str]| {
        let text = sw.appctl(args).unwrap();
        text.lines().find(|l| l.contains("userspace")).unwrap_or_default().to_string()
    };
    let punt = "userspace(pid=0,controller(reason=1,dont_send=0,continuation=0,recirc_id=1,\
                rule_cookie=0,controller_id=0,max_len=40))";
    for args in [&["dpctl/dump-flows", "--names"][..], &["dpctl/dump-flows", "-m"]] {
        let line = flow(args);
        assert!(line.contains("in_port(p1)"), "{line}");
        assert!(line.ends_with(&format!("actions:p2,{punt}")), "{line}");
    }
    let line = flow(&["dpctl/dump-flows"]);
    let port = line.split("in_port(").nth(1).and_then(|l| l.split(')').next()).unwrap_or("none");
    assert!(port.parse::<u16>().is_ok(), "{line}");
    assert!(!line.contains("p2"), "{line}");
}

/// The columns that a port's type fills, and the keys in `status` and `statistics`; not the values,
/// which differ.
fn columns(sw: &Switch<'_>, iface: &str) -> Vec<String> {
    let get = |column: &str| sw.vsctl(&["get", "interface", iface, column]).unwrap();
    let keys = |column: &str| -> Vec<String> {
        let text = get(column);
        let pairs = text.trim().trim_matches(['{', '}']).split(", ").filter(|p| !p.is_empty());
        pairs.map(|p| format!("{iface} {column}:{}", p.split('=').next().unwrap_or(""))).collect()
    };
    let mut all = [keys("status"), keys("statistics")].concat();
    for column in ["duplex", "ifindex", "link_speed", "mtu", "mac_in_use", "link_resets"] {
        let is = if get(column).trim() == "[]" { "empty" } else { "set" };
        all.push(format!("{iface} {column} {is}"));
    }
    for column in ["admin_state", "link_state", "error"] {
        all.push(format!("{iface} {column} {}", get(column).trim()));
    }
    all
}

/// What controllers of two versions are sent about a port's link: features, speeds, state.
fn link(sw: &Switch<'_>, iface: &str) -> Vec<String> {
    let mut all = vec![iface.to_string()];
    for version in ["OpenFlow10", "OpenFlow14"] {
        let text = sw.ofctl(&["-O", version, "dump-ports-desc", "br0"]).unwrap();
        let name = format!("({iface}): addr:");
        let port = text.lines().skip_while(|l| !l.contains(&name)).skip(1);
        all.extend(port.take_while(|l| !l.contains("addr:")).map(str::to_string));
    }
    all
}

/// Names of what `memory/show` counts.
fn memory(sw: &Switch<'_>) -> Vec<String> {
    let text = sw.appctl(&["memory/show"]).unwrap();
    let words = text.split(':').map(|w| w.trim_start_matches(|c: char| c.is_ascii_digit()).trim());
    words.filter(|w| !w.is_empty()).map(str::to_string).collect()
}

/// True if every interface has its statistics.
fn counted(sw: &Switch<'_>, names: &[&str]) -> bool {
    let empty = |n: &&str| sw.vsctl(&["get", "interface", n, "statistics"]).unwrap().trim() == "{}";
    !names.iter().any(empty)
}

const KERNEL_PORTS: [&str; 6] = ["br0", "v0", "i0", "t0", "pa", "pb"];

fn with_kernel_ports(ns: &Netns, config: SwitchConfig) -> Switch<'_> {
    let sw = Switch::start(ns, config).unwrap();
    ns.ip("link add v0 type veth peer name v1").unwrap();
    ns.ip("link set v0 up").unwrap();
    ns.ip("link set v1 up").unwrap();
    let words = "add-br br0 -- set bridge br0 datapath_type=netdev -- add-port br0 v0 \
                 -- add-port br0 i0 -- set interface i0 type=internal \
                 -- add-port br0 t0 -- set interface t0 type=tap \
                 -- add-port br0 pa -- set interface pa type=patch options:peer=pb \
                 -- add-port br0 pb -- set interface pb type=patch options:peer=pa";
    sw.vsctl(&words.split_whitespace().collect::<Vec<_>>()).unwrap();
    sw
}

#[test]
fn interfaces_have_the_same_columns() {
    if !privileged() {
        return;
    }
    let (a, b) = (Netns::new().unwrap(), Netns::new().unwrap());
    let weft = with_kernel_ports(&a, SwitchConfig::new(env!("CARGO_BIN_EXE_weftd")));
    let ovs = with_kernel_ports(&b, SwitchConfig::oracle());
    let null = "add-port br0 n0 -- set interface n0 type=dpdk options:dpdk-devargs=net_null0,no-rx=1 \
                -- add-port br0 vs -- set interface vs type=dpdkvhostuser";
    weft.vsctl(&null.split_whitespace().collect::<Vec<_>>()).unwrap();
    for _ in 0..300 {
        if counted(&weft, &KERNEL_PORTS)
            && counted(&weft, &["n0", "vs"])
            && counted(&ovs, &KERNEL_PORTS)
        {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    for iface in KERNEL_PORTS {
        let mut mine = columns(&weft, iface);
        // Drops by name are ours alone, and there only when they are not 0.
        mine.retain(|line| !line.contains("statistics:tx_drop_"));
        assert_eq!(mine, columns(&ovs, iface));
        assert_eq!(link(&weft, iface), link(&ovs, iface));
    }
    // What exporters make metrics of. The database's client is another thread here, which is not
    // asked.
    let (mine, mut theirs) = (memory(&weft), memory(&ovs));
    theirs.retain(|name| !name.starts_with("idl-cells"));
    assert!(theirs.len() >= 4 && theirs.iter().all(|n| mine.contains(n)), "{theirs:?} {mine:?}");
    // What ovs-vswitchd 3.1 with DPDK has, which needs hugepages and is not started here.
    for (iface, names) in [
        ("n0", "rx_errors rx_missed_errors rx_mbuf_allocation_errors tx_errors"),
        ("vs", "ovs_tx_retries"),
    ] {
        let mine = columns(&weft, iface);
        let all = "rx_packets rx_bytes rx_dropped tx_packets tx_bytes tx_dropped ovs_rx_qos_drops \
                   ovs_tx_failure_drops ovs_tx_invalid_hwol_drops ovs_tx_mtu_exceeded_drops ovs_tx_qos_drops";
        for name in names.split_whitespace().chain(all.split_whitespace()) {
            let key = format!("{iface} statistics:{name}");
            assert!(mine.contains(&key), "{key} is missing in {mine:#?}");
        }
    }
}

/// A bridge has the least unique address of its ports, and its datapath id follows; controllers
/// connect again when that changes.
#[test]
fn a_bridge_has_the_address_of_its_adapter() {
    if !privileged() {
        return;
    }
    let states = |config: SwitchConfig| -> Vec<String> {
        let ns = Netns::new().unwrap();
        let sw = Switch::start(&ns, config).unwrap();
        let vsctl = |line: &str| {
            sw.vsctl(&line.split_whitespace().collect::<Vec<_>>()).unwrap().trim().to_string()
        };
        for (pair, last) in [(("g1", "g2"), 0x55), (("g3", "g4"), 0x33)] {
            testkit::veth((&ns, pair.0), (&ns, pair.1)).unwrap();
            ns.ip(&format!("link set {} address 00:11:22:33:44:{last:02x}", pair.0)).unwrap();
            ns.ip(&format!("link set {} address 02:11:22:33:44:{last:02x}", pair.1)).unwrap();
        }
        vsctl("add-br br0 -- set bridge br0 datapath_type=netdev");
        let socket = sw.dir().join("controller");
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        vsctl(&format!("set-controller br0 unix:{}", socket.display()));
        let own = vsctl("get bridge br0 datapath_id");
        let connection = listener.accept().unwrap();
        let mut all = Vec::new();
        let mut step = |line: &str| {
            vsctl(line);
            let id = vsctl("get bridge br0 datapath_id").replace(&own, "own");
            let device = ns.ip("-br link show br0").unwrap();
            let device = device.split_whitespace().nth(2).unwrap_or("").to_string();
            let is_own = own.contains(&device.replace(':', ""));
            all.push(format!("{line}: {id} {}", if is_own { "own" } else { &device }));
        };
        step("add-port br0 g1");
        // The first connection ended without an answer, and another one comes after the backoff.
        drop((connection, listener.accept().unwrap()));
        step("add-bond br0 bnd g3 g4");
        step(
            "-- --id=@p get port bnd -- --id=@m create mirror name=m output_port=@p -- set bridge br0 mirrors=@m",
        );
        step("clear bridge br0 mirrors");
        step("del-port bnd");
        step("set bridge br0 other-config:hwaddr=02:00:00:00:00:55");
        step("set bridge br0 other-config:datapath-id=0000000000000007");
        step("remove bridge br0 other-config hwaddr");
        step("remove bridge br0 other-config datapath-id");
        ns.ip("link set g1 address 00:11:22:33:44:77").unwrap();
        std::thread::sleep(std::time::Duration::from_millis(1500));
        step("set bridge br0 external_ids:a=b");
        ns.ip("addr add 10.1.1.1/24 dev br0").unwrap();
        step("del-port g1");
        step("add-port br0 g3");
        all.push(ns.ip("-br addr show br0").unwrap().contains("10.1.1.1/24").to_string());
        all
    };
    let weft = states(SwitchConfig::new(env!("CARGO_BIN_EXE_weftd")));
    assert_eq!(weft, states(SwitchConfig::oracle()));
}
