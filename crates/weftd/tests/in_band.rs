//! In-band control: a switch reaches its controller through a port of its own bridge, whatever the
//! bridge's flows are. Weft and ovs-vswitchd side by side. Needs root.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};
use testkit::{Frame, Netns, Raw, Switch, SwitchConfig, privileged, veth};

const CONTROLLER: &str = "tcp:10.1.1.1:6653";
const CONTROLLER_MAC: &str = "02:00:00:00:00:01";
const BRIDGE_MAC: &str = "02:00:00:00:00:02";
const HELLO: u8 = 0;
const ECHO_REQUEST: u8 = 2;
const ECHO_REPLY: u8 = 3;

/// A switch, and beyond port p0 of its bridge another host, on which controllers are.
struct Lab<'a> {
    sw: Switch<'a>,
    at: &'a Netns,
    host: &'a Netns,
}

/// The namespaces of a switch and its host.
struct Nets([Netns; 2]);

impl Nets {
    fn new() -> Nets {
        Nets([(); 2].map(|()| Netns::new().unwrap()))
    }

    fn lab(&self, config: SwitchConfig) -> Lab<'_> {
        let [at, host] = &self.0;
        veth((at, "p0"), (host, "c0")).unwrap();
        host.ip(&format!("link set c0 address {CONTROLLER_MAC}")).unwrap();
        host.ip("addr add 10.1.1.1/24 dev c0").unwrap();
        host.offloads_off("c0").unwrap();
        let lab = Lab { sw: Switch::start(at, config).unwrap(), at, host };
        lab.vsctl(&format!(
            "add-br br0 -- set bridge br0 datapath_type=netdev fail_mode=secure \
             other_config:hwaddr={BRIDGE_MAC} -- add-port br0 p0"
        ));
        lab.at.ip("addr add 10.1.1.2/24 dev br0").unwrap();
        lab.at.ip("link set br0 up").unwrap();
        lab.at.offloads_off("br0").unwrap();
        lab
    }
}

/// Weft and ovs-vswitchd, each with a network of its own.
fn both(test: impl FnOnce([&Lab<'_>; 2])) {
    if !privileged() {
        return;
    }
    let [at_weft, at_ovs] = [(); 2].map(|()| Nets::new());
    let weft = at_weft.lab(SwitchConfig::new(env!("CARGO_BIN_EXE_weftd")));
    let ovs = at_ovs.lab(SwitchConfig::oracle());
    test([&weft, &ovs]);
}

impl Lab<'_> {
    fn vsctl(&self, words: &str) -> String {
        self.sw.vsctl(&words.split_whitespace().collect::<Vec<_>>()).unwrap().trim().into()
    }

    fn ofctl(&self, words: &str) -> String {
        self.sw.ofctl(&words.split_whitespace().collect::<Vec<_>>()).unwrap()
    }

    fn is_connected(&self) -> bool {
        self.vsctl("--bare --columns=is_connected list controller").starts_with("true")
    }

    /// `bridge/dump-flows`: hidden flows without durations and counters, sorted; and their packets.
    fn hidden(&self) -> (Vec<String>, u64) {
        let text = self.sw.appctl(&["bridge/dump-flows", "br0"]).unwrap();
        let lines = text.lines().filter(|line| line.contains("priority=18"));
        let (mut flows, mut packets) = (Vec::new(), 0);
        for line in lines {
            let mut parts = line.splitn(4, ", ");
            assert!(parts.next().unwrap().starts_with("duration="), "{line}");
            let count = parts.next().and_then(|part| part.strip_prefix("n_packets="));
            packets += count.unwrap().parse::<u64>().unwrap();
            assert!(parts.next().unwrap().starts_with("n_bytes="), "{line}");
            flows.push(parts.next().unwrap().to_owned());
        }
        flows.sort();
        (flows, packets)
    }

    /// What is said of a bridge's flows to those who ask by OpenFlow, without counters.
    fn seen(&self) -> String {
        let sums = self.ofctl("dump-aggregate br0");
        let count = sums.split_whitespace().last().unwrap_or_default().to_owned();
        let tables = self.ofctl("dump-tables br0");
        let active = tables.lines().find(|line| line.contains("active=")).unwrap_or_default();
        let active = active.split(',').next().unwrap_or_default().to_owned();
        format!("{}{count} {active}", self.ofctl("--no-stats dump-flows br0"))
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !done() {
        assert!(Instant::now() < end, "still waiting: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Until the hidden flows of both switches are the same, and these.
fn hidden_are(what: &str, [weft, ovs]: [&Lab<'_>; 2], want: impl Fn(&[String]) -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let [ours, theirs] = [weft, ovs].map(|lab| lab.hidden().0);
        if ours == theirs && want(&ours) {
            return;
        }
        assert!(Instant::now() < end, "{what}: weft {ours:#?}\novs {theirs:#?}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// A controller that answers probes and does nothing else, until the test's process ends.
fn controller(host: &Netns, address: &str) {
    let listener = host.run(|| TcpListener::bind(address).unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer(stream));
        }
    });
}

fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    let mut head = [0; 8];
    loop {
        stream.read_exact(&mut head)?;
        let mut body = vec![0; usize::from(u16::from_be_bytes([head[2], head[3]])) - 8];
        stream.read_exact(&mut body)?;
        match head[1] {
            // Nothing but OpenFlow 1.3.
            HELLO => stream.write_all(&[4, HELLO, 0, 8, 0, 0, 0, 1])?,
            ECHO_REQUEST => {
                head[1] = ECHO_REPLY;
                stream.write_all(&[&head[..], &body].concat())?;
            }
            _ => {}
        }
    }
}

#[test]
fn a_controller_behind_the_bridge_is_reached_whatever_the_flows_are() {
    both(|labs| {
        for lab in labs {
            controller(lab.host, "10.1.1.1:6653");
            lab.vsctl(&format!("set-controller br0 {CONTROLLER}"));
            until("connected", || lab.is_connected());
        }
        let has = |mac: &'static str| {
            move |flows: &[String]| flows.len() == 9 && flows.iter().any(|f| f.contains(mac))
        };
        hidden_are("with one controller", labs, has(CONTROLLER_MAC));
        let seen = labs.map(Lab::seen);
        assert_eq!(seen[0], seen[1]);
        for lab in labs {
            lab.ofctl("add-flow br0 priority=65535,actions=drop");
            lab.ofctl("del-flows br0 tcp");
            lab.ofctl("mod-flows br0 actions=drop");
            lab.ofctl("-O OpenFlow13 del-flows br0");
            lab.ofctl("add-flow br0 priority=65535,actions=drop");
        }
        let before = labs.map(|lab| lab.hidden().1);
        let seen = labs.map(Lab::seen);
        assert!(seen[0].contains("flow_count=1") && seen[0].contains("active=1"), "{seen:?}");
        assert_eq!(seen[0], seen[1]);
        // Its address changes while probes go on.
        let another = "02:00:00:00:00:03";
        for lab in labs {
            lab.host.ip(&format!("link set c0 address {another}")).unwrap();
            lab.at.ip("neigh flush dev br0").unwrap();
        }
        hidden_are("with another address", labs, has(another));
        std::thread::sleep(Duration::from_secs(6));
        for (lab, before) in labs.into_iter().zip(before) {
            assert!(lab.is_connected() && lab.hidden().1 > before);
            lab.vsctl("set bridge br0 other_config:disable-in-band=true");
        }
        hidden_are("without", labs, <[String]>::is_empty);
        for lab in labs {
            until("disconnected", || !lab.is_connected());
        }
    });
}

/// What is configured, and how many hidden flows there are then: three of the bridge, two of each
/// next hop and of each host, and two of each remote.
const STEPS: [(&str, usize); 11] = [
    ("set-controller br0 tcp:10.1.1.1:6653 ssl:10.1.1.1:6654 tcp:10.9.0.1 ptcp:7777:127.0.0.1", 15),
    (
        "set-manager tcp:10.1.1.1 tcp:127.0.0.1:6640 ptcp:6640 -- set bridge br0 fail_mode=secure",
        17,
    ),
    ("set controller {} connection_mode=out-of-band", 13),
    ("clear controller {} connection_mode -- set controller {} type=service", 17),
    ("set bridge br0 other_config:in-band-queue=7", 17),
    ("remove bridge br0 other_config in-band-queue", 17),
    ("set manager tcp:10.1.1.1 connection_mode=out-of-band", 15),
    ("set manager tcp:10.1.1.1 connection_mode=in-band", 17),
    ("set-controller br0 unix:/nowhere tcp:[fd00::1]:6653", 9),
    ("del-controller br0", 9),
    ("del-manager", 0),
];

#[test]
fn controllers_and_managers_are_remotes_as_for_ovs() {
    both(|labs| {
        for lab in labs {
            lab.at.ip("route add 10.9.0.0/16 via 10.1.1.1").unwrap();
            // Both know the way at once.
            lab.at.ip(&format!("neigh add 10.1.1.1 lladdr {CONTROLLER_MAC} dev br0")).unwrap();
        }
        for (words, want) in STEPS {
            for lab in labs {
                let find = "--bare --columns=_uuid find controller target=\"tcp:10.9.0.1\"";
                let behind_router = lab.vsctl(find);
                lab.vsctl(&words.replace("{}", &behind_router));
            }
            hidden_are(words, labs, |flows| {
                let queue = flows.iter().all(|f| f.ends_with("actions=set_queue:7,NORMAL"));
                flows.len() == want && (want == 0 || queue == words.contains("in-band-queue=7"))
            });
        }
    });
}

#[test]
fn the_bridges_own_port_gets_the_address_of_a_controllers_row() {
    both(|labs| {
        for lab in labs {
            lab.at.ip("addr flush dev br0").unwrap();
            lab.at.ip("link set br0 down").unwrap();
            lab.vsctl("set-controller br0 tcp:192.168.7.1:6653");
        }
        let state = |lab: &Lab<'_>| {
            let link = lab.at.ip("-o link show up dev br0").unwrap();
            let words = ["-4 -br addr show br0", "-4 route show dev br0"].map(|words| {
                let text = lab.at.ip(words).unwrap();
                text.split_whitespace().map(String::from).collect::<Vec<_>>()
            });
            (!link.is_empty(), words)
        };
        for words in [
            "local_ip=192.168.7.2",
            "local_ip=192.168.7.3 local_netmask=255.255.255.128 local_gateway=192.168.7.9",
            "local_ip=10.0.0.1 local_netmask=[] local_gateway=[]",
            "local_ip=[]",
        ] {
            for lab in labs {
                lab.vsctl(&format!("set controller br0 {words}"));
            }
            until(words, || state(labs[0]) == state(labs[1]));
            let (is_up, text) = state(labs[0]);
            let ip = words["local_ip=".len()..].split(' ').next().unwrap_or_default();
            let has = |text: &str| text.starts_with(ip) || ip == "[]";
            assert!(is_up && text[0].iter().any(|t| has(t)), "{words}: {text:?}");
        }
        labs[0].vsctl("set controller br0 local_ip=nowhere");
        until("a word", || labs[0].sw.log().contains("local_ip nowhere: not an IPv4 address"));
    });
}

#[test]
fn replies_of_dhcp_servers_reach_the_bridges_own_port() {
    both(|labs| {
        let macs = ([2, 0, 0, 0, 0, 1], [0xff; 6]);
        let reply = Frame::udp4(macs, ([10, 1, 1, 1], [255; 4]), (67, 68), b"an address").padded();
        let request = Frame::udp4(macs, ([0; 4], [255; 4]), (68, 67), b"an address").padded();
        for lab in labs {
            let [at, host] =
                [(lab.at, "br0"), (lab.host, "c0")].map(|(ns, dev)| Raw::open(ns, dev).unwrap());
            let arrive = |frame: &[u8], wait: Duration| {
                host.send(frame).unwrap();
                !at.collect(1, Instant::now() + wait, |got| got == frame).is_empty()
            };
            let soon = Duration::from_millis(500);
            assert!(!arrive(&reply, soon), "there is no controller");
            lab.vsctl(&format!("set-controller br0 {CONTROLLER}"));
            until("hidden flows", || !lab.hidden().0.is_empty());
            lab.ofctl("add-flow br0 priority=65535,actions=drop");
            assert!(arrive(&reply, Duration::from_secs(5)));
            assert!(!arrive(&request, soon), "of another host");
        }
    });
}

/// The DSCP of packets with this source or destination port: of the next one that comes in.
fn dscp(raw: &Raw, port: u16) -> u8 {
    let end = Instant::now() + Duration::from_secs(20);
    let is = |f: &[u8]| {
        let at = if f[12..14] == [0x08, 0] { 34 } else { 54 };
        f.get(at..at + 4).is_some_and(|ports| ports.chunks(2).any(|p| p == port.to_be_bytes()))
    };
    let frames = raw.collect(1, end, is);
    let frame = frames.first().expect("a packet");
    let tos = match frame[14] >> 4 {
        4 => frame[15],
        _ => frame[14] << 4 | frame[15] >> 4,
    };
    assert_eq!(tos & 3, 0, "no word about congestion");
    tos >> 2
}

#[test]
fn packets_to_and_from_controllers_have_their_dscp() {
    both(|labs| {
        for lab in labs {
            lab.at.ip("addr add fd00::2/64 dev br0 nodad").unwrap();
            lab.host.ip("addr add fd00::1/64 dev c0 nodad").unwrap();
            lab.ofctl("add-flow br0 actions=NORMAL");
        }
        for (what, want) in [
            ("", 48),
            ("other_config:dscp=10", 10),
            ("other_config:dscp=0", 0),
            ("other_config:dscp=64", 48),
        ] {
            let connections = [
                ("tcp:10.1.1.1:6653", 6653, None),
                ("tcp:[fd00::1]:6655", 6655, None),
                ("ptcp:6633:10.1.1.2", 6633, Some("10.1.1.2:6633")),
            ];
            for (target, port, passive) in connections {
                for lab in labs {
                    let raw = Raw::open(lab.host, "c0").unwrap();
                    let set = if what.is_empty() {
                        String::new()
                    } else {
                        format!(" -- set controller br0 {what}")
                    };
                    lab.vsctl(&format!("set-controller br0 {target}{set}"));
                    lab.ofctl("add-flow br0 actions=NORMAL");
                    let _connection =
                        passive.map(|at| lab.host.run(|| TcpStream::connect(at).unwrap()));
                    assert_eq!(dscp(&raw, port), want, "{target} {what}");
                    lab.vsctl("del-controller br0");
                }
            }
        }
        assert!(labs[0].sw.log().contains("other_config:dscp=64 is not supported"));
    });
}
