//! NXT_CT_FLUSH and NXT_CT_FLUSH_ZONE: connections end for a controller.

use crate::appctl::dpctl;
use crate::state::Shared;
use crate::vlog;
use openflow::{CtFlush, CtTuple};
use std::net::{IpAddr, Ipv6Addr};

const MODULE: &str = "ct_dpif";
const ICMP: [u8; 2] = [1, 58];

/// Ends connections. That the message names a single one that there is not is no error (as in OVS).
pub async fn end(state: &Shared, flush: &CtFlush) {
    let tuple = |t: &CtTuple| conntrack::TupleFilter {
        src: t.src,
        dst: t.dst,
        sport: t.sport.or(t.icmp_id),
        dport: t.dport,
        icmp_type: t.icmp_type,
        icmp_code: t.icmp_code,
    };
    let filter = conntrack::Filter {
        zone: flush.zone,
        proto: flush.proto,
        orig: tuple(&flush.orig),
        reply: tuple(&flush.reply),
    };
    if vlog::enabled_in(MODULE, vlog::Level::Dbg) {
        vlog::dbg!(MODULE, "{}: ct_flush: {}", dpctl::name(&state.borrow()), text(flush));
    }
    let walker = state.borrow().ct.walker.clone();
    let _ = walker.flush(filter).await;
}

/// What is to end, as ovs-vswitchd's log has it.
fn text(flush: &CtFlush) -> String {
    if *flush == (CtFlush { zone: flush.zone, ..CtFlush::default() }) {
        return flush.zone.map_or("<all>".into(), |zone| format!("zone {zone}"));
    }
    let (zone, proto) = (flush.zone.unwrap_or(0), flush.proto.unwrap_or(0));
    let addresses = [flush.orig.src, flush.orig.dst, flush.reply.src, flush.reply.dst];
    let ipv6 = addresses.iter().flatten().any(IpAddr::is_ipv6);
    let [orig, reply] = [&flush.orig, &flush.reply].map(|t| tuple_text(t, proto, ipv6));
    format!("zone={zone} '{orig},ct_nw_proto={proto}' '{reply}'")
}

fn tuple_text(t: &CtTuple, proto: u8, ipv6: bool) -> String {
    let [src, dst] = [t.src, t.dst].map(|a| a.unwrap_or(Ipv6Addr::UNSPECIFIED.into()));
    let kind = if ipv6 { "ipv6" } else { "nw" };
    let ends = format!("ct_{kind}_src={src},ct_{kind}_dst={dst}");
    if ICMP.contains(&proto) {
        let (kind, code) = (t.icmp_type.unwrap_or(0), t.icmp_code.unwrap_or(0));
        return format!(
            "{ends},icmp_id={},icmp_type={kind},icmp_code={code}",
            t.icmp_id.unwrap_or(0)
        );
    }
    format!("{ends},ct_tp_src={},ct_tp_dst={}", t.sport.unwrap_or(0), t.dport.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_names_what_is_to_end() {
        assert_eq!(text(&CtFlush::default()), "<all>");
        assert_eq!(text(&CtFlush { zone: Some(123), ..CtFlush::default() }), "zone 123");
        let from = CtTuple { src: "10.1.1.1".parse().ok(), sport: Some(1), ..CtTuple::default() };
        let flush = CtFlush { proto: Some(17), orig: from, ..CtFlush::default() };
        let want = "zone=0 'ct_nw_src=10.1.1.1,ct_nw_dst=::,ct_tp_src=1,ct_tp_dst=0,ct_nw_proto=17' \
                    'ct_nw_src=::,ct_nw_dst=::,ct_tp_src=0,ct_tp_dst=0'";
        assert_eq!(text(&flush), want);
    }
}
