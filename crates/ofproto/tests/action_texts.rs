//! The installed `ovs-ofctl` as oracle of actions' text: it reads a flow, writes it as a message of
//! one version, reads that and prints it. Here the same is done with [`ofproto::parse_actions`] and
//! [`ofproto::actions_text`], and the same must come out. It must be there (`scripts/deps.sh
//! test`): an oracle that is not asked proves nothing.

use ofproto::{actions_text, parse_actions};
use openflow::actions::decode_actions;
use openflow::actions_out::encode_flow_actions;
use openflow::{Match, Version};
use std::io::Write;
use std::process::{Command, Stdio};

/// What follows `actions=` in what ovs-ofctl prints of each flow.
fn of_ovs(version: Version, flows: &[&str]) -> Vec<String> {
    let mut child = Command::new("timeout")
        .args(["20", "ovs-ofctl", "--no-names", "-O"])
        .arg(format!("OpenFlow1{}", version as u8 - 1))
        .args(["parse-flows", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("timeout");
    child.stdin.take().unwrap().write_all(flows.join("\n").as_bytes()).unwrap();
    let out = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&out.stderr);
    let text = String::from_utf8(out.stdout).unwrap();
    let actions = text.lines().filter_map(|l| l.split_once("actions="));
    let all: Vec<String> = actions.map(|(_, actions)| actions.to_string()).collect();
    assert_eq!(all.len(), flows.len(), "{version:?}: {stderr}{text}");
    all
}

fn of_weft(version: Version, flow: &str) -> String {
    let none = |_: &str| None;
    let (matching, actions) = flow.split_once("actions=").unwrap();
    let (key, mask) = flow::parse_match(matching.trim(), &none).unwrap();
    let list = parse_actions(actions, &none).unwrap_or_else(|e| panic!("{flow}: {e}"));
    let mut message = Vec::new();
    encode_flow_actions(version, &Match::new(key, mask), &list, &mut message);
    actions_text(&decode_actions(version, &message).unwrap_or_else(|e| panic!("{flow}: {e}")))
}

fn check(versions: &[Version], flows: &[&str]) {
    let mut differ = Vec::new();
    for version in versions {
        for (flow, theirs) in flows.iter().zip(of_ovs(*version, flows)) {
            let ours = of_weft(*version, flow);
            if ours != theirs {
                differ.push(format!("{version:?} {flow}: {ours} and not {theirs}"));
            }
        }
    }
    assert!(differ.is_empty(), "{differ:#?}");
}

use Version::{V10, V11, V12, V13, V14, V15};

const ALL: &[&str] = &[
    "actions=drop",
    "actions=1,,LOCAL normal, FLOOD,all,in_port",
    "actions=output:7,output:LOCAL,output:4294967294",
    "actions=output:reg0,output:NXM_NX_REG1[0..15],output(port=1,max_len=100)",
    "actions=controller,Controller:7,controller(),output:CONTROLLER",
    "actions=CONTROLLER(reason=action_set),controller(reason=packet_out,max_len=5)",
    "actions=controller(reason=no_match,id=3),controller(reason=group,pause)",
    "actions=controller(reason=invalid_ttl,userdata=01.02.0304,meter_id=0)",
    "actions=controller(userdata=0a,pause,meter_id=4)",
    "actions=set_queue:3,pop_queue,set_queue:0xffffffff",
    "actions=mod_dl_src:00:11:22:33:44:55,mod_dl_dst:0:1:2:3:4:5,1",
    "ip actions=mod_nw_src:1.2.3.4,mod_nw_dst:1.2.3.5,mod_nw_tos:32,mod_nw_ecn:1,mod_nw_ttl:4",
    "tcp actions=mod_tp_src:1,mod_tp_dst:0x10",
    "dl_vlan=1 actions=mod_vlan_vid:010,mod_vlan_pcp:3,strip_vlan",
    "ip actions=dec_ttl,dec_ttl(),dec_ttl(1,2),dec_ttl:3",
    "actions=load:1->reg0,load:5->NXM_NX_REG0[3..5],load:0x123456789->xreg1,load:1->metadata[63]",
    "actions=load:7->NXM_NX_XXREG1[64..127]",
    "actions=load:0xfffe->in_port,load:1->NXM_OF_IN_PORT[],load:1->tun_id,load:1->NXM_NX_TUN_ID[]",
    "actions=load:0x001122334455->eth_src,load:1->OXM_OF_ETH_DST[40]",
    "dl_vlan=1 actions=load:5->NXM_OF_VLAN_TCI[0..11],load:3->vlan_tci[13..15]",
    "actions=move:NXM_OF_ETH_SRC[]->eth_dst,move:in_port->reg0[0..15]",
    "actions=move:tun_id[0..31]->reg3,move:xxreg0[0..31]->xreg3[32..63],move:tun_metadata3[0..7]->reg0[0..7]",
    "tcp actions=move:tcp_src->tcp_dst,move:ip_src->ip_dst,move:nw_ttl->reg0[0..7]",
    "arp actions=load:2->arp_op,move:arp_sha->arp_tha,move:arp_spa->OXM_OF_ARP_TPA[]",
    "actions=push:reg0,pop:NXM_NX_REG1[4..7],push:NXM_OF_IN_PORT[],push:metadata[3]",
    "mpls actions=set_mpls_label(5),set_mpls_label:6,set_mpls_tc:3,set_mpls_ttl(7),dec_mpls_ttl,pop_mpls:0x800",
    "ip actions=push_mpls:0x8848,push_mpls:0x8847",
    "actions=resubmit:1,resubmit(1),resubmit(,3),resubmit(2,4),resubmit(in_port,7),resubmit(LOCAL,)",
    "ip,ct_state=+est+trk actions=resubmit(,3,ct),resubmit(1,2,ct)",
    "actions=exit,ct_clear",
    "actions=note:01.02.03.04.05.06,note:010203040506,note:01.02.03.04.05.06.07.08.09.0a.0b.0c.0d.0e",
    "tcp actions=fin_timeout(idle_timeout=10,hard_timeout=20),fin_timeout(),fin_timeout(hard_timeout=3)",
    "actions=conjunction(3,1/2),conjunction(4,64/64)",
    "actions=multipath(eth_src, 50, modulo_n, 4, 0, NXM_NX_REG0[0..7])",
    "actions=multipath(symmetric_l3l4+udp,0,hrw,256,7,reg0[0..7]),multipath(nw_dst,1,iter_hash,65536,0,reg2)",
    "actions=bundle(eth_src,0,hrw,ofport,members:1,2),bundle(symmetric_l3,7,active_backup,ofport,slaves:LOCAL)",
    "actions=bundle_load(nw_src,0,active_backup,ofport,NXM_NX_REG0[],members:1,NONE)",
    "actions=bundle(eth_src,0,hrw,ofport,members:)",
    "actions=sample(probability=3,collector_set_id=1,obs_domain_id=2,obs_point_id=4)",
    "actions=sample(probability=3,sampling_port=2,egress),sample(probability=9,sampling_port=1,ingress)",
    "actions=clone(load:1->reg0,resubmit(,3),clone(1),clone()),2",
    "ip actions=ct,ct(),ct(commit),ct(table=3),ct(commit,force,table=0,zone=7)",
    "ip actions=ct(zone=reg13[0..15],table=254,nat),ct(commit,zone=OXM_OF_METADATA[4..19],nat(src))",
    "tcp actions=ct(commit,alg=ftp),ct(alg=ftp,table=1)",
    "udp6 actions=ct(commit,alg=tftp)",
    "ip actions=ct(commit,nat(src=10.0.0.1),exec(load:1->ct_mark[3],load:5->ct_label[64..95]))",
    "ip actions=ct(commit,exec(move:reg0->NXM_NX_CT_LABEL[96..127]))",
    "ip actions=ct(commit,nat(dst=10.0.0.1-10.0.0.9:80-90,persistent,hash)),ct(commit,nat(src=))",
    "ip actions=ct(commit,nat(src=10.0.0.1:99,random)),ct(nat,table=4),ct(commit,nat(src=1.2.3.4:0))",
    "ip actions=ct(commit,nat(src=0.0.0.0))",
    "ipv6 actions=ct(commit,nat(src=[2001:db8::1]-[2001:db8::9]:1024)),ct(commit,nat(dst=::1-::2,hash))",
    "actions=check_pkt_larger(1500)->reg0[0],check_pkt_larger(80)->OXM_OF_METADATA[63],1",
    "actions=learn(),learn(table=9,idle_timeout=3,NXM_OF_VLAN_TCI[0..11],NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],output:NXM_OF_IN_PORT[])",
    "actions=learn(table=1,hard_timeout=3,fin_idle_timeout=4,fin_hard_timeout=5,priority=7,cookie=0x5)",
    "actions=learn(send_flow_rem,delete_learned,limit=5,result_dst=reg0[3],eth_type=0x800,ip_dst=1.2.3.4)",
    "actions=learn(load:5->reg0[0..4],load:reg1->reg2,output:reg0[0..15])",
    "actions=learn(in_port=LOCAL,in_port=99,eth_dst=eth_src,load:in_port->NXM_NX_REG1[16..31])",
    "actions=learn(reg0=5,reg1[0..3]=5,eth_src=00:01:02:03:04:05,eth_type=0x800,nw_proto=6,tcp_dst=80)",
    "tcp actions=learn(eth_type=0x800,nw_proto=6,tcp_dst=tcp_src,ip_src=ip_dst,reg3=ip_src)",
    "actions=learn(load:0x123456789abcdef01122334455667788->xxreg0)",
    "actions=delete_field:tun_metadata3",
];

/// Some of these have other actions' names in OpenFlow 1.0.
const SETS: &[&str] = &[
    "actions=set_field:1->reg0,set_field:0x12->xreg2,set_field:010->reg1,set_field:1->xxreg3",
    "actions=set_field:00:11:22:33:44:55->eth_src,set_field:0x5->tun_id,set_field:7->metadata",
    "dl_vlan=1 actions=set_field:4101->vlan_vid,set_field:3->vlan_pcp",
    "ip actions=set_field:1.2.3.4->ip_src,set_field:1.2.3.5->nw_dst,set_field:8->ip_dscp",
    "ip actions=set_field:32->nw_tos,set_field:5->nw_ttl,set_field:2->nw_ecn",
    "tcp actions=set_field:80->tcp_dst,set_field:81->tp_src",
    "arp actions=set_field:2->arp_op,set_field:1.2.3.4->arp_spa,set_field:0:1:2:3:4:5->arp_tha",
    "icmp6,icmp_type=135,icmp_code=0 actions=set_field:fe80::1->nd_target",
    "ipv6 actions=set_field:2001::1->ipv6_src,set_field:0x12->ipv6_label",
    "actions=set_field:1.2.3.4->tun_dst,set_field:::1->tun_ipv6_dst,set_field:3->pkt_mark",
    "mpls actions=set_field:9->mpls_label,set_field:3->mpls_tc",
    "ip actions=ct(commit,exec(set_field:7->ct_mark,set_field:0x123456789abcdef0123->ct_label))",
    "actions=set_field:0x12->tun_metadata3",
];

const SINCE_15: &[&str] = &[
    "actions=set_field:0x5/0xf->reg1,set_field:0:0:0:0:0:1/1:0:0:0:0:1->eth_dst",
    "ip actions=set_field:1.0.0.0/8->ip_src,set_field:0x12/0xff->tun_metadata3",
    "ip actions=ct(commit,exec(set_field:0x2/0x3->ct_mark))",
];

const SINCE_12: &[&str] = &[
    "actions=group:5,group:0x10",
    "actions=push_vlan:0x8100,set_field:4101->vlan_vid,push_vlan:0x88a8,pop_vlan",
    "dl_vlan=1 actions=set_vlan_vid:3,set_vlan_pcp:3",
];

const SINCE_13: &[&str] = &[
    "actions=encap(mpls),encap(ethernet),1",
    "mpls actions=decap(),decap(packet_type(ns=0,type=0)),encap(mpls_mc),1",
    "mpls actions=decap,decap(packet_type(ns=1,type=0x8847)),encap(ethernet),1",
];

#[test]
fn actions_read_and_print_as_with_ovs() {
    check(&[V10, V13, V15], ALL);
    check(&[V12, V13, V14, V15], SETS);
    check(&[V15], SINCE_15);
    check(&[V12, V13, V15], SINCE_12);
    check(&[V13, V15], SINCE_13);
    check(&[V11], &["dl_vlan=1 actions=set_vlan_vid:3,mod_vlan_pcp:3,pop_vlan"]);
    check(&[V10], &["actions=enqueue(1,2),enqueue:LOCAL:0x10"]);
    check(&[V10, V13], &["actions=set_tunnel:5,set_tunnel64:0x7"]);
    let wide = "actions=load:0x123456789abcdef01122334455667788->xxreg0,load:1->NXM_NX_XXREG1[]";
    check(&[V10, V13], &[wide]);
}

/// Every field by its name, as ovs-ofctl knows it.
#[test]
fn fields_have_the_names_that_ovs_gives_them() {
    let registers = (0..16).map(flow::Field::Reg).chain((0..8).map(flow::Field::Xreg));
    let more = [flow::Field::Xxreg(3), flow::Field::TunMetadata(63)];
    let all = flow::FIELDS.iter().copied().chain(registers).chain(more);
    let texts: Vec<String> = all.map(|f| format!("actions=push:{}", f.name())).collect();
    let mut differ = Vec::new();
    for text in &texts {
        let out = Command::new("ovs-ofctl").args(["parse-flow", text]).output().unwrap();
        let theirs = String::from_utf8_lossy(&out.stdout);
        let Some((_, theirs)) = theirs.split_once("actions=") else { continue };
        let list = parse_actions(&text["actions=".len()..], &|_| None).unwrap();
        if actions_text(&list) != theirs.trim() {
            differ.push(format!("{text}: {} and not {}", actions_text(&list), theirs.trim()));
        }
    }
    assert!(differ.is_empty(), "{differ:#?}");
}
