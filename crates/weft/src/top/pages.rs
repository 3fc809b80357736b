//! What `weft top` shows: a page per kind of object, as rows that can be sorted, and a page per
//! object.

use super::table::{Column, TextTable, number, si, text};
use crate::view::{Core, Drop, FlowView, Guest, Port, View};
use std::cmp::Ordering;

/// Kinds of objects, each with a page; the overview has the first rows of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// All kinds, shortened.
    Overview,
    /// Threads that move packets.
    Cores,
    /// Interfaces.
    Ports,
    /// Guests behind vhost-user ports.
    Guests,
    /// Megaflows.
    Flows,
    /// Reasons for drops.
    Drops,
}

impl Page {
    /// In the order of their keys, from `1`.
    pub const ALL: [Page; 6] =
        [Page::Overview, Page::Cores, Page::Ports, Page::Guests, Page::Flows, Page::Drops];

    /// Its title.
    pub fn name(self) -> &'static str {
        match self {
            Page::Overview => "overview",
            Page::Cores => "cores",
            Page::Ports => "ports",
            Page::Guests => "guests",
            Page::Flows => "flows",
            Page::Drops => "drops",
        }
    }
}

/// A value with its way to be written and compared.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// As it is.
    Text(String),
    /// Thousands as k, and so on.
    Rate(f64),
    /// A number of things, which are whole.
    Count(u64),
    /// Whole percent.
    Percent(f64),
    /// A number with one decimal.
    Figure(f64),
}

impl Cell {
    fn written(&self) -> String {
        match self {
            Cell::Text(t) => t.clone(),
            Cell::Rate(n) => si(*n),
            Cell::Count(n) if *n < 1000 => n.to_string(),
            Cell::Count(n) => si(*n as f64),
            Cell::Percent(n) => format!("{n:.0}%"),
            Cell::Figure(n) => format!("{n:.1}"),
        }
    }

    /// Numbers the highest first, texts from a to z.
    fn order(&self, other: &Cell) -> Ordering {
        use Cell::*;
        match (self, other) {
            (Text(a), Text(b)) => a.cmp(b),
            (Count(a), Count(b)) => b.cmp(a),
            (Rate(a) | Percent(a) | Figure(a), Rate(b) | Percent(b) | Figure(b)) => b.total_cmp(a),
            _ => Ordering::Equal,
        }
    }
}

/// The rows of a page, each with the name of its object.
pub struct Rows {
    columns: Vec<Column>,
    rows: Vec<(String, Vec<Cell>)>,
}

impl Rows {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// The object of a row.
    pub fn key(&self, row: usize) -> Option<&str> {
        self.rows.get(row).map(|(key, _)| key.as_str())
    }

    /// Names of the columns.
    pub fn columns(&self) -> Vec<&'static str> {
        self.columns.iter().map(|c| c.name).collect()
    }

    /// Sorts by a column; rows that are equal there stay as they are.
    pub fn sort(&mut self, column: usize, reversed: bool) {
        let column = column.min(self.columns.len() - 1);
        self.rows.sort_by(|(_, a), (_, b)| {
            let order = a[column].order(&b[column]);
            if reversed { order.reverse() } else { order }
        });
    }

    /// The first rows, from one on, as text.
    pub fn table(self, from: usize, most: usize) -> TextTable {
        let rows = self.rows.into_iter().skip(from).take(most);
        let written = |(_, cells): (String, Vec<Cell>)| cells.iter().map(Cell::written).collect();
        TextTable { columns: self.columns, rows: rows.map(written).collect() }
    }
}

/// The rows of a page; the overview has none.
pub fn rows(page: Page, view: &View) -> Option<Rows> {
    Some(match page {
        Page::Overview => return None,
        Page::Cores => cores(&view.cores),
        Page::Ports => ports(&view.ports),
        Page::Guests => guests(&view.guests),
        Page::Flows => flows(&view.flows),
        Page::Drops => drops(&view.drops),
    })
}

/// The column that a page is sorted by at first: what most people look for.
pub fn first_column(page: Page) -> usize {
    match page {
        Page::Overview | Page::Cores => 0,
        Page::Ports | Page::Guests => 2,
        Page::Flows => 0,
        Page::Drops => 1,
    }
}

fn word(t: impl Into<String>) -> Cell {
    Cell::Text(t.into())
}

fn cores(all: &[Core]) -> Rows {
    let row = |c: &Core| {
        let each = |stage: &str| Cell::Rate(c.stages.get(stage).copied().unwrap_or(0.0));
        let cells = vec![
            word(&c.name),
            Cell::Percent(c.busy),
            Cell::Rate(c.packets),
            Cell::Rate(c.cycles_per_packet),
            each("rx"),
            each("parse"),
            each("lookup"),
            each("misses"),
            each("act_tx"),
            Cell::Percent(c.answered[0]),
            Cell::Percent(c.answered[2]),
            Cell::Figure(c.packets_per_burst),
            Cell::Count(c.megaflows[0]),
            Cell::Percent(c.asleep),
            c.waiting.map_or(word(""), Cell::Percent),
        ];
        (c.name.clone(), cells)
    };
    let columns = vec![
        text("core", 0),
        number("busy", 0),
        number("pps", 0),
        number("cyc/pkt", 0),
        number("rx", 2),
        number("parse", 2),
        number("lookup", 2),
        number("misses", 3),
        number("act,tx", 2),
        number("cached", 5),
        number("missed", 4),
        number("burst", 6),
        number("megaflows", 7),
        number("asleep", 8),
        number("waiting", 1),
    ];
    Rows { columns, rows: all.iter().map(row).collect() }
}

fn ports(all: &[Port]) -> Rows {
    let row = |p: &Port| {
        let cells = vec![
            word(&p.name),
            word(&p.state),
            Cell::Rate(p.rx),
            Cell::Rate(p.tx),
            Cell::Rate(p.dropped),
            Cell::Rate(p.rx_bits),
            Cell::Rate(p.tx_bits),
            word(&p.bridge),
            word(&p.kind),
        ];
        (p.name.clone(), cells)
    };
    let columns = vec![
        text("port", 0),
        text("state", 1),
        number("rx pps", 0),
        number("tx pps", 0),
        number("drops/s", 0),
        number("rx bit/s", 3),
        number("tx bit/s", 3),
        text("bridge", 2),
        text("type", 4),
    ];
    Rows { columns, rows: all.iter().map(row).collect() }
}

fn guests(all: &[Guest]) -> Rows {
    let row = |g: &Guest| {
        let ring = |r: Option<&u64>| r.map_or(String::new(), u64::to_string);
        let layout = if g.features.iter().any(|f| f == "ring_packed") { "packed" } else { "split" };
        let cells = vec![
            word(&g.name),
            word(if g.connected { "connected" } else { "away" }),
            Cell::Rate(g.from),
            Cell::Rate(g.to),
            Cell::Rate(g.full),
            Cell::Count(g.wrong.values().sum()),
            word(if g.connected { layout } else { "" }),
            word(ring(g.ring_sizes.iter().min())),
            word((g.ring_sizes.len() / 2).to_string()),
        ];
        (g.name.clone(), cells)
    };
    let columns = vec![
        text("guest", 0),
        text("state", 1),
        number("from pps", 0),
        number("to pps", 0),
        number("full/s", 0),
        number("wrong", 2),
        text("rings", 3),
        text("size", 4),
        text("pairs", 5),
    ];
    Rows { columns, rows: all.iter().map(row).collect() }
}

/// What a flow matches, without what nearly all have and what stands beside it.
fn short(f: &FlowView) -> String {
    let port = format!("in_port({}),", f.in_port);
    let usual = ["recirc_id(0),", &port, "packet_type(ns=0,id=0),", "eth_type(0x0800),"];
    usual.iter().fold(f.matching.clone(), |text, part| text.replacen(part, "", 1))
}

fn flows(all: &[FlowView]) -> Rows {
    let row = |f: &FlowView| {
        let cells = vec![
            Cell::Rate(f.rate),
            Cell::Rate(f.bits),
            word(&f.core),
            word(&f.in_port),
            word(short(f)),
            word(&f.actions),
        ];
        (format!("{} {}", f.core, f.ufid), cells)
    };
    let columns = vec![
        number("pps", 0),
        number("bit/s", 1),
        text("core", 3),
        text("from", 2),
        text("match", 0),
        text("actions", 0),
    ];
    Rows { columns, rows: all.iter().map(row).collect() }
}

fn drops(all: &[Drop]) -> Rows {
    let row = |d: &Drop| {
        let cells = vec![
            word(&d.reason),
            Cell::Rate(d.rate),
            Cell::Count(d.total),
            word(d.ports.first().cloned().unwrap_or_default()),
            word(&d.help),
        ];
        (d.reason.clone(), cells)
    };
    let columns = vec![
        text("dropped as", 0),
        number("per s", 0),
        number("total", 1),
        text("port", 2),
        text("because", 0),
    ];
    Rows { columns, rows: all.iter().map(row).collect() }
}
