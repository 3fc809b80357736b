//! Trees as `stp/show` and `rstp/show` print them and as the database has them, in
//! ovs-vswitchd's words.

use super::bridge_trees::{Tree, Trees};
use super::tree_machine::Machine;
use std::collections::BTreeMap;
use stp::{BridgeId, PortState, Rstp, Stp};

type StrMap = BTreeMap<String, String>;
type Counters = BTreeMap<String, i64>;

/// What the database has of a port of a tree.
#[derive(Default)]
pub struct PortColumns {
    /// `status`.
    pub status: StrMap,
    /// `statistics`.
    pub statistics: Counters,
    /// `rstp_status`.
    pub rstp_status: StrMap,
    /// `rstp_statistics`.
    pub rstp_statistics: Counters,
}

fn texts<const N: usize>(pairs: [(&str, String); N]) -> StrMap {
    pairs.map(|(key, value)| (key.to_string(), value)).into()
}

fn counters<const N: usize>(pairs: [(&str, u64); N]) -> Counters {
    pairs.map(|(key, value)| (key.to_string(), value as i64)).into()
}

/// An identifier as ovs-vswitchd writes it of RSTP: four bits of priority, twelve, the address.
fn rapid_id(id: BridgeId) -> String {
    let address = id.0 & 0xffff_ffff_ffff;
    format!("{:x}.{:03x}.{address:012x}", id.priority() >> 12, id.priority() & 0xfff)
}

impl Trees {
    /// What `stp/show` (or `rstp/show`, if `rapid`) prints, by bridge.
    pub fn show(&self, rapid: bool) -> impl Iterator<Item = (&String, String)> {
        let all = self.all.iter().filter(move |(_, tree)| tree.machine.is_rapid() == rapid);
        all.map(|(name, tree)| match &tree.machine {
            Machine::Stp(stp) => (name, show_stp(name, tree, stp)),
            Machine::Rstp(rstp) => (name, show_rstp(name, tree, rstp)),
        })
    }

    /// `Bridge.status` and `Bridge.rstp_status`.
    pub fn bridge_columns(&self, bridge: &str) -> (StrMap, StrMap) {
        match self.all.get(bridge).map(|tree| &tree.machine) {
            None => Default::default(),
            Some(Machine::Stp(stp)) => {
                let status = texts([
                    ("stp_bridge_id", stp.conf().id.to_string()),
                    ("stp_designated_root", stp.root().to_string()),
                    ("stp_root_path_cost", stp.root_cost().to_string()),
                ]);
                (status, StrMap::new())
            }
            Some(Machine::Rstp(rstp)) => {
                let (designated, port) = rstp.designated();
                let own = rstp.root_port().and_then(|n| rstp.port(n)).map_or(0, |p| p.id());
                let status = texts([
                    ("rstp_bridge_id", rapid_id(rstp.conf().id)),
                    ("rstp_root_path_cost", rstp.root_cost().to_string()),
                    ("rstp_root_id", rapid_id(rstp.root())),
                    ("rstp_designated_id", rapid_id(designated)),
                    ("rstp_designated_port_id", format!("{port:04x}")),
                    ("rstp_bridge_port_id", format!("{own:04x}")),
                ]);
                (StrMap::new(), status)
            }
        }
    }

    /// What the database has of an interface's port; all is empty if it is in no tree.
    pub fn port_columns(&self, bridge: &str, iface: &str, now: u64) -> PortColumns {
        let place = self.all.get(bridge).and_then(|tree| {
            let (number, place) = tree.ports.iter().find(|(_, p)| p.iface == iface)?;
            Some((&tree.machine, *number, place.since_ms))
        });
        match place {
            None => PortColumns::default(),
            Some((Machine::Stp(stp), number, since)) => stp_columns(stp, number, now - since),
            Some((Machine::Rstp(rstp), number, _)) => rstp_columns(rstp, number, now),
        }
    }
}

fn stp_columns(stp: &Stp, number: u16, age_ms: u64) -> PortColumns {
    let Some(port) = stp.port(number) else { return PortColumns::default() };
    let [sent, received, errors] = port.counts();
    PortColumns {
        status: texts([
            ("stp_port_id", port.id().to_string()),
            ("stp_state", port.state().name().to_string()),
            ("stp_sec_in_state", (age_ms / 1000).to_string()),
            ("stp_role", stp.role(number).name().to_string()),
        ]),
        statistics: counters([
            ("stp_tx_count", sent),
            ("stp_rx_count", received),
            ("stp_error_count", errors),
        ]),
        ..PortColumns::default()
    }
}

fn rstp_columns(rstp: &Rstp, number: u16, now: u64) -> PortColumns {
    let Some(port) = rstp.port(number) else { return PortColumns::default() };
    let [sent, received, errors] = port.counts();
    let (bridge, id, cost) = port.designated();
    PortColumns {
        rstp_status: texts([
            ("rstp_port_id", format!("{:04x}", port.id())),
            ("rstp_port_role", port.role().rapid_name().to_string()),
            ("rstp_port_state", port.state().rapid_name().to_string()),
            ("rstp_designated_bridge_id", rapid_id(bridge)),
            ("rstp_designated_port_id", format!("{id:04x}")),
            ("rstp_designated_path_cost", cost.to_string()),
        ]),
        rstp_statistics: counters([
            ("rstp_tx_count", sent),
            ("rstp_rx_count", received),
            ("rstp_uptime", port.uptime(now)),
            ("rstp_error_count", errors),
        ]),
        ..PortColumns::default()
    }
}

/// A table's row: number of the port, role, state, cost and priority.
type Row = (u16, &'static str, &'static str, u32, u8);

/// What both protocols print. `ids`: the root's and the bridge's own, with the times beside them;
/// `gap`: what is between `stp-priority` and its value; `cost_width`: columns of the costs.
fn page(
    (name, tree): (&str, &Tree),
    ids: [(BridgeId, [u64; 3]); 2],
    way: String,
    (gap, cost_width): (&str, usize),
    rows: impl Iterator<Item = Row>,
) -> String {
    let [root, own] = ids.map(|(id, times)| bridge_lines(id, times, gap));
    let mut text = format!("---- {name} ----\nRoot ID:\n{root}{way}\nBridge ID:\n{own}");
    text += &format!("\n  Interface  Role       State      {:<cost_width$} Pri.Nbr \n", "Cost");
    text += &format!("  ---------- ---------- ---------- {:-<cost_width$} -------\n", "");
    for (number, role, state, cost, priority) in rows {
        let name = iface(tree, number);
        text += &format!("  {name:<11.10}{role:<11.10}{state:<11.10}");
        text += &format!("{cost:<cost_width$} {priority}.{number}\n");
    }
    text + "\n"
}

fn bridge_lines(id: BridgeId, times: [u64; 3], gap: &str) -> String {
    let mac = id.mac().map(|byte| format!("{byte:02x}")).join(":");
    let [hello, max_age, delay] = times.map(|ms| ms / 1000);
    format!(
        "  stp-priority{gap}{}\n  stp-system-id   {mac}\n  stp-hello-time  {hello}s\n  \
         stp-max-age     {max_age}s\n  stp-fwd-delay   {delay}s\n",
        id.priority()
    )
}

/// The way to the root.
fn way(tree: &Tree, root_port: Option<u16>, cost: u32) -> String {
    match root_port {
        None => "  This bridge is the root\n".to_string(),
        Some(port) => {
            format!("  root-port       {}\n  root-path-cost  {cost}\n", iface(tree, port))
        }
    }
}

fn iface(tree: &Tree, number: u16) -> &str {
    tree.ports.get(&number).map_or("", |p| p.iface.as_str())
}

fn show_rstp(name: &str, tree: &Tree, rstp: &Rstp) -> String {
    let ids = [(rstp.root(), rstp.times()), (rstp.conf().id, rstp.own_times())];
    let up = rstp.ports().filter(|(_, p)| p.state() != PortState::Disabled);
    let rows = up.map(|(number, port)| {
        let (role, state) = (port.role().rapid_name(), port.state().rapid_name());
        (number, role, state, port.conf().path_cost, port.conf().priority)
    });
    page((name, tree), ids, way(tree, rstp.root_port(), rstp.root_cost()), ("    ", 8), rows)
}

/// As in ovs-vswitchd the bridge's own times stand below the root, and the tree's below the bridge.
fn show_stp(name: &str, tree: &Tree, stp: &Stp) -> String {
    let ids = [(stp.root(), stp.own_times()), (stp.conf().id, stp.times())];
    let up = stp.ports().filter(|(_, p)| p.state() != PortState::Disabled);
    let rows = up.map(|(number, port)| {
        let (role, state) = (stp.role(number).name(), port.state().name());
        (number, role, state, port.conf().path_cost.into(), port.conf().priority)
    });
    page((name, tree), ids, way(tree, stp.root_port(), stp.root_cost()), ("  ", 5), rows)
}
