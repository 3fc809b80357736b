//! What decisions say for collectors; OVS's own tests say more of it (`scripts/judge.sh`).

use crate::tests::{Lab, apply, flow, out, packet};
use crate::*;
use ::action::{Decision, Op, PuntClass};
use ::flow::at;
use export::netflow::output;
use openflow::*;

fn lab(export: ExportConfig) -> Lab {
    let mut lab = Lab::new();
    configure(&mut lab, export);
    lab
}

fn configure(lab: &mut Lab, export: ExportConfig) {
    let config = lab.sw.bridge_config(lab.br).unwrap().clone();
    lab.sw.configure_bridge(lab.br, BridgeConfig { export, ..config }).unwrap();
    assert!(!lab.sw.take_regions().is_empty(), "what was decided before goes");
}

fn netflow() -> ExportConfig {
    ExportConfig { netflow: true, ..ExportConfig::default() }
}

fn exported(lab: &mut Lab, text: &str) -> Option<FlowExport> {
    let effects = lab.decide(&packet(text)).effects?;
    lab.sw.effects(&effects, 1);
    FlowExport::of(&*effects).cloned()
}

#[test]
fn netflow_tells_flows_of_ipv4_apart_and_nothing_else() {
    let mut lab = lab(netflow());
    lab.add(flow(0, 0, "", apply(vec![out(2)])));
    let text = "in_port=1,tcp,nw_src=192.0.2.1,nw_dst=192.0.2.2,nw_tos=184,tp_src=7,tp_dst=80,tcp_flags=0x12";
    let d = lab.decide(&packet(text));
    for (at, bits) in [(at::TP_SRC, 0xffff), (at::TP_DST, 0xffff), (at::TCP_FLAGS, 0xfff)] {
        assert_eq!(d.mask.u16(at), bits);
    }
    assert_eq!([at::IP_SRC, at::IP_DST].map(|at| d.mask.u32(at)), [!0; 2]);
    assert_eq!([at::PROTO, at::TOS, at::TTL].map(|at| d.mask.u8(at)), [0xff, 0xfc, 0]);
    let exported = exported(&mut lab, text).unwrap();
    assert_eq!((exported.bridge, exported.output, exported.tcp_flags), (lab.br, 2, 0x12));
    let f = exported.flow;
    assert_eq!((f.in_port, f.src, f.dst), (1, [192, 0, 2, 1], [192, 0, 2, 2]));
    assert_eq!((f.proto, f.tos, f.ports), (6, 184, (7, 80)));
    for other in ["in_port=1,ipv6", "in_port=1,arp"] {
        let d = lab.decide(&packet(other));
        assert!(d.effects.is_none() && d.mask.u32(at::IP_SRC) == 0, "{other}");
    }
    configure(&mut lab, ExportConfig::default());
    let d = lab.decide(&packet(text));
    assert!(d.effects.is_none() && d.mask.u32(at::IP_SRC) == 0);
}

#[test]
fn where_packets_went_is_one_port_or_a_word_for_others() {
    let mut lab = lab(netflow());
    let set = |lab: &mut Lab, list| lab.add(flow(0, 1, "in_port=1", apply(list)));
    let udp = "in_port=1,udp,dl_src=02:00:00:00:00:01,dl_dst=02:00:00:00:00:02";
    for (list, is) in [
        (vec![], output::DROP),
        (vec![out(3)], 3),
        (vec![out(1), out(3)], 3),
        (vec![out(2), out(3)], output::MULTI),
        (vec![out(port::FLOOD)], output::FLOOD),
        (vec![out(3), out(port::NORMAL)], output::FLOOD),
        (vec![out(port::CONTROLLER)], output::DROP),
    ] {
        set(&mut lab, list);
        assert_eq!(exported(&mut lab, udp).unwrap().output, is);
    }
    set(&mut lab, vec![out(port::NORMAL)]);
    lab.add(flow(0, 1, "in_port=2", apply(vec![out(port::NORMAL)])));
    exported(&mut lab, "in_port=2,udp,dl_src=02:00:00:00:00:02,dl_dst=02:00:00:00:00:01").unwrap();
    assert_eq!(exported(&mut lab, udp).unwrap().output, 2, "its address is known now");
}

fn sflow(chance: u32) -> ExportConfig {
    let sflow = Some(SflowSampling { chance, header_bytes: 128 });
    ExportConfig { sflow, ..ExportConfig::default() }
}

fn note(d: &Decision) -> (u32, &SflowNote) {
    let (chance, op) = match &d.ops[0] {
        Op::Sample { chance, ops } => (*chance, &ops[0]),
        op => (u32::MAX, op),
    };
    let Op::Punt(punt) = op else { panic!("{:?}", d.ops) };
    assert_eq!((punt.class, punt.max_len), (PuntClass::Sample, 128));
    let sample = punt.context.downcast_ref::<SampleContext>().unwrap();
    assert_eq!(sample.in_port, 1);
    let Sampled::Sflow(note) = &sample.what else { panic!("{:?}", sample.what) };
    (chance, note)
}

#[test]
fn sflow_samples_what_comes_in_and_says_how_it_goes() {
    let mut lab = lab(sflow(1 << 20));
    let set = |lab: &mut Lab, list| lab.add(flow(0, 1, "in_port=1", apply(list)));
    set(&mut lab, vec![out(2)]);
    let d = lab.decide(&packet("in_port=1,udp,dl_vlan=5"));
    assert_eq!((d.ops.len(), d.mask.u32(at::IP_SRC)), (2, 0));
    let (chance, n) = note(&d);
    assert_eq!((chance, n.outputs, n.output, n.vlan_tci), (1 << 20, 1, Some(12), 5));
    set(&mut lab, vec![]);
    assert_eq!(note(&lab.decide(&packet("in_port=1,udp"))).1.outputs, 0, "drops are sampled, too");
    set(&mut lab, vec![out(port::FLOOD)]);
    assert_eq!(note(&lab.decide(&packet("in_port=1,udp"))).1.outputs, 3);
    configure(&mut lab, sflow(u32::MAX));
    set(&mut lab, vec![Action::PushMpls { ethertype: 0x8847 }, out(2)]);
    let d = lab.decide(&packet("in_port=1,mpls,mpls_label=7,mpls_bos=1"));
    let (chance, n) = note(&d);
    assert_eq!((chance, n.labels.len()), (u32::MAX, 2));
    assert!(n.labels.iter().all(|l| l >> 12 == 7));
    configure(&mut lab, ExportConfig::default());
    assert_eq!(lab.decide(&packet("in_port=1,udp")).ops.len(), 2);
}
