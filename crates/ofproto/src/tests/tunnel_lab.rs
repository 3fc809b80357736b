//! A switch with a tunnel and a route for its outer packets.

use crate::tests::Lab;
use crate::tunnel::Route;
use crate::*;
use ::action::TunnelKind;
use openflow::Action;

/// A switch whose port 5 is a Geneve tunnel (datapath port 30), of which flows say where it goes.
pub(crate) fn geneve_lab() -> Lab {
    lab_with(TunnelKind::Geneve, ErspanSpec::default())
}

/// A switch whose port 5 is a tunnel of this kind (datapath port 30), of which flows say where it
/// goes.
pub(crate) fn lab_with(kind: TunnelKind, erspan: ErspanSpec) -> Lab {
    lab_of(spec_of(kind, erspan))
}

/// A tunnel of this kind, of which flows say where it goes.
pub(crate) fn spec_of(kind: TunnelKind, erspan: ErspanSpec) -> TunnelSpec {
    TunnelSpec {
        kind,
        mode: if kind == TunnelKind::Gtpu { PacketMode::LegacyL3 } else { PacketMode::LegacyL2 },
        gpe: false,
        dst_port: if kind.is_gre() { 0 } else { 6081 },
        remote: Remote::Flow,
        local: Local::Any,
        in_key: None,
        out_key: None,
        tos: Some(0),
        ttl: Some(64),
        df: true,
        keyed: true,
        csum: false,
        sequence: false,
        erspan,
        egress_mark: None,
    }
}

/// A switch whose port 5 is this tunnel (datapath port 30).
pub(crate) fn lab_of(tunnel: TunnelSpec) -> Lab {
    let mut lab = Lab::new();
    let (dp_port, tunnel) = (Some(30), Some(tunnel));
    let spec = PortSpec { of_port: 5, name: "t".into(), dp_port, tunnel, ..PortSpec::default() };
    lab.sw.add_port(lab.br, spec).unwrap();
    lab
}

/// 10.0.0.0/8 is behind port 2, which has 10.0.0.1; 10.0.0.5 there has 05:05:05:05:05:05.
pub(crate) fn route_to_port_2(lab: &mut Lab) {
    let address = ("p2".to_string(), [10, 0, 0, 1].into(), 8);
    lab.sw.change_routes(|t| t.replace_kernel(KernelRoutes::default(), vec![address]));
    let route = Route {
        prefix: [10, 0, 0, 0].into(),
        len: 8,
        device: "p2".into(),
        gateway: None,
        source: [10, 0, 0, 1].into(),
        mark: 0,
        local: false,
        user: true,
    };
    lab.sw.change_routes(|t| t.insert(route));
    lab.sw.set_neighbour("p2", [10, 0, 0, 5].into(), [5; 6], 2);
}

/// Packets that go into a tunnel from now on go to this address.
pub(crate) fn tunnel_to(address: [u8; 4]) -> Action {
    let value = u32::from_be_bytes(address).into();
    Action::SetField { field: flow::Field::TunDst, value, mask: 0xffff_ffff }
}
