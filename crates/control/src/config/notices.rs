//! What is set in the database and has no effect: one notice for each row with its column or key.

use super::form::Form;
use super::knobs::{self, Knob, Support};
use super::qos;
use ovsdb::{Atom, Datum, Replica, Row, Uuid};
use std::collections::BTreeSet;
use std::fmt::Display;

/// Columns of which each key is a setting.
const MAPS: [&str; 3] = ["other_config", "bfd", "lldp"];

/// Bytes of a notice, at most, but for what stands for control characters.
const TEXT_LEN_MAX: usize = 512;

/// Something that is set and has no effect. Two are the same if row, setting and value are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Notice {
    /// The text for the log.
    pub text: String,
    /// The user who set it counts on it: Open vSwitch knows the setting, and would do something
    /// that is not done here. Otherwise the name may be misspelt, the value is one that Open
    /// vSwitch ignores, too, or there is nothing to do.
    pub missed: bool,
    /// The column, or `COLUMN:KEY`.
    pub name: String,
    value: String,
}

/// All notices about the rows that the switch's row leads to.
pub(super) fn read(db: &Replica, root: &Row) -> BTreeSet<Notice> {
    let mut out = Walk { db, notices: BTreeSet::new(), qos: BTreeSet::new() };
    out.row("Open_vSwitch", root, &"Open_vSwitch", "");
    for row in out.rows("Bridge", root.uuids("bridges")) {
        out.bridge(row);
    }
    if let Some(Datum::Map(pairs)) = root.get("datapaths") {
        for (name, uuid) in pairs {
            let Atom::Uuid(uuid) = uuid else { continue };
            for row in out.rows("Datapath", [*uuid]) {
                out.row("Datapath", row, &format!("datapath {}", text(name)), "");
                out.zones(row);
            }
        }
    }
    for (_, row) in db.rows("Flow_Sample_Collector_Set") {
        let name = "Flow_Sample_Collector_Set";
        out.row(name, row, &name, "");
        out.ipfix(row, &name);
    }
    out.notices
}

struct Walk<'a> {
    db: &'a Replica,
    notices: BTreeSet<Notice>,
    /// Rows of QoS that were looked at, all but their types: many ports may have the same row.
    qos: BTreeSet<Uuid>,
}

impl<'a> Walk<'a> {
    fn rows(&self, table: &str, uuids: impl IntoIterator<Item = Uuid>) -> Vec<&'a Row> {
        uuids.into_iter().filter_map(|uuid| self.db.row(table, uuid)).collect()
    }

    /// The exporter of a bridge or a set of collectors.
    fn ipfix(&mut self, row: &Row, name: &dyn Display) {
        for exporter in self.rows("IPFIX", row.uuids("ipfix")) {
            self.row("IPFIX", exporter, &format!("{name}: ipfix"), "");
        }
    }

    fn bridge(&mut self, row: &Row) {
        let name = format!("bridge {}", row.str("name"));
        self.row("Bridge", row, &name, "");
        self.ipfix(row, &name);
        for controller in self.rows("Controller", row.uuids("controller")) {
            let name = format!("{name}: controller {}", controller.str("target"));
            self.row("Controller", controller, &name, "");
        }
        for (number, uuid) in row.int_uuid_map("flow_tables") {
            for table in self.rows("Flow_Table", [uuid]) {
                self.row("Flow_Table", table, &format!("{name}: table {number}"), "");
            }
        }
        for port in self.rows("Port", row.uuids("ports")) {
            let name = format!("port {}", port.str("name"));
            self.row("Port", port, &name, "");
            for uuid in port.uuids("qos") {
                self.qos(port, uuid, &format!("{name}: qos"));
            }
            for interface in self.rows("Interface", port.uuids("interfaces")) {
                let name = format!("interface {}", interface.str("name"));
                self.row("Interface", interface, &name, interface.str("type"));
            }
        }
    }

    /// Looks at a row of QoS. Of a type that is not supported, or not on this port, nothing else is
    /// looked at; all else of a row is looked at once, for the first port that has it.
    fn qos(&mut self, port: &Row, uuid: Uuid, name: &str) {
        let Some(row) = self.db.row("QoS", uuid) else { return };
        let ((column, state, remark), kind) = (knobs::QOS_TYPE, row.str("type"));
        let interfaces = self.rows("Interface", port.uuids("interfaces"));
        // Dummies take everything, as they have no device.
        let is_kernels = |i: &&Row| {
            let kind = i.str("type");
            ["", "system", "internal", "tap"].contains(&kind) || kind.starts_with("dummy")
        };
        let fits = !qos::LINUX_TYPES.contains(&kind) || interfaces.iter().all(is_kernels);
        let before = self.notices.len();
        self.look(&name, column, kind, if fits { state } else { Support::Only(&[]) }, remark);
        if kind.is_empty() || self.notices.len() > before || !self.qos.insert(uuid) {
            return;
        }
        self.row("QoS", row, &name, "");
        let has_queues = qos::WITH_QUEUES.contains(&kind);
        for (id, uuid) in row.int_uuid_map("queues") {
            if !has_queues || u32::try_from(id).is_ok_and(|id| id >= qos::QUEUES_MAX) {
                let why = if has_queues { "there are 61440" } else { "the type has none" };
                self.look(&name, &format!("queues:{id}"), "set", Support::No(&[]), why);
                continue;
            }
            if let Some(queue) = self.db.row("Queue", uuid) {
                self.row("Queue", queue, &format_args!("{name}: queues:{id}"), "");
            }
        }
    }

    fn zones(&mut self, datapath: &Row) {
        for (zone, uuid) in datapath.int_uuid_map("ct_zones") {
            for row in self.rows("CT_Zone", [uuid]) {
                for policy in self.rows("CT_Timeout_Policy", row.uuids("timeout_policy")) {
                    self.timeouts(zone, policy);
                }
            }
        }
    }

    fn timeouts(&mut self, zone: i64, policy: &Row) {
        let Some(Datum::Map(pairs)) = policy.get("timeouts") else { return };
        for (key, value) in pairs {
            let full = format!("timeouts:{}", text(key));
            let knobs = knobs::table("CT_Timeout_Policy");
            if let Some((_, state, remark)) = knobs.iter().find(|(name, ..)| *name == full) {
                self.look(&format!("zone {zone}"), &full, &text(value), *state, remark);
            }
        }
    }

    /// One row; `kind`: the type of an interface.
    fn row(&mut self, table: &str, row: &Row, name: &dyn Display, kind: &str) {
        let knobs = knobs::table(table);
        // Most columns of most rows are empty.
        for (column, datum) in row.columns().filter(|(_, datum)| !datum.is_empty()) {
            let knob = knobs.iter().find(|(name, ..)| *name == column);
            if let Some((_, state, remark)) = knob.filter(|(_, state, _)| state.may_be_refused()) {
                for value in values(datum) {
                    self.look(name, column, &value, *state, remark);
                }
            }
        }
        for column in MAPS {
            for (key, value) in row.str_map(column) {
                let full = format!("{column}:{key}");
                self.key(name, &full, &value, knobs.iter().find(|(name, ..)| *name == full), "");
            }
        }
        for (key, value) in row.str_map("options") {
            let knob = option_of(kind, &key);
            // What a tunnel does not know it says itself, in ovs-vswitchd's words.
            if knob.is_some() || !crate::tunnel_options::is_tunnel(kind) {
                let of = format!(" of type {}", if kind.is_empty() { "system" } else { kind });
                self.key(name, &format!("options:{key}"), &value, knob, &of);
            }
        }
    }

    fn key(&mut self, row: &dyn Display, name: &str, value: &str, knob: Option<&Knob>, of: &str) {
        match knob {
            Some((_, state, remark)) => self.look(row, name, value, *state, remark),
            None => {
                let text = brief(format!("{row}{of}: {name} is not known and has no effect"));
                let (name, value) = (name.into(), value.into());
                self.notices.insert(Notice { text, missed: false, name, value });
            }
        }
    }

    fn look(&mut self, row: &dyn Display, name: &str, value: &str, state: Support, remark: &str) {
        let mut what = "is not supported and has no effect".to_owned();
        let (allowed, shown) = match state {
            Support::No(idle) => (idle.contains(&value), String::new()),
            // Targets of controllers are known by their beginnings.
            Support::Only(values) => {
                let good = |v: &&str| *v == value || v.ends_with(':') && value.starts_with(*v);
                (values.iter().any(good), format!("={value}"))
            }
            Support::Numbers(least, most) => {
                let good = |n: i64| (least..=most).contains(&n);
                (value.parse().is_ok_and(good), format!("={value}"))
            }
            Support::Within(least, most) => {
                let n = value.trim().parse::<u64>().ok();
                what = match n {
                    Some(n) => format!("counts as {}", n.clamp(least, most)),
                    None => format!("is not {} and has no effect", Form::Whole.name()),
                };
                (n.is_some_and(|n| (least..=most).contains(&n)), format!("={value}"))
            }
            Support::Of(form) => {
                what = format!("is not {} and has no effect", form.name());
                (form.fits(value), format!("={value}"))
            }
            Support::Unneeded => {
                what = "has no effect".into();
                (false, format!("={value}"))
            }
            _ => (true, String::new()),
        };
        if allowed || value.is_empty() {
            return;
        }
        let why = if remark.is_empty() { String::new() } else { format!(" ({remark})") };
        let missed = !matches!(state, Support::Unneeded | Support::Of(_) | Support::Within(..));
        let text = brief(format!("{row}: {name}{shown} {what}{why}"));
        let (name, value) = (name.into(), value.into());
        self.notices.insert(Notice { text, missed, name, value });
    }
}

/// A line of the log: names and values are the user's, and may be long or have lines of their own.
fn brief(text: String) -> String {
    if text.len() <= TEXT_LEN_MAX && !text.contains(char::is_control) {
        return text;
    }
    let half = TEXT_LEN_MAX / 2;
    let (begin, end) = (text.floor_char_boundary(half), text.ceil_char_boundary(text.len() - half));
    let parts = match begin < end {
        true => [&text[..begin], " ... ", &text[end..]],
        false => [&text, "", ""],
    };
    let escaped = |c: char| match c.is_control() {
        true => c.escape_default().collect(),
        false => c.to_string(),
    };
    parts.concat().chars().map(escaped).collect()
}

/// The option of an interface of that type.
fn option_of(kind: &str, key: &str) -> Option<&'static Knob> {
    let mut fitting =
        knobs::OPTIONS.iter().filter(|(kinds, _)| kinds.split(' ').any(|k| k == kind));
    fitting.find_map(|(_, knobs)| knobs.iter().find(|(name, ..)| *name == key))
}

/// The values of a column as texts: one for a map or a set of rows, since they are what they are
/// together.
fn values(datum: &Datum) -> Vec<String> {
    match datum {
        Datum::Set(atoms) if atoms.iter().any(|a| matches!(a, Atom::Uuid(_))) => {
            vec![atoms.iter().map(text).collect::<Vec<_>>().join(" ")]
        }
        Datum::Set(atoms) => atoms.iter().map(text).collect(),
        Datum::Map(pairs) => {
            let all = pairs.iter().map(|(key, value)| format!("{}={}", text(key), text(value)));
            vec![all.collect::<Vec<_>>().join(" ")]
        }
    }
}

fn text(atom: &Atom) -> String {
    match atom {
        Atom::Integer(n) => n.to_string(),
        Atom::Real(n) => n.to_string(),
        Atom::Boolean(b) => b.to_string(),
        Atom::String(s) => s.clone(),
        Atom::Uuid(u) => u.to_string(),
    }
}

#[cfg(test)]
#[path = "notices_tests.rs"]
mod tests;
