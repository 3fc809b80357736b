//! What collectors are to know of the packets of a decision: to which flow they belong, and
//! where they went.

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

/// DSCP in a TOS byte.
const DSCP: u8 = 0xfc;

impl Xlate<'_, '_> {
    /// A packet fresh from a port, or from a controller, is about to enter the tables.
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

    /// The decision is about packets of one flow of IPv4 only, and one set of TCP flags.
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

    /// The packet is sent to a port. To NetFlow a mirror's copy does not count.
    pub(super) fn export_sent(&mut self, to: &PortView) {
        self.answer.export.outputs += 1;
        self.answer.export.last = to.spec.dp_port;
        if !self.mirror.copying {
            self.answer.export.output = to.spec.of_port as u16;
        }
    }

    /// Ports that the packet was sent to so far; [`Xlate::export_way`] forgets those since then.
    pub(super) fn export_outputs(&self) -> u32 {
        self.answer.export.outputs
    }

    /// The way of an outer packet is not the packet's.
    pub(super) fn export_way(&mut self, before: u32) {
        self.answer.export.outputs = before;
    }

    /// The packet was flooded.
    pub(super) fn export_flooded(&mut self) {
        self.answer.export.output = output::FLOOD;
    }

    /// An output action begins: what others did before it.
    pub(super) fn begin_export_output(&mut self) -> u16 {
        std::mem::replace(&mut self.answer.export.output, output::DROP)
    }

    /// An output action has ended. Flooding outweighs the rest, and two outputs are several.
    pub(super) fn end_export_output(&mut self, before: u16) {
        let own = self.answer.export.output;
        self.answer.export.output = match (before, own) {
            (output::FLOOD, _) | (_, output::FLOOD) => output::FLOOD,
            (before, output::DROP) => before,
            (output::DROP, own) => own,
            _ => output::MULTI,
        };
    }

    /// Says to which flow the packets of the decision belong.
    pub(super) fn finish_export(&mut self) {
        if self.answer.export.fresh {
            // In front of all: sFlow's first.
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
