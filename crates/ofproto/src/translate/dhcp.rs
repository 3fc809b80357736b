//! Replies of DHCP servers, which in-band control has go to LOCAL whatever flows say.

use crate::in_band::{DHCP_CLIENT, DHCP_SERVER};
use crate::translate::special::is_port;
use crate::translate::xlate::Xlate;
use action::Op;
use flow::{Key, Mask, at, frag};
use openflow::port;
use wire::{ETH_IPV4, IP_UDP};

/// True for a packet of a DHCP server to a client. Looks at no more bits than are needed; every
/// decision depends on the Ethertype and the bits about fragments anyway.
pub(super) fn is_dhcp_reply(key: &Key, wc: &mut Mask) -> bool {
    if key.u16(at::ETH_TYPE) != ETH_IPV4 || key.u8(at::FRAG) & frag::LATER != 0 {
        return false;
    }
    wc.set_u8(at::PROTO, 0xff);
    key.u8(at::PROTO) == IP_UDP
        && is_port(key, wc, at::TP_SRC, DHCP_SERVER)
        && is_port(key, wc, at::TP_DST, DHCP_CLIENT)
}

impl Xlate<'_, '_> {
    /// Sends a reply of a DHCP server to LOCAL, too, if the bridge is controlled in-band.
    pub(super) fn admit_dhcp(&mut self) {
        let wanted = self.bridge.config.in_band && self.end.failed.is_none();
        if !wanted || !is_dhcp_reply(&self.key, &mut self.wc) {
            return;
        }
        let local = self.bridge.port(port::LOCAL).and_then(|p| p.spec.dp_port);
        let sent = |op: &Op| matches!(op, Op::Output(to) if Some(*to) == local);
        if !self.answer.decision.ops.iter().any(sent) {
            self.trace_detail(|| "outputting DHCP packet to local port for in-band control".into());
            self.output_port(port::LOCAL, 0);
        }
    }
}
