//! Multipart (1.0: statistics) requests and replies, and cutting long replies into messages.

use super::begun::{MAX_LEN, begin, finish, vendor};
use super::kinds::Kind;
use super::{Dialect, Form, NX, ONF, ReplyTo};
use super::{flow_stats, group, lengths, meter, monitor, port, queue};
use super::{table, table_change, table_features_codec};
use crate::buf::{Put, Rd, Result};
use crate::{
    IpfixStats, MultipartReply as Reply, MultipartRequest, OfError, Request, TableFeaturesPart,
    TableStats, Version, port as ports,
};

const EXPERIMENTER: u16 = 0xffff;
const TABLE_FEATURES: u16 = 12;
const MORE: u16 = 1;
/// ONFST_FLOW_MONITOR.
const ONF_MONITOR: u32 = 1870;

/// MULTIPART_REQUEST. Says in `to` which form the reply takes.
pub(super) fn decode(version: Version, mut rd: Rd<'_>, to: &mut ReplyTo) -> Result<Request> {
    let kind = rd.u16()?;
    let flags = rd.u16()?;
    if version != Version::V10 {
        rd.skip(4)?;
    }
    let request = if kind == EXPERIMENTER {
        experimenter(version, flags, rd, to)?
    } else {
        let length = lengths::of_multipart(version, kind).ok_or(OfError::BadStat)?;
        whole(flags, kind == TABLE_FEATURES, length, rd)?;
        standard(version, (kind, flags), rd, to)?
    };
    Ok(Request::Multipart(request))
}

/// Checks that a request's body has a length that it can have, and is in one message. Requests in
/// several messages exist for table features only.
fn whole(flags: u16, pieces: bool, length: lengths::Length, rd: Rd<'_>) -> Result<()> {
    match () {
        () if !length.fits(rd.left()) => Err(OfError::BadLen),
        () if flags & MORE != 0 && !pieces => Err(OfError::MultipartBufferOverflow),
        () => Ok(()),
    }
}

/// A request without a body.
fn bare(rd: Rd<'_>, request: MultipartRequest) -> Result<MultipartRequest> {
    if rd.is_empty() { Ok(request) } else { Err(OfError::BadLen) }
}

/// A request whose body is one number and padding.
fn id(mut rd: Rd<'_>) -> Result<u32> {
    let id = rd.u32()?;
    rd.skip(4)?;
    if rd.is_empty() { Ok(id) } else { Err(OfError::BadLen) }
}

fn standard(
    version: Version,
    (kind, flags): (u16, u16),
    rd: Rd<'_>,
    to: &mut ReplyTo,
) -> Result<MultipartRequest> {
    use MultipartRequest::*;
    let since = |first: Version| if version >= first { Ok(()) } else { Err(OfError::BadStat) };
    match kind {
        0 => bare(rd, Desc),
        1 => flow_stats::decode_select(version, rd).map(Flow),
        2 => flow_stats::decode_select(version, rd).map(Aggregate),
        3 => bare(rd, Table),
        4 => port::decode_stats_request(version, rd).map(PortStats),
        5 => queue::decode_request(version, rd).map(|(port, queue)| QueueStats { port, queue }),
        6 => since(Version::V11).and_then(|()| id(rd)).map(GroupStats),
        7 if version == Version::V15 => id(rd).map(GroupDesc),
        7 => since(Version::V11).and_then(|()| bare(rd, GroupDesc(group::ALL))),
        8 => since(Version::V12).and_then(|()| bare(rd, GroupFeatures)),
        9 => since(Version::V13).and_then(|()| id(rd)).map(MeterStats),
        10 => since(Version::V13).and_then(|()| id(rd)).map(MeterConfig),
        11 => since(Version::V13).and_then(|()| bare(rd, MeterFeatures)),
        TABLE_FEATURES => {
            since(Version::V13)?;
            let tables = table_change::decode(version, rd);
            Ok(TableFeatures(TableFeaturesPart { more: flags & MORE != 0, tables }))
        }
        13 if version == Version::V15 => port::decode_stats_request(version, rd).map(PortDesc),
        13 => bare(rd, PortDesc(ports::ANY)),
        14 => since(Version::V14).and_then(|()| bare(rd, TableDesc)),
        15 => since(Version::V14)
            .and_then(|()| queue::decode_request(version, rd))
            .map(|(port, queue)| QueueDesc { port, queue }),
        16 => since(Version::V14).and_then(|()| monitor::decode14(version, rd)).map(FlowMonitor),
        17 => {
            since(Version::V15)?;
            to.form = Form::FlowStats15;
            flow_stats::decode_select(version, rd).map(Flow)
        }
        _ => Err(OfError::BadStat),
    }
}

fn experimenter(
    version: Version,
    flags: u16,
    mut rd: Rd<'_>,
    to: &mut ReplyTo,
) -> Result<MultipartRequest> {
    use MultipartRequest::*;
    let (vendor, subtype) = (rd.u32()?, rd.u32()?);
    if vendor == ONF {
        to.form = Form::Onf;
        return match subtype {
            ONF_MONITOR if version == Version::V13 => {
                whole(flags, false, lengths::UNITS, rd)?;
                monitor::decode_onf(rd).map(FlowMonitor)
            }
            _ => Err(OfError::BadExpType),
        };
    }
    if vendor != NX {
        return Err(OfError::BadExperimenter);
    }
    to.form = Form::Nicira;
    if version == Version::V10 {
        rd.skip(4)?;
    }
    let length = lengths::of_nicira_multipart(version, subtype).ok_or(OfError::BadExpType)?;
    whole(flags, false, length, rd)?;
    match subtype {
        0 => flow_stats::decode_select_nx(rd).map(Flow),
        1 => flow_stats::decode_select_nx(rd).map(Aggregate),
        2 => monitor::decode_nx(rd).map(FlowMonitor),
        7 => id(rd).map(GroupStats),
        8 => id(rd).map(GroupDesc),
        9 => bare(rd, GroupFeatures),
        3 => bare(rd, IpfixBridge),
        4 => bare(rd, IpfixFlow),
        _ => Err(OfError::BadExpType),
    }
}

/// The messages of one reply, filled entry by entry.
pub(super) struct Parts {
    header: Vec<u8>,
    flags_at: usize,
    current: Vec<u8>,
    done: Vec<Vec<u8>>,
    /// Entries that fit in no message.
    left_out: usize,
}

impl Parts {
    /// Starts a reply of multipart type `kind`; in an experimenter form that is its subtype.
    pub fn new(version: Version, to: ReplyTo, kind: u32) -> Parts {
        let mut m = begin(version, Kind::MultipartReply, to.xid);
        let vendor = vendor(to.form);
        m.u16(if vendor.is_some() { EXPERIMENTER } else { kind as u16 });
        m.u16(0);
        if version != Version::V10 {
            m.pad(4);
        }
        if let Some(vendor) = vendor {
            m.u32(vendor);
            m.u32(kind);
            m.pad(if version == Version::V10 { 4 } else { 0 });
        }
        Parts { flags_at: 10, current: m.clone(), header: m, done: Vec::new(), left_out: 0 }
    }

    /// Adds one entry, which stays in one message. An entry that fits in none is left out.
    pub fn entry(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.current.len();
        write(&mut self.current);
        if self.current.len() <= MAX_LEN {
            return;
        }
        let entry = self.current.split_off(start);
        if self.header.len() + entry.len() > MAX_LEN {
            self.left_out += 1;
            return;
        }
        let mut next = self.header.clone();
        next.raw(&entry);
        let full = std::mem::replace(&mut self.current, next);
        self.push(full, true);
    }

    fn push(&mut self, mut m: Vec<u8>, more: bool) {
        if more {
            m[self.flags_at + 1] |= MORE as u8;
        }
        self.done.push(finish(m));
    }

    /// The messages, and how many entries fit in none; `more`: further replies follow.
    pub fn finish(mut self, more: bool) -> (Vec<Vec<u8>>, usize) {
        let last = std::mem::take(&mut self.current);
        self.push(last, more);
        (self.done, self.left_out)
    }

    /// One entry for each item.
    pub fn each<T>(mut self, items: &[T], write: impl Fn(&T, &mut Vec<u8>)) -> Parts {
        for item in items {
            self.entry(|m| write(item, m));
        }
        self
    }
}

/// The multipart type of a reply (for Nicira's and ONF's forms: the subtype).
fn number(to: ReplyTo, reply: &Reply) -> u32 {
    match (to.form, reply) {
        (Form::FlowStats15, Reply::Flow(_)) => 17,
        (Form::Nicira, Reply::Flow(_)) => 0,
        (Form::Nicira, Reply::Aggregate { .. }) => 1,
        (Form::Nicira, Reply::FlowMonitor(_)) => 2,
        (Form::Nicira, Reply::GroupStats(_)) => 7,
        (Form::Nicira, Reply::GroupDesc(_)) => 8,
        (Form::Nicira, Reply::GroupFeatures { .. }) => 9,
        (_, Reply::IpfixBridge(_)) => 3,
        (_, Reply::IpfixFlow(_)) => 4,
        (Form::Onf, _) => ONF_MONITOR,
        (_, Reply::Desc { .. }) => 0,
        (_, Reply::Flow(_)) => 1,
        (_, Reply::Aggregate { .. }) => 2,
        (_, Reply::Table(_)) => 3,
        (_, Reply::PortStats(_)) => 4,
        (_, Reply::QueueStats(_)) => 5,
        (_, Reply::GroupStats(_)) => 6,
        (_, Reply::GroupDesc(_)) => 7,
        (_, Reply::GroupFeatures { .. }) => 8,
        (_, Reply::MeterStats(_)) => 9,
        (_, Reply::MeterConfig(_)) => 10,
        (_, Reply::MeterFeatures { .. }) => 11,
        (_, Reply::TableFeatures(_)) => 12,
        (_, Reply::PortDesc(_)) => 13,
        (_, Reply::TableDesc(_)) => 14,
        (_, Reply::QueueDesc(_)) => 15,
        (_, Reply::FlowMonitor(_)) => 16,
    }
}

/// Encodes a reply, in as many messages as it takes; `more`: further parts follow. Returns also how
/// many entries fit in no message.
pub(super) fn encode(
    dialect: Dialect,
    to: ReplyTo,
    reply: &Reply,
    more: bool,
) -> (Vec<Vec<u8>>, usize) {
    let version = dialect.version;
    let nicira = to.form == Form::Nicira;
    let mut parts = Parts::new(version, to, number(to, reply));
    parts = match reply {
        Reply::Flow(flows) => parts.each(flows, |s, m| match to.form {
            Form::Nicira => flow_stats::put_flow_nx(s, m),
            Form::FlowStats15 => flow_stats::put_flow_short(s, m),
            _ => flow_stats::put_flow(version, s, m),
        }),
        Reply::IpfixFlow(all) => parts.each(all, put_ipfix),
        Reply::Table(tables) => {
            let last = last_of(tables);
            parts.each(tables, |t, m| table::put_stats(version, t, last, m))
        }
        Reply::TableFeatures(tables) => {
            let last = last_of(tables);
            parts.each(tables, |t, m| table_features_codec::put(version, t, last, m))
        }
        Reply::TableDesc(tables) => parts.each(tables, table::put_desc),
        Reply::PortStats(list) => parts.each(list, |s, m| port::put_stats(version, s, m)),
        Reply::PortDesc(list) => parts.each(list, |d, m| port::put_desc(version, d, m)),
        Reply::QueueStats(list) => parts.each(list, |q, m| queue::put_stats(version, q, m)),
        Reply::QueueDesc(list) => parts.each(list, queue::put_desc),
        Reply::GroupStats(list) => {
            let durations = version >= Version::V13 || nicira;
            parts.each(list, |g, m| group::put_stats(durations, g, m))
        }
        Reply::GroupDesc(list) => {
            let form = if nicira { Version::V15 } else { version };
            parts.each(list, |g, m| group::put_desc(form, version, g, m))
        }
        Reply::MeterStats(list) => parts.each(list, meter::put_stats),
        Reply::MeterConfig(list) => parts.each(list, meter::put_config),
        Reply::FlowMonitor(list) => parts.each(list, |u, m| monitor::put(version, to, true, u, m)),
        _ => {
            parts.entry(|m| put_single(version, nicira, reply, m));
            parts
        }
    };
    parts.finish(more)
}

/// The highest of the tables.
fn last_of(tables: &[TableStats]) -> u8 {
    tables.iter().map(|t| t.table).max().unwrap_or(0)
}

/// `struct nx_ipfix_stats_reply`.
fn put_ipfix(s: &IpfixStats, m: &mut Vec<u8>) {
    let counts = [s.flows, s.current_flows, s.packets, s.ipv4, s.ipv6];
    let errors = [s.errors, s.ipv4_errors, s.ipv6_errors, s.sent, s.failed];
    counts.iter().chain(&errors).for_each(|n| m.u64(*n));
    m.u32(s.set);
    m.pad(4);
}

/// Replies with one fixed body.
fn put_single(version: Version, nicira: bool, reply: &Reply, m: &mut Vec<u8>) {
    match reply {
        Reply::Desc { manufacturer, hardware, software, serial, datapath } => {
            m.text(manufacturer, 256);
            m.text(hardware, 256);
            m.text(software, 256);
            m.text(serial, 32);
            m.text(datapath, 256);
        }
        Reply::Aggregate { packets, bytes, flows } => {
            let form = if nicira { Version::V10 } else { version };
            flow_stats::put_aggregate(form, *packets, *bytes, *flows, m);
        }
        Reply::IpfixBridge(stats) => put_ipfix(stats, m),
        Reply::GroupFeatures { types, capabilities, max_groups, actions } => {
            let numbers = [&[*types, *capabilities], &max_groups[..], &actions[..]].concat();
            numbers.iter().for_each(|n| m.u32(*n));
        }
        Reply::MeterFeatures { max_meters, band_types, capabilities, max_bands, max_color } => {
            m.u32(*max_meters);
            m.u32(*band_types);
            m.u32(*capabilities);
            m.u8(*max_bands);
            m.u8(*max_color);
            m.pad(2);
        }
        _ => {}
    }
}
