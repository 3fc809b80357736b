//! Actions that people type for `ofproto/trace-packet-out`.

use ofproto::{actions_text, parse_actions};
use openflow::Version;
use openflow::actions::decode_actions;
use openflow::actions_out::encode_actions;
use openflow::check::check_any;

/// Bytes of actions that a message may have.
const MESSAGE_MOST: usize = 60_000;
/// Actions of a list of which each is looked at further; texts may have twice as many.
const LOOKED_AT: usize = 1000;

/// Is read within bounds; what is read is what its own text says, and what a message says.
pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let ports = |name: &str| (name == "eth0").then_some(7);
    let read = crate::within(50, "actions' text", || parse_actions(&text, &ports));
    let Ok(list) = read else { return };
    let own = actions_text(&list);
    if list.len() > LOOKED_AT || own.len() > MESSAGE_MOST {
        return;
    }
    let again = parse_actions(&own, &|_| None).unwrap_or_else(|e| panic!("{own}: {e}"));
    assert_eq!(actions_text(&again), own);
    if check_any(&list).is_err() {
        return;
    }
    let mut message = Vec::new();
    encode_actions(Version::V10, &list, &mut message);
    if message.len() <= MESSAGE_MOST {
        decode_actions(Version::V10, &message).unwrap_or_else(|e| panic!("{own}: {e}"));
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    [
        "output:1,LOCAL,normal eth0,output(port=3,max_len=100),output:reg0[0..15],enqueue:1:2",
        "controller(reason=no_match,max_len=9,id=3,userdata=01.a2,pause,meter_id=4),group:5",
        "set_field:1.2.0.0/16->ip_src,set_field:4101->vlan_vid,set_field:0x12/0xff->tun_metadata3",
        "load:0x5->NXM_NX_REG0[3..5],load:1->xxreg1,move:eth_src[0..15]->metadata[48..63],pop:reg2",
        "mod_vlan_vid:5,mod_dl_src:00:11:22:33:44:55,mod_nw_tos:32,mod_tp_dst:80,push_vlan:0x8100",
        "dec_ttl(1,2),push_mpls:0x8847,set_mpls_label:5,set_tunnel:0x5,resubmit(7,3,ct),note:01.02",
        "clone(1,clone(load:1->reg0[],ct_clear),2),fin_timeout(idle_timeout=3),exit",
        "conjunction(1,1/2),conjunction(2,64/64)",
        "learn(table=9,priority=7,result_dst=reg0[3],eth_type=0x800,NXM_OF_VLAN_TCI[0..11],\
         eth_dst=eth_src,load:5->reg0[0..4],in_port=99,output:in_port)",
        "bundle_load(symmetric_l4,9,active_backup,ofport,reg0[0..15],members:1,2)",
        "multipath(eth_src,50,hrw,4,0,reg0),sample(probability=3,sampling_port=1,egress)",
        "ct(commit,zone=reg0[0..15],nat(src=10.0.0.1-10.0.0.9:80-90,hash),exec(load:1->ct_mark))",
        "ct(commit,nat(dst=[2001:db8::1]:53),alg=ftp),check_pkt_larger(99)->reg0[1],decap()",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}
