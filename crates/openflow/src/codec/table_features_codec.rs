//! Table features (1.3+): what each table can match and do. All tables here can do the same.

use crate::buf::Put;
use crate::oxm::{Oxm, ROWS, put_private_headers};
use crate::{TableStats, Version};
use flow::{FIELDS, Field, TUN_METADATAS};
use std::sync::OnceLock;

/// Standard actions by type number, those that every table takes: output, the MPLS and IP TTLs,
/// VLAN and MPLS push and pop, queue, group, set-field.
const ACTIONS: &[u16] = &[0, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25];

/// Every field that matches can name, and actions.
fn fields() -> impl Iterator<Item = Field> {
    let regs = (0..16).map(Field::Reg).chain((0..8).map(Field::Xreg));
    let wide = (0..4).map(Field::Xxreg);
    let options = (0..TUN_METADATAS).map(Field::TunMetadata);
    FIELDS.iter().copied().chain(regs).chain(wide).chain(options)
}

/// Headers of fields, which are the same for every table: a reply lists 255 of those.
struct Ids {
    named: Vec<u8>,
    matched: Vec<u8>,
    written: Vec<u8>,
}

impl Ids {
    fn of(version: Version) -> &'static Ids {
        static IDS: [OnceLock<Ids>; Version::V15 as usize + 1] =
            [const { OnceLock::new() }; Version::V15 as usize + 1];
        IDS[version as usize].get_or_init(|| {
            let mut named = list(version, fields(), |_| false);
            let mut matched = list(version, fields(), Field::maskable);
            put_private_headers(false, &mut named);
            put_private_headers(true, &mut matched);
            let written = list(version, fields().filter(|f| f.writable()), |_| false);
            Ids { named, matched, written }
        })
    }
}

fn list(
    version: Version,
    fields: impl Iterator<Item = Field>,
    masked: impl Fn(Field) -> bool,
) -> Vec<u8> {
    let mut ids = Vec::new();
    for f in fields {
        // Nicira's input port is a field of its own: it has 16 bits.
        let short = ROWS.iter().find(|r| r.field == f && f == Field::InPort);
        for form in short.into_iter().chain([&Oxm::of(version, f)]) {
            form.put_header(masked(f), &mut ids);
        }
    }
    ids
}

/// One table's features. `last`: the highest table, so that next tables can be listed.
pub(super) fn put(version: Version, t: &TableStats, last: u8, m: &mut Vec<u8>) {
    let (start, ids) = (m.len(), Ids::of(version));
    m.pad(2);
    m.u8(t.table);
    m.pad(5); // 1.5: command and features; nothing to say
    m.text(&t.name, 32);
    m.u64(u64::MAX); // metadata match
    m.u64(u64::MAX); // metadata write
    m.u32(if version >= Version::V14 { t.config & !super::table::MISS } else { 0 });
    m.u32(t.max_entries);
    // Each property for hits and, one higher, for table misses.
    for miss in 0..2 {
        m.property(miss, |m| put_instructions(version, t.table < last, m));
        m.property(2 + miss, |m| (t.table + 1..=last).for_each(|n| m.u8(n)));
        for (actions, set_fields) in [(4, 12), (6, 14)] {
            m.property(actions + miss, put_actions);
            m.property(set_fields + miss, |m| m.extend(&ids.written));
        }
    }
    m.property(8, |m| m.extend(&ids.matched));
    m.property(10, |m| m.extend(&ids.named));
    m.patch_len(start, start);
}

/// Goto (unless it is the last table), write-metadata, write, apply, clear; meter until 1.4.
fn put_instructions(version: Version, goto: bool, m: &mut Vec<u8>) {
    let kinds = [1u16, 2, 3, 4, 5, 6];
    let known = |k: &u16| (*k != 1 || goto) && (*k != 6 || version < Version::V15);
    for kind in kinds.into_iter().filter(known) {
        m.u16(kind);
        m.u16(4);
    }
}

fn put_actions(m: &mut Vec<u8>) {
    for kind in ACTIONS {
        m.u16(*kind);
        m.u16(4);
    }
}
