//! Multipart requests: statistics and descriptions.

use super::account::{MONITORS_BRIDGE_MAX, MONITORS_MAX};
use super::async_msgs::shown;
use super::io::drained;
use super::{ConnId, table_features};
use crate::state::{Shared, State};
use openflow::codec::ReplyTo;
use openflow::{
    FlowSelect, MonitorRequest, MonitorUpdate, MultipartReply, MultipartRequest, OfError, Reply,
    Role, TableFeaturesPart, Version, monitor_flag, port,
};
use std::collections::VecDeque;

/// Drop and DSCP remark; kbit/s, packets per second, bursts, statistics.
const METER_FEATURES: MultipartReply = MultipartReply::MeterFeatures {
    max_meters: ofproto::METERS_MAX,
    band_types: 0b110,
    capabilities: 0b1111,
    max_bands: action::METER_BANDS_MAX as u8,
    max_color: 0,
};

/// The answer; None when the request has no body to send.
pub fn answer(
    s: &mut State,
    id: ConnId,
    request: MultipartRequest,
) -> Result<Option<MultipartReply>, OfError> {
    use MultipartRequest as Q;
    let bridge = s.bridge_id(id).ok_or(OfError::BadType)?;
    let version = s.conns.get(&id).and_then(|c| c.version()).ok_or(OfError::BadType)?;
    let reply = match request {
        Q::Desc => desc(s, id),
        // Flows are sent and counted piece by piece ([`flows`], [`aggregate`]).
        Q::Flow(_) | Q::Aggregate(_) => return Ok(None),
        Q::Table => MultipartReply::Table(s.ofproto.table_stats(bridge)?),
        // Taken message by message ([`table_features`]).
        Q::TableFeatures(_) => return Ok(None),
        Q::TableDesc => MultipartReply::TableDesc(s.ofproto.table_stats(bridge)?),
        Q::PortDesc(p) => {
            let all = s.port_descs(id);
            MultipartReply::PortDesc(
                all.into_iter().filter(|x| p == port::ANY || x.port == p).collect(),
            )
        }
        Q::QueueStats { port, queue } => {
            MultipartReply::QueueStats(s.queue_stats(id, port, queue)?)
        }
        Q::QueueDesc { port, queue } => MultipartReply::QueueDesc(s.queues(id, port, queue)?),
        // Sent piece by piece ([`numbered`]).
        Q::GroupStats(_)
        | Q::GroupDesc(_)
        | Q::MeterStats(_)
        | Q::MeterConfig(_)
        | Q::PortStats(_) => {
            return Ok(None);
        }
        Q::GroupFeatures => group_features(version),
        Q::MeterFeatures => METER_FEATURES,
        Q::IpfixBridge => MultipartReply::IpfixBridge(
            s.observers.export.ipfix_of_bridge(bridge).ok_or(OfError::NotConfigured)?,
        ),
        Q::IpfixFlow => match s.observers.export.ipfix_of_sets(bridge) {
            all if all.is_empty() => return Err(OfError::NotConfigured),
            all => MultipartReply::IpfixFlow(all),
        },
        // The flows that are there are sent piece by piece ([`monitor`]).
        Q::FlowMonitor(_) => return Ok(None),
    };
    Ok(Some(reply))
}

/// Takes a message of a table features request. The reply to the last one is how all tables are
/// then.
pub fn table_features(
    s: &mut State,
    (id, xid): (ConnId, u32),
    part: TableFeaturesPart,
    bytes: &[u8],
) -> Result<Option<Reply>, OfError> {
    let bridge = s.bridge_id(id).ok_or(OfError::BadType)?;
    let now = s.now_ns();
    let conn = s.conns.get_mut(&id).ok_or(OfError::BadType)?;
    let whole = table_features::collect(&mut conn.table_features, xid, part, (bytes, now))?;
    let Some(request) = whole else { return Ok(None) };
    if let Some((error, data)) = request.fault {
        return Ok(Some(Reply::Error { error, data }));
    }
    if !request.tables.is_empty() {
        if conn.role == Role::Secondary {
            return Err(OfError::IsSlave);
        }
        s.ofproto.name_tables(bridge, request.command, &request.tables)?;
    }
    let tables = s.ofproto.table_stats(bridge)?;
    Ok(Some(Reply::Multipart(MultipartReply::TableFeatures(tables))))
}

/// Flows that are encoded at once: about a quarter of a millisecond's work.
const PIECE: usize = 512;
/// Bytes that may wait for the peer before more flows are encoded.
const DUMP_BACKLOG_BYTES_MAX: usize = 1 << 20;

/// Counts the flows that a request means: some at a time, and others have their turn in between.
pub async fn aggregate(
    state: &Shared,
    id: ConnId,
    select: &FlowSelect,
) -> Result<MultipartReply, OfError> {
    let mut sums = {
        let s = state.borrow();
        let bridge = s.bridge_id(id).ok_or(OfError::BadType)?;
        s.ofproto.aggregate(bridge, select)?
    };
    while state.borrow().ofproto.aggregate_next(&mut sums) {
        tokio::task::yield_now().await;
    }
    let ofproto::Aggregate { packets, bytes, flows, .. } = sums;
    Ok(MultipartReply::Aggregate { packets, bytes, flows })
}

/// Answers a request for flows: some at a time, as the peer reads them, and others have their turn
/// in between. A million flows take no more memory than a thousand, but for a list of them.
pub async fn flows(
    state: &Shared,
    id: ConnId,
    to: ReplyTo,
    select: &FlowSelect,
) -> Result<(), OfError> {
    let mut dump = {
        let s = state.borrow();
        let bridge = s.bridge_id(id).ok_or(OfError::BadType)?;
        s.ofproto.dump(bridge, select)?
    };
    loop {
        let backlog = {
            let mut s = state.borrow_mut();
            let now = s.now_ns();
            let mut piece = Vec::new();
            let more = s.ofproto.dump_next(&mut dump, PIECE, now, &mut |f| piece.push(f));
            let Some(conn) = s.conns.get_mut(&id) else { return Ok(()) };
            conn.dump_bytes = if more { dump.held() } else { 0 };
            if !more || !piece.is_empty() {
                conn.reply_part(to, &MultipartReply::Flow(piece), more);
            }
            if !more {
                return Ok(());
            }
            conn.backlog.clone()
        };
        tokio::task::yield_now().await;
        drained(&backlog, DUMP_BACKLOG_BYTES_MAX).await;
    }
}

/// Answers a request for groups, meters or ports' counters: some at a time, as [`flows`] does. What
/// comes or goes meanwhile is in the answer or not.
pub async fn numbered(
    state: &Shared,
    id: ConnId,
    to: ReplyTo,
    request: &MultipartRequest,
) -> Result<(), OfError> {
    let mut from = 0;
    loop {
        let backlog = {
            let mut s = state.borrow_mut();
            let (piece, next) = numbered_piece(&mut s, id, request, from)?;
            let Some(conn) = s.conns.get_mut(&id) else { return Ok(()) };
            conn.reply_part(to, &piece, next.is_some());
            let Some(next) = next else { return Ok(()) };
            from = next;
            conn.backlog.clone()
        };
        tokio::task::yield_now().await;
        drained(&backlog, DUMP_BACKLOG_BYTES_MAX).await;
    }
}

/// Groups, meters or ports with numbers from `from` on, and where the next piece begins.
fn numbered_piece(
    s: &mut State,
    id: ConnId,
    request: &MultipartRequest,
    from: u32,
) -> Result<(MultipartReply, Option<u32>), OfError> {
    use MultipartRequest as Q;
    let (bridge, now) = (s.bridge_id(id).ok_or(OfError::BadType)?, s.now_ns());
    Ok(match request {
        Q::GroupStats(g) => {
            let piece = s.ofproto.group_stats(bridge, *g, from, now)?;
            (MultipartReply::GroupStats(piece.entries), piece.next)
        }
        Q::GroupDesc(g) => {
            let piece = s.ofproto.group_desc(bridge, *g, from)?;
            (MultipartReply::GroupDesc(piece.entries), piece.next)
        }
        Q::MeterStats(m) => {
            let piece = s.ofproto.meter_stats(bridge, *m, from, now)?;
            (MultipartReply::MeterStats(piece.entries), piece.next)
        }
        Q::MeterConfig(m) => {
            let piece = s.ofproto.meter_config(bridge, *m, from)?;
            (MultipartReply::MeterConfig(piece.entries), piece.next)
        }
        Q::PortStats(p) => {
            let (ports, next) = s.port_stats(id, *p, from);
            (MultipartReply::PortStats(ports), next)
        }
        _ => return Err(OfError::BadType),
    })
}

/// Begins monitors, and tells of the flows that are there as [`flows`] does. Changes are sent from
/// the beginning on, so that nothing is missed; a flow may be sent twice.
pub async fn monitor(
    state: &Shared,
    id: ConnId,
    to: ReplyTo,
    requests: Vec<MonitorRequest>,
) -> Result<(), OfError> {
    let (bridge, mut initial) = {
        let mut s = state.borrow_mut();
        let bridge = s.bridge_id(id).ok_or(OfError::BadType)?;
        let all = s.monitors_of(bridge);
        let conn = s.conns.get_mut(&id).ok_or(OfError::BadType)?;
        if requests.iter().any(|r| conn.monitors.contains_key(&r.id)) {
            return Err(OfError::MonitorExists);
        }
        if conn.monitors.len() + requests.len() > MONITORS_MAX
            || all + requests.len() > MONITORS_BRIDGE_MAX
        {
            return Err(OfError::RequestEperm);
        }
        let initial = requests.iter().filter(|m| m.flags & monitor_flag::INITIAL != 0);
        let initial: VecDeque<_> = initial.cloned().collect();
        conn.monitors.extend(requests.into_iter().map(|r| (r.id, r)));
        s.update_monitored(bridge);
        (bridge, initial)
    };
    // One list of flows at a time: each may be as long as the tables.
    let mut dump: Option<(ofproto::Dump, u16)> = None;
    loop {
        let backlog = {
            let mut s = state.borrow_mut();
            let now = s.now_ns();
            let mut piece = Vec::new();
            if dump.is_none() {
                let next = initial.pop_front();
                let flows = next.map(|m| s.ofproto.dump(bridge, &meant(&m)).map(|d| (d, m.flags)));
                dump = flows.transpose()?;
            }
            if let Some((flows, flags)) = &mut dump {
                let mut tell = |f| piece.push(shown(&MonitorUpdate::Added(f), *flags));
                if !s.ofproto.dump_next(flows, PIECE, now, &mut tell) {
                    dump = None;
                }
            }
            let more = dump.is_some() || !initial.is_empty();
            let Some(conn) = s.conns.get_mut(&id) else { return Ok(()) };
            conn.dump_bytes = dump.as_ref().map_or(0, |(dump, _)| dump.held());
            if !more || !piece.is_empty() {
                conn.reply_part(to, &MultipartReply::FlowMonitor(piece), more);
            }
            if !more {
                return Ok(());
            }
            conn.backlog.clone()
        };
        tokio::task::yield_now().await;
        drained(&backlog, DUMP_BACKLOG_BYTES_MAX).await;
    }
}

/// The flows that a monitor means.
fn meant(m: &MonitorRequest) -> FlowSelect {
    FlowSelect {
        table: m.table,
        out_port: m.out_port,
        out_group: m.out_group,
        matching: m.matching.clone(),
        ..FlowSelect::default()
    }
}

/// What existing controllers and tools expect to read from a switch in ovs-vswitchd's place.
fn desc(s: &State, id: ConnId) -> MultipartReply {
    let bridge = s.conns.get(&id).map(|c| c.bridge.as_str()).unwrap_or_default();
    let other = s.bridges.get(bridge).map(|b| &b.conf.other_config);
    let dp = other.and_then(|o| o.get("dp-desc")).cloned().unwrap_or_else(|| "None".into());
    let serial = other.and_then(|o| o.get("dp-sn")).cloned().unwrap_or_else(|| "None".into());
    MultipartReply::Desc {
        manufacturer: "Nicira, Inc.".into(),
        hardware: "Open vSwitch".into(),
        software: crate::OVS_VERSION.into(),
        serial,
        datapath: dp,
    }
}

/// Output, MPLS TTLs, VLAN and MPLS push and pop, queue, group, IP TTL, set-field: as bits of 1.3.
const GROUP_ACTIONS: u32 = 0x03ff_8001;
/// All actions of 1.0, as its bits.
const GROUP_ACTIONS10: u32 = 0xfff;
/// All actions of 1.1 but copying TTLs, as its bits.
const GROUP_ACTIONS11: u32 = 0x01ff_e7ff;

/// All four types; weights, liveness and chaining (whose loops are not looked for).
fn group_features(version: Version) -> MultipartReply {
    let actions = match version {
        Version::V10 => GROUP_ACTIONS10,
        Version::V11 => GROUP_ACTIONS11,
        _ => GROUP_ACTIONS,
    };
    MultipartReply::GroupFeatures {
        types: 0b1111,
        capabilities: 0b0111,
        max_groups: [0xffff_ff00; 4],
        actions: [actions; 4],
    }
}
