//! Geneve options: which option each field `tun_metadataN` of a bridge is, how options are read and
//! written, and how flows match on them.
//!
//! Options are not in keys. A rule's match on options is a digest of (fields, masks, values) in its
//! key, at [`at::TUN_MATCH`]. A packet with options is looked up once for each set of masks that
//! flows of its bridge use, with the digest of its own values under these masks. Packets without
//! options are looked up once.

use flow::{Field, Key, Mask, TunMetadata, at};
use openflow::{Action, Instruction, Match, OfError, Subfield, TlvMap, TlvTableMod, Zone};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, LazyLock};

/// Bytes of all fields of a bridge together, at most, as in OVS.
pub(crate) const OPTIONS_BYTES_MAX: usize = 256;
/// Bytes of all options of a packet with their headers, at most (RFC 8926, section 3.4).
const HEADER_OPTIONS_BYTES_MAX: usize = 252;
/// Bit of an option's type: a receiver that does not know the option must drop the packet (RFC
/// 8926, section 3.5).
const CRITICAL: u8 = 0x80;

/// The options of a bridge's fields.
#[derive(Clone, Default)]
pub(crate) struct TlvTable {
    pub fields: BTreeMap<u8, TlvMap>,
}

impl TlvTable {
    pub fn changed(&self, m: &TlvTableMod) -> Result<TlvTable, OfError> {
        let mut new = self.clone();
        match m {
            TlvTableMod::Add(maps) => maps.iter().try_for_each(|map| new.add(map))?,
            TlvTableMod::Delete(maps) => {
                new.fields.retain(|index, _| maps.iter().all(|m| m.index != u16::from(*index)));
            }
            TlvTableMod::Clear => new.fields.clear(),
        }
        Ok(new)
    }

    fn add(&mut self, map: &TlvMap) -> Result<(), OfError> {
        let index = map.index as u8;
        if self.fields.contains_key(&index) {
            return Err(OfError::TlvAlreadyMapped);
        }
        if self.field_of(map.class, map.kind).is_some() {
            return Err(OfError::TlvDupEntry);
        }
        let used: usize = self.fields.values().map(|m| usize::from(m.len)).sum();
        if used + usize::from(map.len) > OPTIONS_BYTES_MAX {
            return Err(OfError::TlvTableFull);
        }
        self.fields.insert(index, *map);
        Ok(())
    }

    fn field_of(&self, class: u16, kind: u8) -> Option<&TlvMap> {
        self.fields.values().find(|m| (m.class, m.kind) == (class, kind))
    }

    /// Bytes of a field; None: it stands for no option.
    pub fn len_of(&self, index: u8) -> Option<usize> {
        self.fields.get(&index).map(|m| usize::from(m.len))
    }

    /// Class and type of each option, combined in one number.
    pub fn kinds(&self) -> impl Iterator<Item = u32> {
        self.fields.values().map(|m| u32::from(m.class) << 8 | u32::from(m.kind))
    }

    /// The fields of a packet with these options. None: the options are malformed, one has another
    /// length than its field, or an unknown one is critical.
    pub fn read(&self, mut options: &[u8]) -> Option<Vec<TunMetadata>> {
        let mut found: Vec<TunMetadata> = Vec::new();
        while !options.is_empty() {
            let [c0, c1, kind, words, ..] = *options else { return None };
            let end = 4 + usize::from(words & 0x1f) * 4;
            let value = options.get(4..end)?;
            match self.field_of(u16::from_be_bytes([c0, c1]), kind) {
                Some(map) if usize::from(map.len) == value.len() => {
                    set(&mut found, TunMetadata::exact(map.index as u8, value));
                }
                Some(_) => return None,
                None if kind & CRITICAL != 0 => return None,
                None => {}
            }
            options = &options[end..];
        }
        Some(found)
    }

    /// The options of a packet with these fields, and whether one is critical. None: they are too
    /// long.
    pub fn write(&self, fields: &[TunMetadata]) -> Option<(Vec<u8>, bool)> {
        let (mut out, mut critical) = (Vec::new(), false);
        for t in fields {
            let Some(map) = self.fields.get(&t.index) else { continue };
            out.extend(map.class.to_be_bytes());
            out.extend([map.kind, map.len / 4]);
            out.extend(t.resized(map.len.into()).value);
            critical |= map.kind & CRITICAL != 0;
        }
        (out.len() <= HEADER_OPTIONS_BYTES_MAX).then_some((out, critical))
    }
}

/// Sets a field of a packet.
pub(crate) fn set(fields: &mut Vec<TunMetadata>, t: TunMetadata) {
    match fields.binary_search_by_key(&t.index, |f| f.index) {
        Ok(i) => fields[i] = t,
        Err(i) => fields.insert(i, t),
    }
}

/// A field of a packet.
pub(crate) fn get(fields: &[TunMetadata], index: u8) -> Option<&TunMetadata> {
    fields.binary_search_by_key(&index, |f| f.index).ok().map(|i| &fields[i])
}

/// The fields and masks of a match, without values.
pub(crate) type Masks = Arc<[TunMetadata]>;

pub(crate) fn masks_of(fields: &[TunMetadata]) -> Masks {
    let zero = |t: &TunMetadata| TunMetadata { value: vec![0; t.mask.len()].into(), ..t.clone() };
    fields.iter().map(zero).collect()
}

/// What stands for a match's fields in a rule's key. Never 0. A sender cannot find two matches with
/// the same digest without the secret.
fn digest(fields: &[TunMetadata]) -> u64 {
    static SECRET: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    SECRET.hash_one(fields).max(1)
}

/// The digest of a packet's fields under these masks; None: the packet does not have all of the
/// fields.
pub(crate) fn digest_under(masks: &Masks, fields: &[TunMetadata]) -> Option<u64> {
    let one = |m: &TunMetadata| {
        let value = &get(fields, m.index)?.value;
        (value.len() == m.mask.len()).then(|| TunMetadata::masked(m.index, value, &m.mask))
    };
    masks.iter().map(one).collect::<Option<Vec<_>>>().map(|all| digest(&all))
}

/// Key and mask of a match, as in rules.
pub(crate) fn in_rule(m: &Match) -> (Key, Mask) {
    let (mut key, mut mask) = (m.key, m.mask);
    if !m.tun.is_empty() {
        key.set_u64(at::TUN_MATCH, digest(&m.tun));
        mask.set_u64(at::TUN_MATCH, !0);
    }
    (key, mask)
}

/// The match with fields of the length of their options. Errors: `FlowInvalidTlvField`.
pub(crate) fn fitted<'m>(table: &TlvTable, m: &'m Match) -> Result<Cow<'m, Match>, OfError> {
    if m.tun.is_empty() {
        return Ok(Cow::Borrowed(m));
    }
    let fit = |t: &TunMetadata| {
        let len = table.len_of(t.index).ok_or(OfError::FlowInvalidTlvField)?;
        Ok(t.resized(len))
    };
    let tun = m.tun.iter().map(fit).collect::<Result<_, OfError>>()?;
    Ok(Cow::Owned(Match { tun, ..m.clone() }))
}

/// The instructions, with options that are set in the length of their fields: what sets all of one
/// is shown without a mask.
pub(crate) fn fitted_instructions(table: &TlvTable, list: &[Instruction]) -> Arc<[Instruction]> {
    if table.fields.is_empty() {
        return list.into();
    }
    let mut list = list.to_vec();
    for instruction in &mut list {
        if let Instruction::Apply(actions) | Instruction::Write(actions) = instruction {
            fit_actions(table, actions);
        }
    }
    list.into()
}

fn fit_actions(table: &TlvTable, list: &mut [Action]) {
    for a in list {
        match a {
            Action::SetTunMetadata(t) if !t.is_exact() => {
                let len = table.len_of(t.index).unwrap_or(t.value.len());
                **t = t.resized(len);
            }
            Action::Clone(inner) => fit_actions(table, inner),
            _ => {}
        }
    }
}

/// Checks that all options of an action are fields of the bridge. Errors: `FlowInvalidTlvField`,
/// `ActBadSetLen`.
pub(crate) fn check(table: &TlvTable, a: &Action) -> Result<(), OfError> {
    let mut result = Ok(());
    each_field(a, &mut |index, end| {
        let len = table.len_of(index).ok_or(OfError::FlowInvalidTlvField);
        let fits = len.and_then(|l| if end <= 8 * l { Ok(()) } else { Err(OfError::ActBadSetLen) });
        result = result.and(fits);
    });
    result
}

/// Calls `f` with each option that an action uses, and the end of the bits that it uses.
pub(crate) fn each_field(a: &Action, f: &mut dyn FnMut(u8, usize)) {
    let mut sub = |s: &Subfield| {
        if let Field::TunMetadata(i) = s.field {
            f(i, usize::from(s.ofs) + usize::from(s.bits));
        }
    };
    match a {
        Action::Load { dst: s, .. } | Action::Push(s) | Action::Pop(s) => sub(s),
        Action::OutputReg { src: s, .. } => sub(s),
        Action::Move { src, dst } => {
            sub(src);
            sub(dst);
        }
        Action::SetTunMetadata(t) => f(t.index, 0),
        Action::DeleteField(Field::TunMetadata(i)) => f(*i, 0),
        Action::CheckPktLarger { dst, .. } => sub(dst),
        Action::Clone(list) => list.iter().for_each(|a| each_field(a, f)),
        Action::Ct(ct) => {
            if let Zone::Field(s) = &ct.zone {
                sub(s);
            }
            ct.actions.iter().for_each(|a| each_field(a, f));
        }
        _ => {}
    }
}
