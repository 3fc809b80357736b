//! Round trips over all kinds of actions, errors, and the bounds of the parser.

use super::*;
use crate::actions_text;

fn parse(text: &str) -> Parsed<Vec<Action>> {
    parse_actions(text, &|name| (name == "eth0").then_some(7))
}

/// The place of a kind of action in [`KINDS`]; a new kind needs a text there.
fn kind(a: &Action) -> usize {
    use Action::*;
    match a {
        Output { .. } => 0,
        OutputReg { .. } => 1,
        Controller { .. } => 2,
        Enqueue { .. } => 3,
        SetQueue(_) => 4,
        PopQueue => 5,
        Group(_) => 6,
        SetField { .. } => 7,
        SetTunMetadata(_) => 8,
        Load { .. } => 9,
        Move { .. } => 10,
        Push(_) => 11,
        Pop(_) => 12,
        SetVlanVid { .. } => 13,
        SetVlanPcp { .. } => 14,
        StripVlan { .. } => 15,
        SetEthSrc(_) => 16,
        SetEthDst(_) => 17,
        SetIpSrc(_) => 18,
        SetIpDst(_) => 19,
        SetIpDscp(_) => 20,
        SetIpEcn(_) => 21,
        SetIpTtl(_) => 22,
        SetL4Src(_) => 23,
        SetL4Dst(_) => 24,
        PushVlan { .. } => 25,
        PushMpls { .. } => 26,
        PopMpls { .. } => 27,
        SetMplsLabel(_) => 28,
        SetMplsTc(_) => 29,
        SetMplsTtl(_) => 30,
        DecMplsTtl => 31,
        DecTtl { .. } => 32,
        SetTunnel { .. } => 33,
        Resubmit { .. } => 34,
        Note(_) => 35,
        Exit => 36,
        Test(_) => 37,
        Clone(_) => 38,
        FinTimeout { .. } => 39,
        Conjunction { .. } => 40,
        Learn(_) => 41,
        Bundle(_) => 42,
        Multipath { .. } => 43,
        Sample { .. } => 44,
        Meter(_) => 45,
        Ct(_) => 46,
        Nat(_) => 47,
        CtClear => 48,
        CheckPktLarger { .. } => 49,
        DeleteField(_) => 50,
        Encap(_) => 51,
        Decap(_) => 52,
        DecNshTtl => 53,
    }
}

/// Texts of each kind, in the order of [`kind`]. A `nat` is in a `ct` only.
const KINDS: [&[&str]; 54] = [
    &["output:1", "LOCAL", "NORMAL", "output(port=3,max_len=100)"],
    &["output:NXM_NX_REG0[]", "output:NXM_OF_IN_PORT[]"],
    &[
        "CONTROLLER:65535",
        "controller(reason=no_match,max_len=9,id=3,userdata=01.a2,pause,meter_id=4)",
    ],
    &["enqueue:1:2", "enqueue:LOCAL:3"],
    &["set_queue:3"],
    &["pop_queue"],
    &["group:4294967295"],
    &[
        "set_field:1.2.0.0/16->ip_src",
        "set_field:4101->vlan_vid",
        "set_field:2001:db8::1->ipv6_dst",
    ],
    &["set_field:0x12->tun_metadata3", "set_field:0x12/0xff->tun_metadata63"],
    &["load:0x5->NXM_NX_REG0[3..5]", "load:0xfffe->NXM_OF_IN_PORT[]", "load:0->NXM_NX_TUN_ID[]"],
    &["move:NXM_OF_ETH_SRC[0..15]->OXM_OF_METADATA[48..63]"],
    &["push:NXM_NX_XXREG1[]", "push:NXM_NX_TUN_METADATA1[0..63]"],
    &["pop:OXM_OF_PKT_REG7[5]"],
    &["mod_vlan_vid:4095", "set_vlan_vid:7"],
    &["mod_vlan_pcp:7", "set_vlan_pcp:0"],
    &["strip_vlan", "pop_vlan"],
    &["mod_dl_src:00:11:22:33:44:55"],
    &["mod_dl_dst:ff:ff:ff:ff:ff:ff"],
    &["mod_nw_src:1.2.3.4"],
    &["mod_nw_dst:0.0.0.0"],
    &["mod_nw_tos:252"],
    &["mod_nw_ecn:3"],
    &["mod_nw_ttl:255"],
    &["mod_tp_src:65535"],
    &["mod_tp_dst:1"],
    &["push_vlan:0x8100", "push_vlan:0x88a8"],
    &["push_mpls:0x8847", "push_mpls:0x8848"],
    &["pop_mpls:0x0800"],
    &["set_mpls_label(1048575)"],
    &["set_mpls_tc(7)"],
    &["set_mpls_ttl(255)"],
    &["dec_mpls_ttl"],
    &["dec_ttl", "dec_ttl(1,65535)"],
    &["set_tunnel:0x5", "set_tunnel64:0xffffffff"],
    &["resubmit:7", "resubmit(,3)", "resubmit(7,3)", "resubmit(,3,ct)", "resubmit:LOCAL"],
    &["note:01.02.03.04.05.06"],
    &["exit"],
    &["debug_slow", "debug_recirc"],
    &["clone(drop)", "clone(output:1,clone(load:0x1->NXM_NX_REG0[],ct_clear),output:2)"],
    &["fin_timeout(idle_timeout=3)", "fin_timeout()"],
    &["conjunction(4294967295,64/64)", "conjunction(1,1/2),note:00.00.00.00.00.00"],
    &["learn(table=9,idle_timeout=1,priority=7,delete_learned,cookie=0x5,limit=6,\
       result_dst=NXM_NX_REG0[3],eth_type=0x800,in_port=99,NXM_OF_VLAN_TCI[0..11],\
       NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],load:0x5->NXM_NX_REG0[0..4],output:NXM_OF_IN_PORT[])"],
    &[
        "bundle(eth_src,0,hrw,ofport,members:1,LOCAL,ANY)",
        "bundle(nw_src,0,active_backup,ofport,members:)",
        "bundle_load(symmetric_l4,9,active_backup,ofport,NXM_NX_REG0[0..15],members:1,2)",
    ],
    &["multipath(symmetric_l3l4+udp,50,iter_hash,65536,7,NXM_NX_REG0[])"],
    &[
        "sample(probability=3,collector_set_id=1,obs_domain_id=2,obs_point_id=4,sampling_port=1,egress)",
    ],
    &["meter:3"],
    &[
        "ct()",
        "ct(commit,force,table=0,zone=65535,exec(set_field:0x7->ct_mark,load:0x1->NXM_NX_CT_LABEL[3]),alg=ftp)",
        "ct(zone=NXM_NX_REG0[0..15])",
    ],
    &[
        "ct(nat)",
        "ct(commit,nat(src=10.0.0.1-10.0.0.9:80-90,persistent,hash))",
        "ct(commit,nat(dst=[2001:db8::1]:53,random))",
        "ct(commit,nat(src=::1-::2))",
    ],
    &["ct_clear"],
    &["check_pkt_larger(65535)->NXM_NX_REG0[31]"],
    &["delete_field:tun_metadata0"],
    &[
        "encap(ethernet)",
        "encap(mpls)",
        "encap(mpls_mc)",
        "encap(nsh)",
        "encap(nsh(md_type=1))",
        "encap(nsh(md_type=2,tlv(0x1000,10,0x12345678),tlv(0x2000,20,0xfedcba9876543210)))",
    ],
    &["decap()", "decap(packet_type(ns=1,type=0x800))", "decap(packet_type(ns=0,type=0))"],
    &["dec_nsh_ttl"],
];

#[test]
fn every_kind_comes_back_from_its_text() {
    for (place, texts) in KINDS.iter().enumerate() {
        for text in *texts {
            let list = parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(actions_text(&list), *text);
            let own = match &list[0] {
                Action::Ct(ct) if place == 47 => kind(&ct.actions[0]),
                a => kind(a),
            };
            assert_eq!(own, place, "{text}");
            assert_eq!(parse(&actions_text(&list)), Ok(list), "{text}");
        }
    }
    let texts = |except: usize| {
        let all = KINDS.iter().enumerate().filter(|(place, _)| *place != except);
        all.flat_map(|(_, texts)| texts.iter().copied()).collect::<Vec<_>>().join(",")
    };
    assert_eq!(actions_text(&parse(&texts(40)).unwrap()), texts(40), "all but conjunctions");
}

#[test]
fn names_of_ports_and_other_ways_of_writing() {
    for (text, same) in [
        ("", "drop"),
        ("drop", "drop"),
        ("eth0,output:eth0 , \"eth0\"", "output:7,output:7,output:7"),
        ("Normal,in_port,65533", "NORMAL,IN_PORT,CONTROLLER:65535"),
        ("load:1->xxreg0", "load:0x1->NXM_NX_XXREG0[0..63],load:0->NXM_NX_XXREG0[64..127]"),
        ("set_field:5->vlan_vid", "set_field:4101->vlan_vid"),
        ("dec_ttl(),dec_ttl:2", "dec_ttl,dec_ttl(2)"),
        ("resubmit(eth0,4,ct)", "resubmit(7,4,ct)"),
    ] {
        assert_eq!(parse(text).map(|l| actions_text(&l)), Ok(same.into()), "{text}");
    }
}

/// Each error names what was not understood.
#[test]
fn errors_name_what_is_wrong() {
    for (text, named) in [
        ("frob:1", "unknown action frob"),
        ("1,drop", "\"drop\" must not be accompanied"),
        ("goto_table:1", "goto_table instruction not allowed here"),
        ("output:nowhere", "nowhere: output to unknown port"),
        ("clone(1", "clone: missing )"),
        ("clone(1,frob)", "unknown action frob"),
        ("set_field:1->frob", "frob is not a valid OXM field name"),
        ("set_field:zz->reg0", "zz: not a number (as a value of reg0)"),
        ("set_field:1->eth_type", "eth_type is read-only"),
        ("set_field:1", "1: missing `->'"),
        ("load:1->frob[]", "frob[]: unknown field `frob'"),
        ("load:16->reg0[3..4]", "value 0x10 does not fit into 2 bits"),
        ("load:1->reg0[40]", "reg0[40]: the field has bits 0 to 31"),
        ("load:1->reg0[3..2]", "reg0[3..2]"),
        ("load:1->reg0[1..", "reg0[1..: missing ]"),
        ("load:1->NXM_NX_REG00[]", "unknown field `NXM_NX_REG00'"),
        ("move:reg0->reg1[0..3]", "source field is 32 bits wide but destination is 4 bits wide"),
        ("set_field:1->ct_mark", "cannot set CT fields outside of ct action"),
        ("nat", "Cannot have NAT action outside of \"ct\" action"),
        ("ct(commit,exec(1))", "1: not allowed inside a ct action"),
        ("clone(meter:1)", "meter: not allowed inside a clone"),
        ("ct(force)", "\"force\" flag requires \"commit\" flag."),
        ("ct(exec(load:1->ct_mark))", "CT action requires commit flag"),
        ("ct(commit,nat(src=1.2.3.4-1.2.3.3))", "invalid nat range \"1.2.3.4-1.2.3.3\""),
        ("ct(commit,nat(src=[::1]x:5))", "invalid nat range"),
        ("ct(commit,nat(src=1.2.3.4-::1))", "invalid nat range"),
        ("ct(commit,nat(hash))", "Flags allowed only with"),
        ("ct(zone=reg0)", "a zone has 16 bits, this has 32"),
        ("conjunction(1,1/2),2", "\"conjunction\" actions may be used along with \"note\""),
        ("conjunction(1,3/2)", "clause index must be less than or equal"),
        ("learn(frob)", "unknown keyword frob"),
        ("learn(load:1->eth_type)", "read-only"),
        ("learn(eth_dst=vlan_tci)", "vlan_tci: the source has 16 bits and the destination 48"),
        ("note:1", "bad hex digit in `note' argument 1"),
        ("set_tunnel:0x100000000", "0x100000000"),
        ("bundle(eth_src,0,hrw,ofport,1)", "expected `members'"),
        ("multipath(eth_src,0,hrw,257,0,reg0[0..7])", "256 possible values"),
        ("encap(gre)", "Encap hdr not supported: gre"),
        ("encap(nsh(type=1))", "Invalid property: type"),
        ("encap(nsh(md_type))", "Value missing for encap property"),
        ("encap(nsh(md_type=3))", "invalid md_type"),
        ("encap(nsh(tlv(,,)))", "Invalid NSH TLV header: ,,"),
        ("encap(nsh(tlv(0x1,2,0x123)))", "Invalid NSH TLV header: 0x1,2,0x123"),
    ] {
        let error = parse(text).expect_err(text).to_string();
        assert!(error.contains(named), "{text}: {error}");
    }
}

#[test]
fn a_text_is_bounded_in_length_number_and_depth() {
    let many = |n: usize| vec!["1"; n].join(",");
    assert_eq!(parse(&many(ACTIONS_MAX)).unwrap().len(), ACTIONS_MAX);
    assert_eq!(parse(&many(ACTIONS_MAX + 1)), Err(too_many()));
    let inside = format!("clone({})", many(ACTIONS_MAX));
    assert_eq!(parse(&inside), Err(too_many()), "those inside count");

    let deep = |n: usize| format!("{}1{}", "clone(".repeat(n), ")".repeat(n));
    assert!(parse(&deep(MAX_DEPTH.into())).is_ok());
    let error = parse(&deep(usize::from(MAX_DEPTH) + 1)).unwrap_err().to_string();
    assert!(error.contains("lists deep"), "{error}");

    let long = |n: usize| format!("note:{}", "0".repeat(n - 5));
    assert!(parse(&long(TEXT_MAX - 1)).is_ok() || parse(&long(TEXT_MAX)).is_ok());
    let error = parse(&long(TEXT_MAX + 1)).unwrap_err().to_string();
    assert!(error.contains("bytes"), "{error}");
}

/// What a text is cut to or changed to is an error or a list, never a panic.
#[test]
fn damaged_texts_do_no_harm() {
    for text in KINDS.iter().flat_map(|texts| texts.iter()) {
        for at in 0..text.len() {
            let _ = parse(&text[..at]);
            for c in [",", "(", ")", "[", "]", "->", ":", "=", "-", "0x", "ä", "\""] {
                let _ = parse(&format!("{}{c}{}", &text[..at], &text[at..]));
                let _ = parse(&format!("{}{c}{}", &text[..at], &text[at + 1..]));
            }
        }
    }
}
