//! `encap` and `decap` of MPLS and NSH: frames between ports, byte by byte.

mod lab;

use lab::*;
use testkit::{Frame, Net, Netns, Probe, Switch, privileged};

/// A switch without flows whose ports v1 to v3 end at probes e1 to e3.
fn bench<'a>(ns: &'a Netns, far: &Netns) -> (Switch<'a>, Probe) {
    let (sw, probe) = start_with_ports(ns, far, 3);
    ofctl(&sw, "del-flows br0");
    (sw, probe)
}

fn flow(sw: &Switch, text: &str) {
    sw.ofctl_stdin(&["-O", "OpenFlow15", "add-flows", "br0", "-"], &format!("{text}\n")).unwrap();
}

/// What comes out where of a frame into port 1, the first time and when its flow is cached.
fn send(probe: &Probe, frame: &[u8]) -> Vec<(String, Vec<u8>)> {
    let [first, again] = [(); 2].map(|()| {
        let out = probe.inject("e1", frame, QUIET).unwrap();
        let all = out.into_iter().flat_map(|(dev, f)| f.into_iter().map(move |f| (dev.clone(), f)));
        all.collect::<Vec<_>>()
    });
    assert_eq!(first, again);
    first
}

fn entry(label: u32, bottom: bool) -> [u8; 4] {
    (label << 12 | u32::from(bottom) << 8 | 64).to_be_bytes()
}

#[test]
fn frames_go_into_mpls_and_come_out() {
    if !privileged() {
        return;
    }
    let (_turn, ns, far) = (turn(), Netns::new().unwrap(), Netns::new().unwrap());
    let (sw, probe) = bench(&ns, &far);
    let inner = Frame::new([2, 0, 0, 0, 1, 1], [2, 0, 0, 0, 1, 2], Net::Raw(0x88b5, vec![7; 50]));
    let tagged = inner.clone().tagged(0x8100, 5).bytes();
    let inner = inner.bytes();
    let header = [&[0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 1][..], &[0x88, 0x48]].concat();
    let one = |frame: &[u8]| [&header, &entry(2, true)[..], frame].concat();
    let two = [&header, &entry(2, false)[..], &entry(3, true), &inner].concat();

    let addresses = "set_field:00:00:00:00:00:02->eth_dst,set_field:00:00:00:00:00:01->eth_src";
    let (top, rest) = ("encap(mpls_mc),set_field:2->mpls_label", "encap(ethernet)");
    flow(&sw, &format!("in_port=1,actions={top},{rest},{addresses},output:2"));
    for frame in [&inner, &tagged] {
        assert_eq!(send(&probe, frame), [("e2".into(), one(frame))]);
    }
    let more = "encap(mpls),set_field:3->mpls_label";
    flow(&sw, &format!("in_port=1,actions={more},{top},{rest},{addresses},output:2"));
    assert_eq!(send(&probe, &inner), [("e2".into(), two.clone())]);

    // The inner frame is looked up as what it is.
    let frame = "decap(packet_type(ns=0,type=0))";
    flow(&sw, &format!("in_port=1,actions=decap(),{frame},resubmit(,1)"));
    flow(&sw, "table=1,priority=9,dl_vlan=5,actions=pop_vlan,output:3");
    flow(&sw, "table=1,priority=1,dl_dst=02:00:00:00:01:02,actions=output:2");
    assert_eq!(send(&probe, &one(&inner)), [("e2".into(), inner.clone())]);
    assert_eq!(send(&probe, &one(&tagged)), [("e3".into(), inner.clone())]);
    let entries = "decap(packet_type(ns=1,type=0x8848))";
    flow(&sw, &format!("in_port=1,actions=decap(),{entries},{frame},output:3"));
    assert_eq!(send(&probe, &two), [("e3".into(), inner.clone())]);
    let dump = ofctl(&sw, "-O OpenFlow13 dump-flows br0 table=0");
    assert!(dump.contains(&format!("actions=decap(),{entries},{frame},output:3")), "{dump}");

    // What holds no frame, or has no header at a port, ends by name.
    assert_eq!(coverage(&sw, "datapath_drop_bad_action"), 0);
    assert_eq!(send(&probe, &one(&[9; 13])), []);
    assert_eq!(coverage(&sw, "datapath_drop_bad_action"), 2);
    flow(&sw, "in_port=1,actions=decap(),output:2");
    assert_eq!(send(&probe, &inner), []);
    assert_eq!(coverage(&sw, "datapath_drop_packet_type"), 2);
}

/// A network service header: flags, TTL, metadata type and next protocol, path, and metadata.
fn nsh(kind: [u8; 2], path: [u8; 4], metadata: &[u8]) -> Vec<u8> {
    let base = 63 << 6 | (2 + metadata.len() / 4) as u16;
    [&base.to_be_bytes()[..], &kind, &path, metadata].concat()
}

#[test]
fn frames_and_packets_go_into_service_headers_and_come_out() {
    if !privileged() {
        return;
    }
    let (_turn, ns, far) = (turn(), Netns::new().unwrap(), Netns::new().unwrap());
    let (sw, probe) = bench(&ns, &far);
    let macs = ([2, 0, 0, 0, 1, 1], [2, 0, 0, 0, 1, 2]);
    let frame = Frame::udp4(macs, ([10, 0, 0, 1], [10, 0, 0, 2]), (1, 2), &[5; 40]);
    let (tagged, frame) = (frame.clone().tagged(0x8100, 5).bytes(), frame.bytes());
    let header = |kind: u16| [&[0; 11][..], &[9], &kind.to_be_bytes()].concat();
    let around = |nsh: &[u8], inner: &[u8]| [&header(0x894f), nsh, inner].concat();

    // Type 1 around frames, with a tag and without.
    let (last, address) = ("encap(ethernet)", "set_field:00:00:00:00:00:09->eth_src");
    let fields = "set_field:7->nsh_spi,set_field:0x01020304->nsh_c2";
    flow(&sw, &format!("in_port=1,actions=encap(nsh),{fields},{last},{address},output:2"));
    let first = nsh([1, 3], [0, 0, 7, 255], &[0, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0]);
    for f in [&frame, &tagged] {
        assert_eq!(send(&probe, f), [("e2".into(), around(&first, f))]);
    }
    ofctl(&sw, "del-flows br0");
    // Type 2 around what is behind the Ethernet header, and around a header.
    let tlvs = "encap(nsh(md_type=2,tlv(0x1000,10,0x123456)))";
    flow(&sw, &format!("in_port=1,ip,actions=decap(),{tlvs},{last},{address},output:2"));
    let second = nsh([2, 1], [0, 0, 0, 255], &[0x10, 0, 10, 3, 0x12, 0x34, 0x56, 0]);
    assert_eq!(send(&probe, &frame), [("e2".into(), around(&second, &frame[14..]))]);
    flow(&sw, &format!("in_port=1,ip,actions=encap(nsh),{tlvs},{last},{address},output:2"));
    let plain = nsh([1, 3], [0, 0, 0, 255], &[0; 16]);
    let third = nsh([2, 4], [0, 0, 0, 255], &[0x10, 0, 10, 3, 0x12, 0x34, 0x56, 0]);
    let both = around(&[&third[..], &plain].concat(), &frame);
    assert_eq!(send(&probe, &frame), [("e2".into(), both.clone())]);

    ofctl(&sw, "del-flows br0");
    // What comes out is looked up as what it is.
    let named = "dl_type=0x894f,nsh_np";
    flow(&sw, &format!("in_port=1,{named}=3,actions=decap(),decap(),resubmit(,1)"));
    flow(&sw, &format!("in_port=1,{named}=1,actions=decap(),decap(),resubmit(,1)"));
    flow(&sw, &format!("in_port=1,{named}=4,actions=decap(),decap(),decap(),resubmit(,1)"));
    flow(&sw, "table=1,priority=9,dl_vlan=5,actions=pop_vlan,output:3");
    flow(&sw, "table=1,priority=1,ip,nw_dst=10.0.0.2,actions=output:2");
    let bare = "packet_type=(1,0x800),nw_dst=10.0.0.2";
    flow(&sw, &format!("table=1,{bare},actions={last},{address},output:3"));
    assert_eq!(send(&probe, &around(&first, &frame)), [("e2".into(), frame.clone())]);
    assert_eq!(send(&probe, &around(&first, &tagged)), [("e3".into(), frame.clone())]);
    assert_eq!(send(&probe, &both), [("e2".into(), frame.clone())]);
    let behind = [&header(0x800), &frame[14..]].concat();
    let ip = around(&second, &frame[14..]);
    assert_eq!(send(&probe, &ip), [("e3".into(), behind)]);
    let cached = appctl(&sw, "dpctl/dump-flows");
    let unwrapped = "packet_type(ns=1,id=0x800),eth_type(0x0800),ipv4(dst=10.0.0.2,frag=no)";
    let bytes = format!("packets:1, bytes:{},", frame.len() - 14);
    let line = cached.lines().find(|l| l.contains(unwrapped)).unwrap_or_else(|| panic!("{cached}"));
    assert!(line.contains(&bytes), "{line}");

    ofctl(&sw, "del-flows br0");
    // Changed on the way; expired; cut off; with something unknown inside.
    let fields = "set_field:3->nsh_flags,set_field:254->nsh_si,set_field:0xffff/0xffff->nsh_c4";
    flow(
        &sw,
        &format!("in_port=1,dl_type=0x894f,nsh_si=255,actions={fields},dec_nsh_ttl,output:2"),
    );
    let mut changed = around(&first, &frame);
    (changed[14], changed[15]) = (0x3f, 0x86);
    (changed[21], changed[36], changed[37]) = (254, 0xff, 0xff);
    assert_eq!(send(&probe, &around(&first, &frame)), [("e2".into(), changed)]);
    let mut old = around(&first, &frame);
    (old[14], old[15]) = (0, 0x46);
    assert_eq!(send(&probe, &old), []);
    assert_eq!(coverage(&sw, "datapath_drop_ttl_expired"), 2);
    flow(&sw, "in_port=1,dl_type=0x894f,nsh_si=255,actions=decap(),decap(),output:2");
    assert_eq!(send(&probe, &around(&first, &[9; 13])), []);
    assert_eq!(coverage(&sw, "datapath_drop_nsh_decap_error"), 2);
    let unknown = nsh([1, 5], [0, 0, 7, 255], &[0; 16]);
    assert_eq!(send(&probe, &around(&unknown, &frame)), []);
    assert_eq!(coverage(&sw, "datapath_drop_packet_type"), 2);
}

/// Label stack entries put in front of an IP packet whose Ethernet header was removed, and taken
/// off; flows of the packet without header are found by its type.
#[test]
fn packets_without_ethernet_header_get_one_before_they_leave() {
    if !privileged() {
        return;
    }
    let (_turn, ns, far) = (turn(), Netns::new().unwrap(), Netns::new().unwrap());
    let (sw, probe) = bench(&ns, &far);
    let macs = ([2, 0, 0, 0, 1, 1], [2, 0, 0, 0, 1, 2]);
    let plain = Frame::udp4(macs, ([10, 0, 0, 1], [10, 0, 0, 2]), (1, 2), &[5; 40]).bytes();
    let header = |kind: u16| [&[0; 11][..], &[9], &kind.to_be_bytes()].concat();
    let labelled = [&header(0x8847), &entry(0, true)[..], &plain[14..]].concat();

    let address = "set_field:00:00:00:00:00:09->eth_src";
    flow(&sw, "in_port=1,ip,actions=decap(),encap(mpls),resubmit(,1)");
    flow(&sw, "table=1,priority=9,mpls,actions=output:3");
    let named = "packet_type=(1,0x8847),mpls_label=0";
    flow(&sw, &format!("table=1,priority=1,{named},actions=encap(ethernet),{address},output:2"));
    assert_eq!(send(&probe, &plain), [("e2".into(), labelled.clone())]);
    // What has ovs-vswitchd do this by its slow path changes no packet.
    assert_eq!(appctl(&sw, "dpif/set-dp-features br0 add_mpls false"), "");
    let shown = appctl(&sw, "dpif/set-dp-features br0 add_mpls");
    assert_eq!(shown, "add_mpls (MPLS Label add) : [run time]:false, [boot time]:true\n");
    assert!(sw.appctl(&["dpif/set-dp-features", "br0", "recirc", "false"]).is_err());
    assert_eq!(send(&probe, &plain), [("e2".into(), labelled.clone())]);

    flow(&sw, "in_port=1,mpls,actions=decap(),decap(packet_type(ns=1,type=0x800)),resubmit(,2)");
    let named = "packet_type=(1,0x800),nw_dst=10.0.0.2";
    flow(&sw, &format!("table=2,{named},actions=encap(ethernet),{address},output:2"));
    let bare = [&header(0x0800), &plain[14..]].concat();
    assert_eq!(send(&probe, &labelled), [("e2".into(), bare)]);
}

/// `ovs-ofctl monitor`, ended when it goes out of scope.
struct Monitor(std::process::Child);

impl Drop for Monitor {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_controller_gets_what_is_left_of_the_packet() {
    if !privileged() {
        return;
    }
    let (_turn, ns, far) = (turn(), Netns::new().unwrap(), Netns::new().unwrap());
    let (sw, probe) = bench(&ns, &far);
    let file = sw.dir().join("monitor.txt");
    let said = || std::fs::read_to_string(&file).unwrap();
    let mut monitor = sw.command("ovs-ofctl");
    let to = std::fs::File::create(&file).unwrap();
    monitor.args(["-O", "OpenFlow13", "monitor", "br0", "65534"]).stdout(to.try_clone().unwrap());
    let _monitor = Monitor(monitor.stderr(to).spawn().unwrap());

    let macs = ([2, 0, 0, 0, 1, 1], [2, 0, 0, 0, 1, 2]);
    let frame = Frame::udp4(macs, ([10, 0, 0, 1], [10, 0, 0, 2]), (1, 2), &[5; 40]).bytes();
    flow(&sw, "in_port=1,ip,actions=decap(),controller(userdata=07)");
    wait_for("a packet-in", || {
        send(&probe, &frame);
        said().contains("packet_type=(1,0x800),in_port=1 (via action)")
    });
    let text = said();
    let line = text.lines().find(|l| l.contains("packet_type=(1,0x800),in_port=1")).unwrap();
    assert!(line.contains(&format!("total_len={} ", frame.len() - 14)), "{line}");
    let left = "packet_type=(1,0x800),nw_src=10.0.0.1,nw_dst=10.0.0.2,nw_proto=17";
    assert!(text.contains(left), "{text}");
}
