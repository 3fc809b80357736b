//! Table features requests with a body, good ones and all that can be wrong with them.

use crate::corpus::{Put, message};

/// As many as a table has without a limit.
const ENTRIES: u32 = 1_000_000;
const REPLACE: u8 = 0;
const MODIFY: u8 = 1;
/// Headers: EtherType, Ethernet source, EtherType under a mask, conj_id under a mask, register 0
/// under a mask, an unknown field.
const ETH_TYPE: [u8; 4] = [0x80, 0, 0x0a, 2];
const ETH_SRC: [u8; 4] = [0x80, 0, 8, 6];
const MASKED_ETH_TYPE: [u8; 4] = [0x80, 0, 0x0b, 4];
const MASKED_CONJ_ID: [u8; 4] = [0, 1, 37 << 1 | 1, 8];
const MASKED_REG0: [u8; 4] = [0, 1, 1, 8];
const UNKNOWN: [u8; 4] = [0x80, 0, 0xfe, 4];

struct Table {
    number: u8,
    command: u8,
    name: [u8; 32],
    capabilities: u32,
    entries: u32,
    properties: Vec<u8>,
}

impl Table {
    fn new(number: u8, command: u8) -> Table {
        let (name, properties) = ([0; 32], Vec::new());
        Table { number, command, name, capabilities: 0, entries: ENTRIES, properties }
    }

    fn named(mut self, name: &[u8]) -> Table {
        self.name[..name.len()].copy_from_slice(name);
        self
    }

    fn with(mut self, properties: &[(u16, &[u8])]) -> Table {
        self.properties =
            properties.iter().flat_map(|(kind, body)| property(*kind, body)).collect();
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let len = (64 + self.properties.len()) as u16;
        [
            &len.to_be_bytes()[..],
            &[self.number, self.command, 0, 0, 0, 0],
            &self.name,
            &[0xff; 16],
            &self.capabilities.to_be_bytes(),
            &self.entries.to_be_bytes(),
            &self.properties,
        ]
        .concat()
    }
}

fn property(kind: u16, body: &[u8]) -> Vec<u8> {
    let len = 4 + body.len();
    let mut p = [&kind.to_be_bytes()[..], &(len as u16).to_be_bytes(), body].concat();
    p.resize(len.next_multiple_of(8), 0);
    p
}

fn request(v: u8, tables: &[Vec<u8>]) -> Vec<u8> {
    message(v, 18, &[&[0, 12, 0, 0, 0, 0, 0, 0], &tables.concat()])
}

/// All that must be said of table 3, `kind` differently.
fn properties(kind: u16, body: &[u8]) -> Vec<(u16, &[u8])> {
    let mut all: Vec<(u16, &[u8])> = vec![
        (0, &[0, 1, 0, 4, 0, 4, 0, 4]),
        (2, &[4, 253]),
        (4, &[0, 0, 0, 4]),
        (6, &[0, 0, 0, 4, 0, 25, 0, 4]),
        (8, &MASKED_REG0),
        (10, &ETH_TYPE),
        (12, &ETH_SRC),
        (14, &[]),
    ];
    match all.iter_mut().find(|(k, _)| *k == kind) {
        Some(found) => found.1 = body,
        None => all.push((kind, body)),
    }
    all
}

pub fn messages(v: u8, put: Put<'_>) {
    for table in [0u8, 3, 253, 254, 255] {
        for command in 0..5 {
            let name = format!("table features {table}, command {command}");
            put(&name, request(v, &[Table::new(table, command).named(b"here").bytes()]));
        }
    }
    names(v, put);
    let one = |name: &str, table: Table, put: Put<'_>| {
        put(&format!("table features, {name}"), request(v, &[table.bytes()]));
    };
    one("other entries", Table { entries: 5, ..Table::new(3, MODIFY) }, put);
    for capabilities in [1, 4, 8, 0xffff_ffff] {
        let table = Table { capabilities, ..Table::new(3, MODIFY) };
        one(&format!("capabilities {capabilities:x}"), table, put);
    }
    for (kind, body) in odd_properties() {
        let listed = properties(kind, body);
        one(&format!("{kind}: {body:02x?}"), Table::new(3, MODIFY).with(&listed), put);
    }
    let mut twice = properties(4, &[]);
    twice.push((4, &[]));
    one("a property twice", Table::new(3, MODIFY).with(&twice), put);
    for missing in 0..8 {
        let mut listed = properties(14, &ETH_SRC);
        listed.remove(missing);
        one(&format!("without property {}", 2 * missing), Table::new(3, MODIFY).with(&listed), put);
    }
    let last = Table::new(253, MODIFY).with(&properties(2, &[])[1..]);
    one("the last table without instructions", last, put);
    lengths(v, put);
}

fn names(v: u8, put: Put<'_>) {
    for name in ["", "x", "with space", "thirty-one bytes are the longest", "h\u{e4}user"] {
        let table = Table::new(4, MODIFY).named(name.as_bytes()).bytes();
        put(&format!("table features, name '{name}'"), request(v, &[table]));
    }
    let pair = |a: Table, b: Table| request(v, &[a.bytes(), b.bytes()]);
    let named = |n, command| Table::new(n, command).named(b"one");
    put("table features, two tables", pair(named(5, MODIFY), named(6, MODIFY)));
    put("table features, a table twice", pair(named(5, MODIFY), named(5, MODIFY)));
    put("table features, modify before replace", pair(named(5, MODIFY), named(6, REPLACE)));
    put("table features, replace before modify", pair(named(5, REPLACE), named(6, MODIFY)));
    put("table features, replace, a table twice", pair(named(5, REPLACE), named(5, REPLACE)));
    let all: Vec<_> = (0..254).map(|n| named(n, REPLACE).bytes()).collect();
    put("table features, all replaced", request(v, &all));
    put("table features, all but one replaced", request(v, &all[1..]));
    put(
        "table features, the switch's own, too",
        request(v, &[&all[..], &[named(254, 0).bytes()]].concat()),
    );
}

/// Properties of table 3 that ask for what it cannot do, or are wrong.
fn odd_properties() -> Vec<(u16, &'static [u8])> {
    vec![
        (14, &[]),
        (0, &[]),
        (0, &[0, 7, 0, 4]),
        (0, &[0, 0, 0, 4]),
        (0, &[0, 6, 0, 4, 0, 2, 0, 4]),
        (0, &[0, 2, 0, 8, 0, 0, 0, 0]),
        (0, &[0, 2, 0, 3]),
        (0, &[0, 2, 0, 9]),
        (0, &[0xff, 0xff, 0, 8, 0, 0, 0x23, 0x20]),
        (1, &[0, 1, 0, 4]),
        (1, &[0, 9, 0, 4]),
        (2, &[]),
        (2, &[3]),
        (2, &[0]),
        (2, &[254]),
        (2, &[255]),
        (3, &[2]),
        (3, &[4, 5]),
        (4, &[0, 99, 0, 4]),
        (4, &[0xff, 0xff, 0, 8, 0, 0, 0x23, 0x20]),
        (5, &[0, 0, 0, 4]),
        (6, &[0, 0]),
        (7, &[0, 0, 0, 0]),
        (8, &ETH_TYPE),
        (8, &MASKED_ETH_TYPE),
        (8, &MASKED_CONJ_ID),
        (8, &UNKNOWN),
        (8, &[0x80, 0, 0x0a]),
        (8, &[0x80, 0, 0x0a, 3]),
        (9, &ETH_TYPE),
        (10, &MASKED_REG0),
        (10, &UNKNOWN),
        (11, &[]),
        (12, &ETH_TYPE),
        (12, &MASKED_REG0),
        (13, &ETH_SRC),
        (13, &ETH_TYPE),
        (15, &ETH_TYPE),
        (16, &[]),
        (40, &[]),
        (0xfffe, &[0, 0, 0x23, 0x20, 0, 0, 0, 1]),
        (0xffff, &[0, 0, 0x23, 0x20, 0, 0, 0, 1]),
        (0xffff, &[0, 0, 0, 0, 0, 0, 0, 1]),
        (0xffff, &[0, 0]),
    ]
}

/// Lengths that are not those of the table.
fn lengths(v: u8, put: Put<'_>) {
    for len in [0u16, 63, 56, 65, 72, 0xfff8] {
        let mut table = Table::new(3, MODIFY).bytes();
        table[..2].copy_from_slice(&len.to_be_bytes());
        put(&format!("table features, a table of {len} bytes"), request(v, &[table]));
    }
    for len in [8, 56, 60] {
        let table = Table::new(3, MODIFY).bytes()[..len].to_vec();
        put(&format!("table features, cut to {len} bytes"), request(v, &[table]));
    }
}
