//! Groups: group-mod (1.1 to 1.4 and 1.5), description, statistics.

use super::begun::{begin, begin_exp};
use super::kinds::Kind;
use super::port::check_port;
use super::{NTR, NX, ONF};
use crate::actions::decode_actions;
use crate::actions_out::encode_actions;
use crate::buf::{Put, Rd, Result};
use crate::oxm::{Oxm, OxmEntry};
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
        command: GroupCommand::Delete,
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
        let bucket = rd.u32()?;
        check_command_bucket(wire_command, bucket)?;
        group.buckets = decode_buckets(form, version, wire_kind, Rd(rd.bytes(len)?))?;
        decode_properties(rd, (wire_command, wire_kind), &mut group)?;
        group.kind = check_kind(wire_command, wire_kind, &group.buckets)?;
        group.command = command(form, wire_command, bucket)?;
    } else {
        group.buckets = decode_buckets(form, version, wire_kind, rd)?;
        if version >= Version::V13 && wire_command == DELETE && !group.buckets.is_empty() {
            return Err(OfError::GroupInvalid);
        }
        group.kind = check_kind(wire_command, wire_kind, &group.buckets)?;
        group.command = command(form, wire_command, 0)?;
    }
    check(&group)?;
    Ok(group)
}

/// OFPGC_DELETE.
const DELETE: u16 = 2;
/// OFPGC15_INSERT_BUCKET.
const INSERT_BUCKET: u16 = 3;
/// OFPGC15_REMOVE_BUCKET.
const REMOVE_BUCKET: u16 = 5;
/// OFPG15_BUCKET_ALL; also what a command that is about no bucket has.
const ALL_BUCKETS: u32 = 0xffff_ffff;
/// OFPG15_BUCKET_FIRST and OFPG15_BUCKET_LAST.
const FIRST_OR_LAST: std::ops::RangeInclusive<u32> = 0xffff_fffd..=0xffff_fffe;

/// Checks that a command may name this bucket.
fn check_command_bucket(command: u16, bucket: u32) -> Result<()> {
    let one = bucket <= BUCKET_MAX || FIRST_OR_LAST.contains(&bucket);
    let fits = match command {
        INSERT_BUCKET => one,
        REMOVE_BUCKET => one || bucket == ALL_BUCKETS,
        _ => bucket == ALL_BUCKETS,
    };
    if fits { Ok(()) } else { Err(OfError::GroupBadBucket) }
}

/// The type, which also commands must have that do not need it.
fn check_kind(command: u16, wire: u8, buckets: &[Bucket]) -> Result<GroupType> {
    let kind = kind(wire)?;
    let one = kind == GroupType::Indirect && command != DELETE;
    if one && buckets.len() != 1 { Err(OfError::GroupInvalid) } else { Ok(kind) }
}

/// The rules of the specification that need no table (1.3 section 6.4), in OVS's order.
fn check(group: &GroupMod) -> Result<()> {
    use GroupCommand as C;
    if matches!(group.command, C::RemoveBucket(_)) && !group.buckets.is_empty() {
        return Err(OfError::GroupBadBucket);
    }
    let insert = matches!(group.command, C::InsertBucket(_));
    for b in &group.buckets {
        if b.weight != 0 && group.kind != GroupType::Select && !insert {
            return Err(OfError::GroupInvalid);
        }
        let watches = b.watch_port != port::ANY || b.watch_group != GROUP_ANY;
        match group.kind {
            GroupType::All | GroupType::Indirect if watches => {
                return Err(OfError::GroupWatchUnsupported);
            }
            GroupType::FastFailover if !watches => return Err(OfError::GroupInvalid),
            _ => {}
        }
    }
    match group.command {
        C::Add | C::AddOrMod if group.id > MAX => Err(OfError::GroupInvalid),
        // No such group can be there.
        C::Modify | C::InsertBucket(_) | C::RemoveBucket(_) if group.id > MAX => {
            Err(OfError::GroupUnknown)
        }
        _ => Ok(()),
    }
}

fn decode_buckets(
    form: Version,
    version: Version,
    wire_kind: u8,
    mut rd: Rd<'_>,
) -> Result<Vec<Bucket>> {
    let bad = |_| OfError::GroupBadBucket;
    let header = if form == Version::V15 { 8 } else { 16 };
    let mut list = Vec::new();
    while !rd.is_empty() {
        let len = usize::from(Rd(rd.0).u16().map_err(bad)?);
        if len < header {
            return Err(OfError::GroupBadBucket);
        }
        let mut body = Rd(rd.bytes(len).map_err(bad)?);
        body.skip(2)?;
        list.push(if form == Version::V15 {
            bucket15(version, wire_kind, body)?
        } else {
            bucket11(version, body)?
        });
    }
    if form != Version::V15 {
        list.iter_mut().zip(0..).for_each(|(b, i)| b.id = i);
    }
    let ids: std::collections::BTreeSet<u32> = list.iter().map(|b| b.id).collect();
    if ids.len() == list.len() { Ok(list) } else { Err(OfError::GroupBadBucket) }
}

fn bucket11(version: Version, mut rd: Rd<'_>) -> Result<Bucket> {
    let weight = rd.u16()?;
    let watch_port = rd.u32()?;
    let watch_group = rd.u32()?;
    rd.skip(4)?;
    let actions = decode_actions(version, rd.rest())?;
    let watch_port = check_port(watch_port, OfError::GroupBadWatch)?;
    Ok(Bucket { id: 0, weight, watch_port, watch_group, actions })
}

fn bucket15(version: Version, wire_kind: u8, mut rd: Rd<'_>) -> Result<Bucket> {
    let len = usize::from(rd.u16()?);
    let id = rd.u32()?;
    let actions = rd.bytes(len).map_err(|_| OfError::GroupBadBucket)?;
    let actions = decode_actions(version, actions)?;
    // An absent weight is 1 in a group that has weights.
    let weight = u16::from(wire_kind == GroupType::Select as u8);
    let mut b = Bucket { id, weight, watch_port: port::ANY, watch_group: GROUP_ANY, actions };
    while !rd.is_empty() {
        let (kind, mut body) = rd.property()?;
        match kind {
            0 => b.weight = body.u16().map_err(|_| OfError::PropBadLen)?,
            1 => b.watch_port = body.only_u32()?,
            2 => b.watch_group = body.only_u32()?,
            _ => return Err(body.unknown_property(kind, EXPERIMENTER)),
        }
    }
    check_port(b.watch_port, OfError::GroupBadWatch)?;
    if b.id > BUCKET_MAX { Err(OfError::GroupBadBucket) } else { Ok(b) }
}

/// Properties of this type are experimenters'.
const EXPERIMENTER: u16 = 0xffff;

/// 1.5's group properties: Netronome's selection method is the one known.
fn decode_properties(mut rd: Rd<'_>, of: (u16, u8), group: &mut GroupMod) -> Result<()> {
    while !rd.is_empty() {
        let (kind, mut body) = rd.property()?;
        let (mut vendor, whole) = (body, body);
        match (kind, vendor.u32(), vendor.u32()) {
            (EXPERIMENTER, Ok(NTR | NTR_OLD), Ok(SELECTION_METHOD)) => {
                check_selects(of)?;
                decode_selection(whole, group)?;
            }
            _ => return Err(body.unknown_property(kind, EXPERIMENTER)),
        }
    }
    Ok(())
}

/// Checks that a group-mod of this command and type takes a selection method.
fn check_selects((command, wire_kind): (u16, u8)) -> Result<()> {
    if kind(wire_kind)? != GroupType::Select {
        return Err(OfError::PropBadValue);
    }
    match command {
        0 | 1 | 0x8000 => Ok(()),
        DELETE | INSERT_BUCKET | REMOVE_BUCKET => Err(OfError::PropBadValue),
        _ => Err(OfError::GroupBadCommand),
    }
}

/// Netronome's property from its experimenter id on.
fn decode_selection(mut body: Rd<'_>, group: &mut GroupMod) -> Result<()> {
    let short = |_| OfError::PropBadLen;
    body.skip(12).map_err(short)?;
    let name: [u8; 16] = body.array().map_err(short)?;
    let param = body.u64().map_err(short)?;
    let end = name.iter().position(|b| *b == 0).ok_or(OfError::PropBadValue)?;
    let method = match &name[..end] {
        b"hash" => "hash",
        b"dp_hash" if body.is_empty() => "dp_hash",
        _ => return Err(OfError::PropBadValue),
    };
    group.selection_method = method.into();
    group.selection_param = param;
    while !body.is_empty() {
        let entry = OxmEntry::parse(body.0)?;
        let oxm = entry.header.oxm().ok_or(OfError::MatchBadField)?;
        group.selection_fields.push((oxm.field, entry.value));
        body.skip(entry.size)?;
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

/// REQUESTFORWARD of a group-mod that came as `theirs`: OpenFlow's own from 1.4 on, ONF's extension
/// in 1.3, Nicira's before (where 1.0 has Nicira's group-mod too).
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
        for (field, bits) in &g.selection_fields {
            let oxm = Oxm::of(Version::V15, *field);
            oxm.put_header(false, m);
            oxm.put_mask(*bits, m);
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
