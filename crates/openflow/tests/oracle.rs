//! The installed `ovs-ofctl` as oracle: flows are written by it, decoded and encoded here, and must
//! come out byte for byte. It must be there (`scripts/deps.sh test`): an oracle that is not asked
//! proves nothing.

use openflow::Version;
use openflow::actions_out::encode_flow_actions;
use openflow::check::check_instructions;
use openflow::error_code::wire;
use openflow::instructions::{decode_instructions, encode_flow_instructions};
use openflow::matching::*;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// What ovs-ofctl sends for each line of `flows`.
fn flow_mods(version: Version, flows: &str) -> Vec<Vec<u8>> {
    static SEQUENCE: AtomicU32 = AtomicU32::new(0);
    let n = SEQUENCE.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("ofwire-{}-{n}.sock", std::process::id()));
    let listener = UnixListener::bind(&path).unwrap();
    let mut child = Command::new("timeout")
        .args(["10", "ovs-ofctl", "--no-names"])
        .arg("-O")
        .arg(format!("OpenFlow1{}", version as u8 - 1))
        .args(["add-flows", &format!("unix:{}", path.display()), "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("timeout");
    let _ = child.stdin.take().unwrap().write_all(flows.as_bytes());
    // ovs-ofctl may connect several times; the last connection is ours and says nothing.
    let done = std::sync::Arc::new(AtomicU32::new(0));
    let seen = done.clone();
    let server = std::thread::spawn(move || {
        let mut peers = vec![];
        while let Ok((peer, _)) = listener.accept() {
            if seen.load(Ordering::SeqCst) != 0 {
                break;
            }
            peers.push(std::thread::spawn(move || serve(peer, version)));
        }
        peers.into_iter().flat_map(|p| p.join().unwrap()).collect()
    });
    let output = child.wait_with_output().unwrap();
    done.store(1, Ordering::SeqCst);
    drop(UnixStream::connect(&path));
    assert!(output.status.success(), "ovs-ofctl: {}", String::from_utf8_lossy(&output.stderr));
    let mods: Vec<Vec<u8>> = server.join().unwrap();
    std::fs::remove_file(&path).unwrap();
    mods
}

/// Plays a switch that accepts everything; keeps the flow-mods it gets.
fn serve(mut peer: UnixStream, version: Version) -> Vec<Vec<u8>> {
    let mut mods = vec![];
    const HELLO: u8 = 0;
    const VENDOR: u8 = 4;
    const FLOW_MOD: u8 = 14;
    let (statistics, barrier) = if version == Version::V10 { (16, 18) } else { (18, 20) };
    peer.write_all(&[version as u8, HELLO, 0, 8, 0, 0, 0, 0]).unwrap();
    let mut head = [0; 8];
    while peer.read_exact(&mut head).is_ok() {
        let len = u16::from_be_bytes([head[2], head[3]]);
        let mut message = head.to_vec();
        message.resize(len.into(), 0);
        peer.read_exact(&mut message[8..]).unwrap();
        match head[1] {
            FLOW_MOD => mods.push(message),
            VENDOR if message[12..16] == [0, 0, 0, 13] => mods.push(message),
            kind if kind == barrier => {
                let reply = [head[0], kind + 1, 0, 8, head[4], head[5], head[6], head[7]];
                peer.write_all(&reply).unwrap();
            }
            5 => {
                message.resize(32, 0);
                (message[1], message[3]) = (6, 32);
                peer.write_all(&message).unwrap();
            }
            // Names of tables and ports: none.
            kind if kind == statistics => {
                message.truncate(if version == Version::V10 { 12 } else { 16 });
                (message[1], message[3]) = (kind + 1, message.len() as u8);
                peer.write_all(&message).unwrap();
            }
            _ => {}
        }
    }
    mods
}

fn fail(version: Version, flow: &str, e: openflow::OfError) -> ! {
    panic!("{version:?} {flow}: {e:?} {:?}", wire(version, e))
}

fn check_reads_back(version: Version, flow: &str, message: &[u8]) {
    let (m, body, match_len) = match (version, message[1]) {
        (Version::V10, 14) => {
            let m = decode_match10(message[8..48].try_into().unwrap());
            assert_eq!(encode_match10(&m), message[8..48], "{flow}");
            (m, 72, 0)
        }
        (Version::V10, _) => {
            let len = usize::from(u16::from_be_bytes([message[40], message[41]]));
            let nx = decode_nx_match(&message[48..48 + len]);
            let nx = nx.unwrap_or_else(|e| fail(version, flow, e));
            let mut out = vec![];
            assert_eq!(encode_nx_match(&nx, &mut out), len);
            assert_eq!(hex(&out), hex(&message[48..48 + out.len()]), "{flow}");
            (nx.matching, 48, out.len())
        }
        _ => {
            let (m, len) =
                decode_match(version, &message[48..]).unwrap_or_else(|e| fail(version, flow, e));
            let mut out = vec![];
            encode_match(version, &m, &mut out);
            assert_eq!(hex(&out), hex(&message[48..48 + len]), "{version:?} {flow}");
            (m, 48, len)
        }
    };
    let bytes = &message[body + match_len..];
    let list = decode_instructions(version, bytes).unwrap_or_else(|e| fail(version, flow, e));
    let table = if version == Version::V10 { 0 } else { message[24] };
    check_instructions(&list, &m, version, 254, table).unwrap_or_else(|e| fail(version, flow, e));
    let mut out = vec![];
    encode_flow_instructions(version, &m, &list, &mut out);
    assert_eq!(hex(&out), hex(bytes), "{version:?} {flow}: {list:?}");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn check_all(versions: &[Version], flows: &[&str]) {
    for version in versions {
        let mods = flow_mods(*version, &flows.join("\n"));
        assert_eq!(mods.len(), flows.len(), "{version:?}");
        for (flow, message) in flows.iter().zip(&mods) {
            check_reads_back(*version, flow, message);
        }
    }
}

use Version::{V10, V11, V12, V13, V14, V15};

const MATCHES: &[&str] = &[
    "actions=drop",
    "in_port=1 actions=drop",
    "in_port=LOCAL,dl_src=00:11:22:33:44:55,dl_dst=01:00:00:00:00:00/01:00:00:00:00:00 actions=drop",
    "dl_vlan=5 actions=drop",
    "dl_vlan=5,dl_vlan_pcp=3 actions=drop",
    "vlan_tci=0x1000/0x1000 actions=drop",
    "vlan_tci=0 actions=drop",
    "vlan_tci=0x1005/0x1fff actions=drop",
    "dl_vlan_pcp=3 actions=drop",
    "arp,arp_op=1,arp_spa=10.0.0.0/8,arp_tpa=10.1.2.3,arp_sha=00:11:22:33:44:55 actions=drop",
    "rarp,arp_tha=00:11:22:33:44:55 actions=drop",
    "ip,nw_src=10.0.0.0/255.0.255.0,nw_dst=10.1.2.3,nw_tos=32,nw_ecn=2,nw_ttl=64 actions=drop",
    "ip,ip_frag=later actions=drop",
    "ip,ip_frag=not_later actions=drop",
    "tcp,tp_src=80,tp_dst=0x1000/0xf000,tcp_flags=+syn-ack actions=drop",
    "udp,tp_src=53 actions=drop",
    "udp6,tp_dst=53,ipv6_src=2001:db8::/32,ipv6_label=0x12345 actions=drop",
    "sctp,tp_src=5 actions=drop",
    "icmp,icmp_type=8,icmp_code=0 actions=drop",
    "icmp6,icmp_type=135,icmp_code=0,nd_target=fe80::1,nd_sll=00:11:22:33:44:55 actions=drop",
    "icmp6,icmp_type=136,icmp_code=0,nd_target=fe80::/64,nd_tll=00:11:22:33:44:55 actions=drop",
    "mpls,mpls_label=100,mpls_tc=3,mpls_bos=1,mpls_ttl=7 actions=drop",
    "reg0=1,reg3=0x10/0xf0,reg15=7 actions=drop",
    "xreg1=0x123456789abcdef,xxreg1=0x1 actions=drop",
    "metadata=0x5/0xff,tun_id=0x10 actions=drop",
    "tun_id=0x10/0xff,tun_src=1.2.3.4,tun_dst=10.0.0.0/8,tun_flags=oam actions=drop",
    "tun_ipv6_src=::1,tun_ipv6_dst=2001:db8::/32,tun_gbp_id=4,tun_gbp_flags=0x8 actions=drop",
    "pkt_mark=0x3/0xf,conj_id=4 actions=drop",
    "ct_state=+trk+est,ct_zone=3,ct_mark=0x1/0x3,ct_label=0x1234,ip actions=drop",
    "ip,ct_state=+trk+est,ct_nw_src=10.0.0.0/8,ct_nw_proto=6,ct_tp_dst=80 actions=drop",
    "actset_output=3 actions=drop",
    "dl_type=0x88cc actions=drop",
    "dl_type=0x5ff actions=drop",
];

#[test]
fn matches_read_back() {
    check_all(&[V10, V12, V13, V14, V15], MATCHES);
}

/// What 1.1's fixed match can say.
const MATCHES11: &[&str] = &[
    "actions=drop",
    "in_port=LOCAL,dl_src=00:11:22:33:44:55,dl_dst=01:00:00:00:00:00/01:00:00:00:00:00 actions=drop",
    "dl_vlan=5,dl_vlan_pcp=3 actions=drop",
    "vlan_tci=0 actions=drop",
    "arp,arp_op=1,arp_spa=10.0.0.0/8,arp_tpa=10.1.2.3 actions=drop",
    "tcp,nw_src=10.0.0.0/255.0.255.0,nw_tos=32,tp_dst=80 actions=drop",
    "icmp,icmp_type=8,icmp_code=0 actions=drop",
    "mpls,mpls_label=100,mpls_tc=3 actions=drop",
    "metadata=0x5/0xff actions=drop",
    "dl_type=0x5ff actions=drop",
];

#[test]
fn the_fixed_match_of_11_reads_back() {
    check_all(&[V11], MATCHES11);
}

const ACTIONS: &[&str] = &[
    "actions=1,2,LOCAL,IN_PORT,NORMAL,FLOOD,ALL,CONTROLLER:128",
    "actions=controller(max_len=100,reason=no_match,id=5)",
    "actions=controller(userdata=01.02.03,pause,meter_id=3)",
    "actions=set_queue:3,pop_queue",
    "actions=output(port=1,max_len=100),output:NXM_NX_REG0[0..15],output:reg2[]",
    "actions=mod_dl_src:00:11:22:33:44:55,mod_dl_dst:00:11:22:33:44:56,1",
    "ip actions=mod_nw_src:1.2.3.4,mod_nw_dst:1.2.3.5,mod_nw_tos:32,mod_nw_ecn:1,mod_nw_ttl:4",
    "tcp actions=mod_tp_src:1,mod_tp_dst:2",
    "udp actions=mod_tp_src:1,mod_tp_dst:2",
    "dl_vlan=1 actions=mod_vlan_vid:5,mod_vlan_pcp:3,strip_vlan",
    "dl_vlan=1 actions=set_field:00:11:22:33:44:55->eth_src,set_field:4101->vlan_vid",
    "ip actions=set_field:1.2.3.4->ip_src,set_field:8->ip_dscp,dec_ttl,dec_ttl(1,2)",
    "ip actions=set_field:32->nw_tos",
    "actions=set_field:1->reg0,set_field:0x5/0xf->reg1,set_field:0x12->xreg2",
    "actions=set_field:0x5->tun_id,set_tunnel:7,set_tunnel64:9",
    "actions=set_field:1.2.3.4->tun_dst,set_field:::1->tun_ipv6_dst,set_field:3->pkt_mark",
    "actions=load:0x5->NXM_NX_REG0[],load:3->NXM_NX_REG1[4..7],load:0->NXM_OF_IN_PORT[]",
    "actions=load:0xfffe->NXM_OF_IN_PORT[],load:1->NXM_NX_TUN_ID[],load:1->OXM_OF_METADATA[0..7]",
    "actions=move:NXM_OF_ETH_SRC[]->NXM_OF_ETH_DST[],move:NXM_OF_IN_PORT[]->NXM_NX_REG0[0..15]",
    "actions=move:NXM_NX_TUN_ID[0..31]->NXM_NX_REG3[],move:NXM_NX_TUN_ID[]->OXM_OF_METADATA[]",
    "arp actions=load:2->NXM_OF_ARP_OP[],move:NXM_NX_ARP_SHA[]->NXM_NX_ARP_THA[]",
    "actions=push:NXM_NX_REG0[],pop:NXM_NX_REG1[4..7],push:NXM_OF_IN_PORT[]",
    "mpls actions=set_mpls_label:3,set_mpls_tc:2,set_mpls_ttl:5,dec_mpls_ttl,pop_mpls:0x0800",
    "ip actions=push_mpls:0x8847,1",
    "actions=resubmit:1,resubmit(,3),resubmit(2,4),resubmit(1,)",
    "ip,ct_state=+est+trk actions=resubmit(,3,ct)",
    "actions=note:01.02.03.04.05.06.07,exit",
    "tcp actions=fin_timeout(idle_timeout=10,hard_timeout=20)",
    "actions=conjunction(3,1/2)",
    "actions=multipath(eth_src,50,modulo_n,4,0,NXM_NX_REG0[0..7])",
    "actions=sample(probability=3,collector_set_id=1,obs_domain_id=2,obs_point_id=4)",
    "actions=sample(probability=3,collector_set_id=1,sampling_port=2)",
    "actions=sample(probability=3,collector_set_id=1,sampling_port=2,egress)",
    "actions=clone(set_field:1->reg0,resubmit(,3),clone(1)),2",
    "actions=ct_clear,1",
    "ip actions=ct(),ct(commit),ct(table=3),ct(zone=7,commit,force,table=0)",
    "ip actions=ct(zone=NXM_NX_REG13[0..15],table=254,nat),ct(commit,zone=OXM_OF_METADATA[4..19])",
    "tcp actions=ct(commit,alg=ftp),ct(alg=ftp,table=1)",
    "udp6 actions=ct(commit,alg=tftp)",
    "ip actions=ct(commit,exec(set_field:0x7->ct_mark,set_field:0x123456789abcdef0123->ct_label))",
    "ip actions=ct(commit,nat(src=10.0.0.1),exec(load:1->NXM_NX_CT_MARK[3],load:5->NXM_NX_CT_LABEL[64..95]))",
    "ip actions=ct(commit,exec(set_field:0x2/0x3->ct_mark,move:NXM_NX_REG0[]->NXM_NX_CT_LABEL[96..127]))",
    "ip actions=ct(commit,nat(dst=10.0.0.1-10.0.0.9:80-90,persistent,hash)),ct(commit,nat(src))",
    "ip actions=ct(commit,nat(src=10.0.0.1:99,random)),ct(nat,table=4)",
    "ipv6 actions=ct(commit,nat(src=[2001:db8::1]-[2001:db8::9]:1024)),ct(commit,nat(dst=2001:db8::1))",
    "actions=check_pkt_larger(1500)->NXM_NX_REG0[0],check_pkt_larger(80)->OXM_OF_METADATA[63],1",
];

/// With push_vlan, which 1.0 has not.
const ACTIONS11: &[&str] = &[
    "actions=group:5",
    "actions=push_vlan:0x8100,set_field:4101->vlan_vid,set_field:2->vlan_pcp,1",
    "actions=push_vlan:0x88a8,set_field:4101->vlan_vid,push_vlan:0x8100,pop_vlan",
    "actions=mod_vlan_vid:5",
    "actions=1,clear_actions,write_actions(set_field:1->reg0,2),write_metadata:0x5/0xff,goto_table:3",
    "actions=write_actions(group:3),goto_table:253",
    "table=3 actions=1,goto_table:4",
    "icmp6,icmp_type=135,icmp_code=0 actions=set_field:fe80::1->nd_target",
    "ipv6 actions=set_field:2001::1->ipv6_src,set_field:0x12->ipv6_label",
    "sctp actions=set_field:5->sctp_dst",
    "arp actions=set_field:2->arp_op,set_field:1.2.3.4->arp_spa",
    "icmp actions=set_field:0->icmp_type",
    "ip actions=write_actions(ct(commit,zone=3,nat(src=1.2.3.4)))",
    "ip actions=ct(commit),write_actions(ct_clear,2)",
];

const ACTIONS13: &[&str] = &[
    "actions=meter:3,1",
    "actions=meter:2,goto_table:4",
    "actions=encap(mpls),set_mpls_label:3,encap(ethernet),set_field:00:00:00:00:00:02->eth_dst,1",
    "mpls actions=decap(),decap(packet_type(ns=0,type=0)),encap(mpls_mc),1",
    "mpls actions=decap,decap(packet_type(ns=1,type=0x8847)),encap(ethernet),1",
    "actions=write_actions(encap(mpls),decap(),1)",
];

#[test]
fn actions_read_back() {
    check_all(&[V10, V12, V13, V14, V15], ACTIONS);
    // In 1.5 ovs-ofctl sends this without the present bit, which OVS refuses.
    let load_vid = "dl_vlan=1 actions=load:5->OXM_OF_VLAN_VID[],load:0x1005->NXM_OF_VLAN_TCI[]";
    check_all(&[V10, V12, V13, V14], &[load_vid]);
    check_all(&[V12, V13, V14, V15], ACTIONS11);
    check_all(&[V13, V14, V15], ACTIONS13);
    check_all(
        &[V10],
        &["actions=write_metadata:0x5/0xff", "actions=mod_vlan_vid:5,1", "actions=enqueue:1:5"],
    );
}

/// A flow of 1.0 actions is written for later versions as ovs-ofctl writes it.
#[test]
fn actions_of_10_look_like_ovs_in_later_versions() {
    let flows = [
        "actions=mod_vlan_vid:5,mod_vlan_pcp:2",
        "dl_vlan=3 actions=mod_vlan_vid:5",
        "tcp actions=mod_tp_src:4",
        "ip actions=mod_nw_tos:32,mod_nw_src:1.2.3.4",
    ];
    for later in [V12, V13, V15] {
        let text = flows.join("\n");
        let (old, new) = (flow_mods(V10, &text), flow_mods(later, &text));
        for (old, new) in old.iter().zip(&new) {
            let (m, len) = decode_match(later, &new[48..]).unwrap();
            let body = if old[1] == 14 {
                72
            } else {
                48 + usize::from(u16::from_be_bytes([old[40], old[41]])).next_multiple_of(8)
            };
            let list = decode_instructions(V10, &old[body..]).unwrap();
            let [openflow::Instruction::Apply(actions)] = &list[..] else { panic!("{list:?}") };
            let mut out = vec![];
            encode_flow_actions(later, &m, actions, &mut out);
            assert_eq!(hex(&out), hex(&new[48 + len + 8..]), "{later:?} {actions:?}");
        }
    }
}
