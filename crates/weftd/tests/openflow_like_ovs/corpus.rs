//! What is sent: messages of `ovs-ofctl` (those of the codec's tests), odd ones written here, and
//! both with damage of fixed seeds.

use testkit::Rng;

/// One message, sent on a connection of a version.
#[derive(Clone)]
pub struct Case {
    pub version: u8,
    pub name: String,
    pub message: Vec<u8>,
    /// How many things were damaged.
    pub defects: usize,
}

const REQUESTS: &str = include_str!("../../../openflow/tests/data/requests.tsv");
/// Length of a message's header, bytes.
const HEADER: usize = 8;
/// Version of the messages that empty a switch.
pub const CLEANING_VERSION: u8 = 5;
/// Address of port 1 in the messages of `ovs-ofctl`.
pub const PORT_MAC: [u8; 6] = [0xaa, 0x55, 0xaa, 0x55, 0, 2];
/// In the names of cases whose action has a property of an odd size.
pub const ODD_PROPERTY: &str = "property";
/// Names of cases that are not damaged: of the first damage makes reasons greater than 31, at which
/// ovs-vswitchd ends itself; without the others all others' damage is one that it survives.
pub const UNDAMAGED: [&str; 2] = [ODD_PROPERTY, "ct_mark"];
/// No buffer, any port, any group.
const NONE: u32 = 0xffff_ffff;

pub fn message(version: u8, kind: u8, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let mut m = vec![version, kind];
    m.extend(((HEADER + body.len()) as u16).to_be_bytes());
    m.extend([0, 0, 0, 7]);
    m.extend(body);
    m
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap()).collect()
}

/// Deletes all flows and groups, has ports as they were, fragments as they come, tables without
/// eviction.
pub fn cleaning() -> Vec<Vec<u8>> {
    let version = CLEANING_VERSION;
    let all = [0xff; 4];
    let delete = [
        &[0; 16][..],
        &[0xff, 3, 0, 0, 0, 0, 0, 0],
        &all,
        &all,
        &all,
        &[0; 4],
        &[0, 1, 0, 4, 0, 0, 0, 0],
    ];
    vec![
        message(version, 14, &delete),
        message(version, 15, &[&[0, 2, 0, 0], &0xffff_fffcu32.to_be_bytes()]),
        message(version, 17, &[&[0xff, 0, 0, 0, 0, 0, 0, 0]]),
        // All meters.
        message(version, 29, &[&[0, 2, 0, 0], &all]),
        message(version, 9, &[&[0, 0, 0, 0]]),
        // NXT_TLV_TABLE_MOD: clear.
        message(version, 4, &[&[0, 0, 0x23, 0x20, 0, 0, 0, 24, 0, 2, 0, 0, 0, 0, 0, 0]]),
    ]
}

/// Good and odd messages.
pub fn requests() -> Vec<Case> {
    let mut all = from_ofctl();
    for version in 1..=6u8 {
        let mut put = |name: &str, message: Vec<u8>| {
            let name = format!("1.{} {name}", version - 1);
            all.push(Case { version, name, message, defects: 0 });
        };
        connection(version, &mut put);
        if version == 1 {
            flow_mods_10(&mut put);
        } else {
            flow_mods(version, &mut put);
            groups(version, &mut put);
            tables(version, &mut put);
        }
        packet_outs(version, &mut put);
        crate::stateful::messages(version, &mut put);
        if version >= 4 {
            set_async(version, &mut put);
            crate::table_features::messages(version, &mut put);
        }
        if version >= 5 {
            bundles(version, &mut put);
        }
    }
    all
}

fn from_ofctl() -> Vec<Case> {
    let case = |line: &str| {
        let cols: Vec<&str> = line.split('\t').collect();
        let version = cols[0].parse::<u8>().unwrap() - 9;
        let name = format!("1.{} {}", version - 1, cols[1]);
        Case { version, name, message: bytes(cols[2]), defects: 0 }
    };
    let table_ids = |c: &Case| c.message.get(8..16) == Some(&[0, 0, 0x23, 0x20, 0, 0, 0, 15]);
    REQUESTS.lines().map(case).filter(|c| !table_ids(c)).collect()
}

/// Takes a message and its name.
pub type Put<'a> = &'a mut dyn FnMut(&str, Vec<u8>);

/// What is not about the switch's tables.
fn connection(v: u8, put: Put<'_>) {
    for (name, kind, body) in [
        ("hello", 0, vec![]),
        ("hello with noise", 0, vec![1, 2, 3]),
        ("error", 1, vec![0, 1, 0, 6]),
        ("error with data", 1, vec![0, 1, 0, 6, 1, 2, 3, 4, 5, 6, 7, 8]),
        ("error that is too short", 1, vec![0, 1]),
        ("error of an unknown type", 1, vec![0x12, 0x34, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0]),
        ("empty error", 1, vec![]),
        ("echo", 2, vec![1, 2, 3]),
        ("echo reply", 3, vec![1, 2, 3]),
        ("features", 5, vec![]),
        ("features with a body", 5, vec![0; 8]),
        ("features reply", 6, vec![0; 24]),
        ("get-config", 7, vec![]),
        ("config reply", 8, vec![0; 4]),
        ("set-config", 9, vec![0, 0, 0, 128]),
        ("set-config of unknown flags", 9, vec![0, 0x10, 0, 128]),
        ("set-config of frag 3", 9, vec![0, 3, 0, 128]),
        ("set-config, invalid TTL", 9, vec![0, 4, 0, 128]),
        ("packet-in", 10, vec![0; 24]),
        ("flow-removed", 11, vec![0; 80]),
        ("port-status", 12, vec![0; 64]),
        ("barrier", if v == 1 { 18 } else { 20 }, vec![]),
        ("barrier with a body", if v == 1 { 18 } else { 20 }, vec![0; 8]),
        ("barrier reply", if v == 1 { 19 } else { 21 }, vec![]),
        (
            "statistics of an unknown kind",
            if v == 1 { 16 } else { 18 },
            vec![0, 99, 0, 0, 0, 0, 0, 0],
        ),
        ("type 99", 99, vec![]),
    ] {
        put(name, message(v, kind, &[&body]));
    }
    for other in [0u8, 1, 4, 7, 255] {
        for (name, kind) in [
            ("echo", 2),
            ("echo reply", 3),
            ("error", 1),
            ("hello", 0),
            ("features", 5),
            ("type 99", 99),
        ] {
            let body: &[u8] = if kind == 1 { &[0, 1, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0] } else { &[] };
            put(&format!("{name} of version {other}"), message(other, kind, &[body]));
        }
    }
    if v >= 3 {
        for role in 0..5u32 {
            put(
                &format!("role {role}"),
                message(v, 24, &[&role.to_be_bytes(), &[0; 4], &9u64.to_be_bytes()]),
            );
        }
    }
    let nx = |subtype: u32, rest: &[u8]| {
        message(v, 4, &[&0x2320u32.to_be_bytes(), &subtype.to_be_bytes(), rest])
    };
    for role in 0..4u32 {
        put(&format!("NXT_ROLE_REQUEST {role}"), nx(10, &role.to_be_bytes()));
    }
    put("NXT_SET_FLOW_FORMAT 0", nx(12, &0u32.to_be_bytes()));
    put("NXT_SET_FLOW_FORMAT 2", nx(12, &2u32.to_be_bytes()));
    put("NXT_SET_FLOW_FORMAT 7", nx(12, &7u32.to_be_bytes()));
    put("NXT_FLOW_AGE", nx(18, &[]));
    put("NXT_SET_PACKET_IN_FORMAT 1", nx(16, &1u32.to_be_bytes()));
    put("NXT_SET_PACKET_IN_FORMAT 9", nx(16, &9u32.to_be_bytes()));
    put("NXT_SET_CONTROLLER_ID", nx(20, &[0, 0, 0, 0, 0, 0, 0, 5]));
    put("NXT_SET_CONTROLLER_ID, not zero", nx(20, &[0, 0, 0, 1, 0, 0, 0, 5]));
    put("NXT_FLOW_MONITOR_CANCEL", nx(21, &77u32.to_be_bytes()));
    put(
        "NXT_SET_ASYNC_CONFIG",
        nx(19, &[0, 0, 0, 7, 0, 0, 0, 7, 0, 0, 0, 7, 0, 0, 0, 7, 0, 0, 0, 7, 0, 0, 0, 7]),
    );
    put("NXT_TLV_TABLE_REQUEST", nx(25, &[]));
    put("NXT_TLV_TABLE_MOD", nx(24, &[0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 1, 4, 0, 0, 0, 0]));
    put("Nicira, unknown", nx(9999, &[]));
    put("Nicira, cut", message(v, 4, &[&0x2320u32.to_be_bytes()]));
    put("unknown experimenter", message(v, 4, &[&[0, 0x12, 0x34, 0x56], &[0, 0, 0, 1]]));
    put("ONF, unknown", message(v, 4, &[&0x4f4e_4600u32.to_be_bytes(), &[0, 0, 0x12, 1]]));
}

/// A port's output action.
fn output(v: u8, port: u16) -> Vec<u8> {
    if v == 1 {
        return [&[0, 0, 0, 8][..], &port.to_be_bytes(), &[0, 0]].concat();
    }
    [&[0, 0, 0, 16, 0, 0][..], &port.to_be_bytes(), &[0xff, 0xff, 0, 0, 0, 0, 0, 0]].concat()
}

/// One flow-mod of 1.0, with what is not at its default.
struct Flow10 {
    wild: u32,
    proto: u8,
    ports: [u16; 2],
    command: u16,
    timeouts: [u16; 2],
    buffer: u32,
    out_port: u16,
    flags: u16,
}

impl Flow10 {
    fn new() -> Self {
        Flow10 {
            wild: 0x3f_ffff,
            proto: 0,
            ports: [0; 2],
            command: 0,
            timeouts: [0; 2],
            buffer: NONE,
            out_port: 0xffff,
            flags: 0,
        }
    }

    /// ICMP with a type and a code.
    fn icmp(kind: u16, code: u16) -> Self {
        let wild = 0x3f_ffff & !(1 << 4 | 1 << 5 | 1 << 6 | 1 << 7);
        Flow10 { wild, proto: 1, ports: [kind, code], ..Flow10::new() }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut b = self.wild.to_be_bytes().to_vec();
        b.extend([0; 18]);
        b.extend([8, 0, 0, self.proto]);
        b.extend([0; 10]);
        self.ports.iter().for_each(|p| b.extend(p.to_be_bytes()));
        b.extend(5u64.to_be_bytes());
        b.extend(self.command.to_be_bytes());
        self.timeouts.iter().for_each(|t| b.extend(t.to_be_bytes()));
        b.extend([0x80, 0]);
        b.extend(self.buffer.to_be_bytes());
        b.extend(self.out_port.to_be_bytes());
        b.extend(self.flags.to_be_bytes());
        b.extend(output(1, 2));
        message(1, 14, &[&b])
    }
}

fn flow_mods_10(put: Put<'_>) {
    put("ICMP type 256", Flow10::icmp(256, 0).bytes());
    put("ICMP code 256", Flow10::icmp(8, 256).bytes());
    put("ICMP type 8", Flow10::icmp(8, 0).bytes());
    for timeouts in [[0, 0], [5, 0], [0, 5]] {
        for flags in 0..12 {
            put(
                &format!("timeouts {timeouts:?}, flags {flags}"),
                Flow10 { timeouts, flags, ..Flow10::new() }.bytes(),
            );
        }
    }
    for command in 0..7 {
        put(&format!("command {command}"), Flow10 { command, ..Flow10::new() }.bytes());
        put(
            &format!("command {command}, buffer 3"),
            Flow10 { command, buffer: 3, ..Flow10::new() }.bytes(),
        );
    }
    put("command in the upper byte", Flow10 { command: 0x0300, ..Flow10::new() }.bytes());
    put("delete, out_port", Flow10 { command: 3, out_port: 2, ..Flow10::new() }.bytes());
}

/// A flow-mod of 1.1 and later without a match.
struct Flow {
    version: u8,
    table: u8,
    command: u8,
    timeouts: [u16; 2],
    buffer: u32,
    out: [u32; 2],
    flags: u16,
    importance: u16,
    instructions: Vec<u8>,
}

impl Flow {
    fn new(version: u8) -> Self {
        let actions = output(version, 2);
        let mut instructions = vec![0, 4, 0, 8 + actions.len() as u8, 0, 0, 0, 0];
        instructions.extend(actions);
        Flow {
            version,
            table: 0,
            command: 0,
            timeouts: [0; 2],
            buffer: NONE,
            out: [NONE; 2],
            flags: 0,
            importance: 0,
            instructions,
        }
    }

    fn with(version: u8, instructions: &[u8]) -> Self {
        Flow { instructions: instructions.to_vec(), ..Flow::new(version) }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut b = vec![0; 16];
        b.extend([self.table, self.command]);
        self.timeouts.iter().for_each(|t| b.extend(t.to_be_bytes()));
        b.extend([0x80, 0]);
        b.extend(self.buffer.to_be_bytes());
        self.out.iter().for_each(|o| b.extend(o.to_be_bytes()));
        b.extend(self.flags.to_be_bytes());
        b.extend(self.importance.to_be_bytes());
        if self.version == 2 {
            // OFPMT_STANDARD: everything is a wildcard.
            let mut m = vec![0; 88];
            m[3] = 88;
            m[8..12].copy_from_slice(&0x3ffu32.to_be_bytes());
            m[18..24].fill(0xff);
            m[30..36].fill(0xff);
            m[48..52].fill(0xff);
            m[56..60].fill(0xff);
            m[72..80].fill(0xff);
            b.extend(m);
        } else {
            b.extend([0, 1, 0, 4, 0, 0, 0, 0]);
        }
        b.extend(&self.instructions);
        message(self.version, 14, &[&b])
    }
}

fn flow_mods(v: u8, put: Put<'_>) {
    let new = || Flow::new(v);
    for command in 0..7 {
        put(&format!("command {command}"), Flow { command, ..new() }.bytes());
        put(&format!("command {command}, buffer 3"), Flow { command, buffer: 3, ..new() }.bytes());
        put(
            &format!("command {command}, all tables"),
            Flow { command, table: 0xff, ..new() }.bytes(),
        );
        put(
            &format!("command {command}, table 254"),
            Flow { command, table: 254, ..new() }.bytes(),
        );
        put(&format!("command {command}, out"), Flow { command, out: [2, 1], ..new() }.bytes());
        put(
            &format!("command {command}, out nowhere"),
            Flow { command, out: [0x1_0000, NONE], ..new() }.bytes(),
        );
    }
    for bit in 0..16 {
        put(&format!("flag {bit}"), Flow { flags: 1 << bit, ..new() }.bytes());
    }
    put("importance", Flow { importance: 9, ..new() }.bytes());
    let (goto, meter) = ([0, 1, 0, 8, 5, 0, 0, 0], [0, 6, 0, 8, 0, 0, 0, 9]);
    let (clear, write) = ([0, 5, 0, 8, 0, 0, 0, 0], [0, 3, 0, 8, 0, 0, 0, 0]);
    put("goto", Flow::with(v, &goto).bytes());
    put("goto itself", Flow { table: 5, ..Flow::with(v, &goto) }.bytes());
    put("goto twice", Flow::with(v, &[goto, goto].concat()).bytes());
    put("goto too far", Flow::with(v, &[0, 1, 0, 8, 254, 0, 0, 0]).bytes());
    put("meter", Flow::with(v, &meter).bytes());
    put("clear and write", Flow::with(v, &[clear, write].concat()).bytes());
    // To the action set, and at once.
    for (name, kind) in [("write", 3), ("apply", 4)] {
        let ct_mark = [0, 25, 0, 16, 0, 1, 107 << 1, 4, 0, 0, 0, 5, 0, 0, 0, 0];
        let list = [&[0, kind, 0, 24, 0, 0, 0, 0][..], &ct_mark].concat();
        put(&format!("{name} ct_mark"), Flow::with(v, &list).bytes());
    }
    put("unknown instruction", Flow::with(v, &[0, 9, 0, 8, 0, 0, 0, 0]).bytes());
    put(
        "experimenter's instruction",
        Flow::with(v, &[0xff, 0xff, 0, 8, 0, 0x12, 0x34, 0x56]).bytes(),
    );
    put("instruction of length 0", Flow::with(v, &[0, 1, 0, 0, 0, 0, 0, 0]).bytes());
    put(
        "group that is not there",
        Flow::with(v, &[&[0, 4, 0, 16, 0, 0, 0, 0, 0, 22, 0, 8][..], &[0, 0, 0, 9]].concat())
            .bytes(),
    );
}

/// A bucket with an output to port 2; before 1.5 only weight and watches are beside it.
fn bucket(v: u8, weight: u16, watch: [u32; 2]) -> Vec<u8> {
    let actions = output(v, 2);
    let mut b = Vec::new();
    if v < 6 {
        b.extend((16 + actions.len() as u16).to_be_bytes());
        b.extend(weight.to_be_bytes());
        watch.iter().for_each(|w| b.extend(w.to_be_bytes()));
        b.extend([0; 4]);
        b.extend(actions);
        return b;
    }
    let mut properties = Vec::new();
    if weight != 0 {
        properties.extend([0, 0, 0, 8]);
        properties.extend(weight.to_be_bytes());
        properties.extend([0, 0]);
    }
    for (kind, w) in (1u8..).zip(watch).filter(|(_, w)| *w != NONE) {
        properties.extend([0, kind, 0, 8]);
        properties.extend(w.to_be_bytes());
    }
    b.extend((8 + actions.len() as u16 + properties.len() as u16).to_be_bytes());
    b.extend((actions.len() as u16).to_be_bytes());
    b.extend(1u32.to_be_bytes());
    b.extend(actions);
    b.extend(properties);
    b
}

fn group_mod(v: u8, command: u16, kind: u8, id: u32, buckets: &[u8]) -> Vec<u8> {
    let head = [&command.to_be_bytes()[..], &[kind, 0], &id.to_be_bytes()].concat();
    if v < 6 {
        return message(v, 15, &[&head, buckets]);
    }
    let len = (buckets.len() as u16).to_be_bytes();
    message(v, 15, &[&head, &len, &[0, 0], &NONE.to_be_bytes(), buckets])
}

fn groups(v: u8, put: Put<'_>) {
    for kind in 0..5 {
        for weight in [0, 1] {
            for (watched, watch) in
                [("", [NONE, NONE]), (", port", [1, NONE]), (", group", [NONE, 1])]
            {
                let one = bucket(v, weight, watch);
                for command in [0, 1, 2, 3, 5, 6, 0x8000] {
                    let name =
                        format!("group-mod {command}, type {kind}, weight {weight}{watched}");
                    put(&name, group_mod(v, command, kind, 1, &one));
                }
            }
        }
        put(&format!("group type {kind} without buckets"), group_mod(v, 0, kind, 1, &[]));
        put(&format!("delete, type {kind}"), group_mod(v, 2, kind, 1, &[]));
    }
    put(
        "indirect group of two",
        group_mod(v, 0, 2, 1, &[bucket(v, 0, [NONE; 2]), bucket(v, 0, [NONE; 2])].concat()),
    );
    for id in [0, 0xffff_ff00, 0xffff_ff01, 0xffff_fffc, 0xffff_fffd, NONE] {
        for command in [0, 1, 2] {
            put(&format!("group-mod {command} of {id:x}"), group_mod(v, command, 0, id, &[]));
        }
    }
    if v == 6 {
        for command in [0u16, 1, 2, 3, 5, 0x8000] {
            for which in [0, 1, 0xffff_ff00, 0xffff_ff01, 0xffff_fffd, 0xffff_fffe, NONE] {
                let mut m = group_mod(v, command, 0, 1, &[]);
                m[20..24].copy_from_slice(&u32::to_be_bytes(which));
                put(&format!("group-mod {command} of bucket {which:x}"), m);
            }
        }
    }
    put("bucket of length 0", group_mod(v, 0, 0, 1, &[0; 16]));
    put(
        "bucket beyond the end",
        group_mod(v, 0, 0, 1, &[0, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
    );
}

fn tables(v: u8, put: Put<'_>) {
    for table in [0u8, 3, 253, 254, 255] {
        for config in [0u32, 1, 2, 3, 4, 8, 12, 0x10, 0x8000_0000] {
            let name = format!("table-mod {table}, {config:x}");
            put(&name, message(v, 17, &[&[table, 0, 0, 0], &config.to_be_bytes()]));
        }
    }
    if v < 5 {
        return;
    }
    let property = |name: &str, bytes: &[u8], put: Put<'_>| {
        for config in [0u32, 4, 8, 12] {
            let name = format!("table-mod {config}, {name}");
            put(&name, message(v, 17, &[&[3, 0, 0, 0], &config.to_be_bytes(), bytes]));
        }
    };
    property("eviction", &[0, 2, 0, 8, 0, 0, 0, 3], put);
    property("eviction by an unknown bit", &[0, 2, 0, 8, 0, 0, 0, 8], put);
    property("cut eviction", &[0, 2, 0, 4, 0, 0, 0, 0], put);
    property("vacancy", &[0, 3, 0, 8, 10, 20, 0, 0], put);
    property("vacancy the wrong way round", &[0, 3, 0, 8, 20, 10, 0, 0], put);
    property("vacancy over 100", &[0, 3, 0, 8, 20, 101, 0, 0], put);
    property("vacancy with a present value", &[0, 3, 0, 8, 10, 20, 5, 0], put);
    property("vacancy of nothing", &[0, 3, 0, 8, 0, 0, 0, 0], put);
    property("long vacancy", &[0, 3, 0, 16, 10, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], put);
    property("unknown property", &[0, 9, 0, 8, 0, 0, 0, 0], put);
    property(
        "experimenter's property",
        &[0xff, 0xff, 0, 12, 0, 0x12, 0x34, 0x56, 0, 0, 0, 1, 0, 0, 0, 0],
        put,
    );
    property("property of length 0", &[0, 3, 0, 0, 0, 0, 0, 0], put);
}

fn packet_out(v: u8, buffer: u32, in_port: u32, actions: &[u8], data: &[u8]) -> Vec<u8> {
    let len = (actions.len() as u16).to_be_bytes();
    let buffer = buffer.to_be_bytes();
    match v {
        1 => message(v, 13, &[&buffer, &(in_port as u16).to_be_bytes(), &len, actions, data]),
        6 => {
            let matching =
                [&[0, 1, 0, 12, 0x80, 0, 0, 4][..], &in_port.to_be_bytes(), &[0; 4]].concat();
            message(v, 13, &[&buffer, &len, &[0, 0], &matching, actions, data])
        }
        _ => message(v, 13, &[&buffer, &in_port.to_be_bytes(), &len, &[0; 6], actions, data]),
    }
}

fn packet_outs(v: u8, put: Put<'_>) {
    let frame = [&[0xff; 6][..], &[0, 0, 0, 0, 0, 1, 8, 6], &[0; 46]].concat();
    let out = output(v, 2);
    for n in [0, 1, 6, 12, 13, 14, 15, 60] {
        put(&format!("packet-out of {n} bytes"), packet_out(v, NONE, 1, &out, &frame[..n]));
        put(
            &format!("packet-out of {n} bytes, no actions"),
            packet_out(v, NONE, 1, &[], &frame[..n]),
        );
    }
    for port in [
        0, 1, 2, 99, 0xfeff, 0xff00, 0xfff8, 0xfff9, 0xfffa, 0xfffb, 0xfffc, 0xfffd, 0xfffe, 0xffff,
    ] {
        let wide = if port >= 0xff00 && v > 1 { port | 0xffff_0000 } else { port };
        put(&format!("packet-out from {port:x}"), packet_out(v, NONE, wide, &out, &frame));
        put(
            &format!("packet-out to {port:x}"),
            packet_out(v, NONE, 1, &output(v, port as u16), &frame),
        );
    }
    put("packet-out of a buffer", packet_out(v, 3, 1, &out, &[]));
    put("packet-out of a buffer, with data", packet_out(v, 3, 1, &out, &frame));
    put(
        "packet-out of an unknown action",
        packet_out(v, NONE, 1, &[0, 99, 0, 8, 0, 0, 0, 0], &frame),
    );
}

fn set_async(v: u8, put: Put<'_>) {
    if v == 4 {
        for bit in [0, 3, 9, 31] {
            let mask = (1u32 << bit).to_be_bytes();
            let list: Vec<u8> = mask.repeat(6);
            put(&format!("set-async of bit {bit}"), message(v, 28, &[&list]));
        }
        put("cut set-async", message(v, 28, &[&[0; 20]]));
        put("get-async", message(v, 26, &[]));
        return;
    }
    for kind in 0..16u8 {
        for bit in [0, 1, 2, 3, 4, 5, 6, 9, 31] {
            let mask = (1u32 << bit).to_be_bytes();
            put(
                &format!("set-async {kind} of bit {bit}"),
                message(v, 28, &[&[0, kind, 0, 8], &mask]),
            );
        }
    }
    put("set-async of nothing", message(v, 28, &[]));
    put("set-async, cut", message(v, 28, &[&[0, 0, 0, 4, 0, 0, 0, 0]]));
    put("set-async, long", message(v, 28, &[&[0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]]));
    put("set-async, length 0", message(v, 28, &[&[0, 0, 0, 0, 0, 0, 0, 0]]));
    put(
        "set-async of an experimenter",
        message(v, 28, &[&[0xff, 0xff, 0, 12, 0, 0x12, 0x34, 0x56, 0, 0, 0, 1, 0, 0, 0, 0]]),
    );
    put(
        "set-async of Nicira",
        message(v, 28, &[&[0xff, 0xff, 0, 12, 0, 0, 0x23, 0x20, 0, 0, 0, 1, 0, 0, 0, 0]]),
    );
    put(
        "set-async of type fffe",
        message(v, 28, &[&[0xff, 0xfe, 0, 12, 0, 0, 0x23, 0x20, 0, 0, 0, 1, 0, 0, 0, 0]]),
    );
    put("get-async", message(v, 26, &[]));
}

fn bundles(v: u8, put: Put<'_>) {
    for kind in 0..10u16 {
        for flags in [0u16, 3, 4] {
            let name = format!("bundle-control {kind}, flags {flags}");
            let body =
                [&9u32.to_be_bytes()[..], &kind.to_be_bytes(), &flags.to_be_bytes()].concat();
            put(&name, message(v, 33, &[&body]));
        }
    }
    let add = |inner: &[u8]| message(v, 34, &[&8u32.to_be_bytes(), &[0, 0, 0, 3], inner]);
    put("bundle-add of a flow", add(&Flow::new(v).bytes()));
    put("bundle-add of a flow with a buffer", add(&Flow { buffer: 3, ..Flow::new(v) }.bytes()));
    put("bundle-add of a group", add(&group_mod(v, 0, 0, 1, &bucket(v, 0, [NONE; 2]))));
    put(
        "bundle-add of a group with a weight",
        add(&group_mod(v, 0, 0, 1, &bucket(v, 2, [NONE; 2]))),
    );
    put("bundle-add of a packet-out", add(&packet_out(v, NONE, 1, &output(v, 2), &[0; 14])));
    put("bundle-add of a barrier", add(&message(v, 20, &[])));
    put("bundle-add of nothing", add(&[]));
    put("bundle-add of noise", add(&[1, 2, 3, 4, 5, 6, 7, 8]));
    put("bundle-add of another version", add(&Flow::new(4).bytes()));
}

/// A good message with one or two things wrong; its header's length fits unless that is what is
/// wrong.
pub fn damage(case: &Case, rng: &mut Rng) -> Case {
    let mut m = case.message.clone();
    let mut what = String::new();
    let defects = 1 + rng.below(2);
    for _ in 0..defects {
        let body = m.len() - HEADER;
        match rng.weighted(&[4, 12, 8, 3, 3, 1]) {
            0 if body > 0 => {
                m.truncate(HEADER + rng.below(body));
                what += &format!(" cut to {}", m.len());
            }
            1 if body > 0 => {
                let at = HEADER + rng.below(body);
                m[at] ^= 1 << rng.below(8);
                what += &format!(" bit at {at}");
            }
            2 if body > 0 => {
                let at = HEADER + rng.below(body);
                m[at] = rng.pick(&[0, 1, 2, 8, 0x7f, 0x80, 0xfe, 0xff]);
                what += &format!(" byte at {at}");
            }
            3 => {
                let n = rng.pick(&[1, 4, 8, 16]);
                m.extend(std::iter::repeat_n(0, n));
                what += &format!(" {n} more");
            }
            4 if body > 8 => {
                let at = HEADER + rng.below(body - 8) / 8 * 8;
                let piece = m[at..at + 8].to_vec();
                m.splice(at..at, piece);
                what += &format!(" twice at {at}");
            }
            _ => {
                m[1] = rng.below(40) as u8;
                what += &format!(" type {}", m[1]);
            }
        }
    }
    let len = m.len() as u16;
    m[2..4].copy_from_slice(&len.to_be_bytes());
    Case { version: case.version, name: format!("{}:{what}", case.name), message: m, defects }
}
