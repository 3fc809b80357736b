//! What collectors are to know of a decision's packets: the flow to which they belong, and where
//! they went.

use crate::fields;
use crate::published::PortView;
use crate::translate::effects::FlowExport;
use crate::translate::state::Exporting;
use crate::translate::xlate::Xlate;
use crate::types::BridgeId;
use export::netflow::{IpFlow, output};
use flow::{Field, at};
use openflow::{OfPort, port};
use wire::{ETH_IPV4, IP_ICMP, IP_TCP};

/// The DSCP bits of a TOS byte.
const DSCP: u8 = 0xfc;

impl Xlate<'_, '_> {
    /// Begins the export for a packet that was just received, or is a controller's, before the
    /// tables.
    pub(super) fn begin_export(&mut self) {
        let from = self.in_port();
        self.answer.export.from = from;
        let export = &self.bridge.config.export;
        if export.sflow.is_some() || export.ipfix.is_some() {
            (self.answer.export.fresh, self.answer.export.first) = (true, self.key);
        }
        if self.bridge.config.export.netflow && from != port::CONTROLLER {
            self.begin_netflow(from);
        }
    }

    /// Makes the decision be about packets of one IPv4 flow, with one set of TCP flags, only.
    fn begin_netflow(&mut self, from: OfPort) {
        if self.key.u16(at::ETH_TYPE) != ETH_IPV4 {
            return;
        }
        for field in [Field::Ipv4Src, Field::Ipv4Dst, Field::IpDscp] {
            field.unwildcard(&mut self.wc);
        }
        self.wc.set_u8(at::PROTO, 0xff);
        let (key, proto) = (&self.key, self.key.u8(at::PROTO));
        let ports = (key.u16(at::TP_SRC), key.u16(at::TP_DST));
        let ports = match proto {
            p if fields::WITH_PORTS.contains(&p) => {
                self.wc.set_u16(at::TP_SRC, 0xffff);
                self.wc.set_u16(at::TP_DST, 0xffff);
                ports
            }
            IP_ICMP => {
                self.wc.set_u8(at::TP_SRC + 1, 0xff);
                self.wc.set_u8(at::TP_DST + 1, 0xff);
                ports
            }
            _ => (0, 0),
        };
        if proto == IP_TCP {
            Field::TcpFlags.unwildcard(&mut self.wc);
            self.answer.export.tcp_flags = self.key.u16(at::TCP_FLAGS) as u8;
        }
        let key = &self.key;
        self.answer.export.flow = Some(Box::new(IpFlow {
            in_port: from as u16,
            src: key.get(at::IP_SRC),
            dst: key.get(at::IP_DST),
            proto,
            tos: key.u8(at::TOS) & DSCP,
            ports,
        }));
    }

    /// Records that the packet is sent to a port. NetFlow does not count a mirror's copy.
    pub(super) fn export_sent(&mut self, to: &PortView) {
        self.answer.export.outputs += 1;
        self.answer.export.last = to.spec.dp_port;
        if !self.mirror.copying {
            self.answer.export.output = to.spec.of_port as u16;
        }
    }

    /// Number of ports to which the packet was sent so far, for [`Xlate::export_way`].
    pub(super) fn export_outputs(&self) -> u32 {
        self.answer.export.outputs
    }

    /// Restores that number: ports to which an outer packet is sent do not count as the packet's.
    pub(super) fn export_way(&mut self, before: u32) {
        self.answer.export.outputs = before;
    }

    /// Records that the packet was flooded.
    pub(super) fn export_flooded(&mut self) {
        self.answer.export.output = output::FLOOD;
    }

    /// Begins an output action; returns the output of earlier actions.
    pub(super) fn begin_export_output(&mut self) -> u16 {
        std::mem::replace(&mut self.answer.export.output, output::DROP)
    }

    /// Ends an output action. Flooding takes precedence, and two outputs count as "several".
    pub(super) fn end_export_output(&mut self, before: u16) {
        let own = self.answer.export.output;
        self.answer.export.output = match (before, own) {
            (output::FLOOD, _) | (_, output::FLOOD) => output::FLOOD,
            (before, output::DROP) => before,
            (output::DROP, own) => own,
            _ => output::MULTI,
        };
    }

    /// Completes the decision for export.
    pub(super) fn finish_export(&mut self) {
        if self.answer.export.fresh {
            // IPFIX first, so that sFlow's sample is in front of all.
            self.finish_ipfix();
            self.finish_sflow();
        }
        let Exporting { flow, tcp_flags, output, .. } = std::mem::take(&mut self.answer.export);
        if let Some(flow) = flow {
            let bridge = BridgeId(self.bridge.id);
            let export = FlowExport { bridge, flow: *flow, output, tcp_flags };
            self.answer.effects.export = Some(Box::new(export));
        }
    }
}
