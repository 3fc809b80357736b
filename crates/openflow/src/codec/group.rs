//! Groups: group-mod (1.1 to 1.4 and 1.5), description, statistics.

use super::encode::{begin, begin_exp};
use super::kinds::Kind;
use super::port::check_port;
use super::{NTR, NX, ONF};
use crate::actions::decode_actions;
use crate::actions_out::encode_actions;
use crate::buf::{Put, Rd, Result};
use crate::oxm::{Entry, Oxm};
use crate::{Bucket, GROUP_ANY, GroupCommand, GroupMod, GroupStats, GroupType, OfError, Request};
use crate::{Version, port};

/// OFPG_ALL.
pub(super) const ALL: u32 = 0xffff_fffc;
/// OFPG_MAX: the highest group id.
const MAX: u32 = 0xffff_ff00;
/// NTRT_SELECTION_METHOD.
const SELECTION_METHOD: u32 = 1;
/// 1.5: the command is about no bucket.
const NO_BUCKET: u32 = 0xffff_ffff;
/// What Netronome's number was taken for at first.
const NTR_OLD: u32 = 0x1540;
const ONFT_REQUESTFORWARD: u32 = 2350;
const NXT_REQUESTFORWARD: u32 = 132;
const NXT_GROUP_MOD: u32 = 31;
/// 1.5: no bucket id given.
const BUCKET_MAX: u32 = 0xffff_ff00;

fn kind(n: u8) -> Result<GroupType> {
    Ok(match n {
        0 => GroupType::All,
        1 => GroupType::Select,
        2 => GroupType::Indirect,
        3 => GroupType::FastFailover,
        _ => return Err(OfError::GroupBadType),
    })
}

fn command(version: Version, n: u16, bucket: u32) -> Result<GroupCommand> {
    Ok(match n {
        0 => GroupCommand::Add,
        1 => GroupCommand::Modify,
        2 => GroupCommand::Delete,
        3 if version == Version::V15 => GroupCommand::InsertBucket(bucket),
        5 if version == Version::V15 => GroupCommand::RemoveBucket(bucket),
        0x8000 => GroupCommand::AddOrMod,
        _ => return Err(OfError::GroupBadCommand),
    })
}

/// GROUP_MOD.
pub(super) fn decode_mod(version: Version, rd: Rd<'_>) -> Result<Request> {
    decode_mod_form(version, version, rd).map(Request::GroupMod)
}

/// A group-mod in the layout of `form`, its actions in those of `version`.
pub(super) fn decode_mod_form(form: Version, version: Version, mut rd: Rd<'_>) -> Result<GroupMod> {
    let wire_command = rd.u16()?;
    let wire_kind = rd.u8()?;
    rd.skip(1)?;
    let id = rd.u32()?;
    let mut group = GroupMod {
        command: GroupCommand::Add,
        kind: GroupType::All,
        id,
        buckets: Vec::new(),
        selection_method: String::new(),
        selection_param: 0,
        selection_fields: Vec::new(),
    };
    if form == Version::V15 {
        let len = usize::from(rd.u16()?);
        rd.skip(2)?;
        group.command = command(form, wire_command, rd.u32()?)?;
        group.buckets = decode_buckets(form, version, Rd(rd.bytes(len)?))?;
        decode_properties(rd, &mut group)?;
    } else {
        group.command = command(form, wire_command, 0)?;
        group.buckets = decode_buckets(form, version, rd)?;
    }
    let typed =
        matches!(group.command, GroupCommand::Add | GroupCommand::Modify | GroupCommand::AddOrMod);
    if typed {
        group.kind = kind(wire_kind)?;
    }
    check(&group)?;
    Ok(group)
}

/// The rules of the specification that need no table (1.3 section 6.4).
fn check(group: &GroupMod) -> Result<()> {
    let deletes = matches!(group.command, GroupCommand::Delete | GroupCommand::RemoveBucket(_));
    if group.id > MAX && !(deletes && group.id == ALL) {
        return Err(OfError::GroupInvalid);
    }
    if group.command == GroupCommand::Delete && !group.buckets.is_empty() {
        return Err(OfError::GroupInvalid);
    }
    let insert = matches!(group.command, GroupCommand::InsertBucket(_));
    let one = group.kind == GroupType::Indirect && !deletes && !insert;
    if one && group.buckets.len() != 1 {
        return Err(OfError::GroupInvalid);
    }
    for b in &group.buckets {
        let watches = b.watch_port != port::ANY || b.watch_group != GROUP_ANY;
        if group.kind == GroupType::FastFailover && !insert && !watches {
            return Err(OfError::GroupInvalid);
        }
    }
    Ok(())
}

fn decode_buckets(form: Version, version: Version, mut rd: Rd<'_>) -> Result<Vec<Bucket>> {
    let mut list = Vec::new();
    while !rd.is_empty() {
        let len = usize::from(Rd(rd.0).u16()?);
        if len < 8 {
            return Err(OfError::GroupBadBucket);
        }
        let mut body = Rd(rd.bytes(len).map_err(|_| OfError::GroupBadBucket)?);
        body.skip(2)?;
        list.push(if form == Version::V15 {
            bucket15(version, body)?
        } else {
            bucket11(version, body)?
        });
    }
    if form != Version::V15 {
        list.iter_mut().zip(0..).for_each(|(b, i)| b.id = i);
    }
    assign_ids(&mut list);
    Ok(list)
}

/// Buckets without an id get one that is free.
fn assign_ids(list: &mut [Bucket]) {
    let mut used: std::collections::BTreeSet<u32> = list.iter().map(|b| b.id).collect();
    let mut next = 0;
    for b in list.iter_mut().filter(|b| b.id > BUCKET_MAX) {
        while used.contains(&next) {
            next += 1;
        }
        b.id = next;
        used.insert(next);
    }
}

fn bucket11(version: Version, mut rd: Rd<'_>) -> Result<Bucket> {
    let weight = rd.u16()?;
    let watch_port = check_port(rd.u32()?, OfError::GroupBadWatch)?;
    let watch_group = rd.u32()?;
    rd.skip(4)?;
    let actions = decode_actions(version, rd.rest())?;
    Ok(Bucket { id: 0, weight, watch_port, watch_group, actions })
}

fn bucket15(version: Version, mut rd: Rd<'_>) -> Result<Bucket> {
    let len = usize::from(rd.u16()?);
    let id = rd.u32()?;
    let actions = decode_actions(version, rd.bytes(len)?)?;
    // An absent weight is 1 for OVS.
    let mut b = Bucket { id, weight: 1, watch_port: port::ANY, watch_group: GROUP_ANY, actions };
    while !rd.is_empty() {
        let (kind, mut body) = rd.property()?;
        match kind {
            0 => b.weight = body.u16()?,
            1 => b.watch_port = check_port(body.u32()?, OfError::GroupBadWatch)?,
            2 => b.watch_group = body.u32()?,
            _ => return Err(OfError::GroupBadBucket),
        }
    }
    Ok(b)
}

/// 1.5's group properties: Netronome's selection method is the one known.
fn decode_properties(mut rd: Rd<'_>, group: &mut GroupMod) -> Result<()> {
    while !rd.is_empty() {
        let (kind, mut body) = rd.property()?;
        if kind != 0xffff {
            return Err(OfError::BadType);
        }
        if !matches!(body.u32()?, NTR | NTR_OLD) {
            return Err(OfError::BadExperimenter);
        }
        if body.u32()? != SELECTION_METHOD {
            return Err(OfError::BadExpType);
        }
        body.skip(4)?;
        let name: [u8; 16] = body.array()?;
        let end = name.iter().position(|b| *b == 0).ok_or(OfError::BadLen)?;
        let method = std::str::from_utf8(&name[..end]).map_err(|_| OfError::GroupInvalid)?;
        group.selection_method = method.into();
        group.selection_param = body.u64()?;
        while !body.is_empty() {
            let entry = Entry::parse(body.0)?;
            let oxm = entry.header.oxm().ok_or(OfError::MatchBadField)?;
            group.selection_fields.push(oxm.field);
            body.skip(entry.size)?;
        }
    }
    Ok(())
}

fn put_buckets(form: Version, version: Version, g: &GroupMod, m: &mut Vec<u8>) {
    for b in &g.buckets {
        let start = m.len();
        if form != Version::V15 {
            m.pad(2);
            m.u16(b.weight);
            m.u32(b.watch_port);
            m.u32(b.watch_group);
            m.pad(4);
            encode_actions(version, &b.actions, m);
            m.patch_len(start, start);
            continue;
        }
        m.pad(4);
        m.u32(b.id);
        encode_actions(version, &b.actions, m);
        m.patch_len(start + 2, start + 8);
        if g.kind == GroupType::Select {
            m.property(0, |m| {
                m.u16(b.weight);
                m.pad(2);
            });
        }
        if b.watch_port != port::ANY {
            m.property(1, |m| m.u32(b.watch_port));
        }
        if b.watch_group != GROUP_ANY {
            m.property(2, |m| m.u32(b.watch_group));
        }
        m.patch_len(start, start);
    }
}

/// A group-mod in the layout of `form`, its actions in those of `version`, without its header.
fn put_mod(form: Version, version: Version, g: &GroupMod, m: &mut Vec<u8>) {
    let (command, bucket) = match g.command {
        GroupCommand::Add => (0, NO_BUCKET),
        GroupCommand::Modify => (1, NO_BUCKET),
        GroupCommand::Delete => (2, NO_BUCKET),
        GroupCommand::InsertBucket(at) => (3, at),
        GroupCommand::RemoveBucket(which) => (5, which),
        GroupCommand::AddOrMod => (0x8000, NO_BUCKET),
    };
    m.u16(command);
    m.u8(g.kind as u8);
    m.pad(1);
    m.u32(g.id);
    if form != Version::V15 {
        return put_buckets(form, version, g, m);
    }
    let at = m.len();
    m.pad(4);
    m.u32(bucket);
    let buckets = m.len();
    put_buckets(form, version, g, m);
    m.patch_len(at, buckets);
    put_selection(g, m);
}

/// REQUESTFORWARD of a group-mod that came as `theirs`: OpenFlow's own from 1.4 on, ONF's extension in
/// 1.3, Nicira's before (where 1.0 has Nicira's group-mod too).
pub(super) fn encode_forward(version: Version, xid: u32, theirs: u32, g: &GroupMod) -> Vec<u8> {
    let mut m = match version {
        Version::V14 | Version::V15 => begin(version, Kind::RequestForward, xid),
        Version::V13 => begin_exp(version, xid, ONF, ONFT_REQUESTFORWARD),
        _ => begin_exp(version, xid, NX, NXT_REQUESTFORWARD),
    };
    let start = m.len();
    let (form, inner) = match version {
        Version::V10 => (Version::V15, begin_exp(version, theirs, NX, NXT_GROUP_MOD)),
        _ => (version, begin(version, Kind::GroupMod, theirs)),
    };
    m.raw(&inner);
    put_mod(form, version, g, &mut m);
    m.patch_len(start + 2, start);
    m
}

/// One group of a group-description reply, in the layout of `form`.
pub(super) fn put_desc(form: Version, version: Version, g: &GroupMod, m: &mut Vec<u8>) {
    let start = m.len();
    m.pad(2);
    m.u8(g.kind as u8);
    m.pad(1);
    m.u32(g.id);
    if form == Version::V15 {
        let at = m.len();
        m.pad(8);
        let buckets = m.len();
        put_buckets(form, version, g, m);
        m.patch_len(at, buckets);
        put_selection(g, m);
    } else {
        put_buckets(form, version, g, m);
    }
    m.patch_len(start, start);
}

/// The selection method, if there is one.
fn put_selection(g: &GroupMod, m: &mut Vec<u8>) {
    if g.selection_method.is_empty() {
        return;
    }
    m.property(0xffff, |m| {
        m.u32(NTR);
        m.u32(SELECTION_METHOD);
        m.pad(4);
        m.text(&g.selection_method, 16);
        m.u64(g.selection_param);
        for field in &g.selection_fields {
            let oxm = Oxm::of(Version::V15, *field);
            oxm.put_header(false, m);
            oxm.put_value(field.full(), m);
        }
    });
}

/// One group of a group-statistics reply; the duration came with 1.3.
pub(super) fn put_stats(durations: bool, g: &GroupStats, m: &mut Vec<u8>) {
    let start = m.len();
    m.pad(4);
    m.u32(g.id);
    m.u32(g.ref_count);
    m.pad(4);
    m.u64(g.packets);
    m.u64(g.bytes);
    if durations {
        m.duration(g.duration_ns);
    }
    for (packets, bytes) in &g.buckets {
        m.u64(*packets);
        m.u64(*bytes);
    }
    m.patch_len(start, start);
}
