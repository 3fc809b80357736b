//! What each request does, and what is answered.

use super::{ConnId, bundle, multipart, queues, role};
use crate::state::{Shared, State};
use crate::vlog;
use ofproto::{BridgeId, BundleItem};
use openflow::codec::{self, Dialect, ERROR_DATA, ReplyTo};
use openflow::{
    BundleStep, FlowFormat, FlowMod, FlowModCommand, MeterCommand, MultipartRequest, NO_BUFFER,
    OfError, PacketOut, Reply, Request, Role, SwitchConfig,
};

const MODULE: &str = "ofproto";

/// Handles one message; false ends the connection.
pub async fn message(state: &Shared, id: ConnId, bytes: &[u8]) -> bool {
    let request = {
        let mut s = state.borrow_mut();
        let Some(conn) = s.conns.get_mut(&id) else { return false };
        let (bridge, dialect) = (conn.bridge.clone(), conn.dialect);
        if conn.kind.is_controller() {
            s.snoops.copy(&bridge, bytes);
        }
        match dialect {
            None => return hello(&mut s, id, bytes),
            Some(d) => decode(&mut s, id, d, bytes),
        }
    };
    let Some((to, request)) = request else { return true };
    if let Request::Multipart(MultipartRequest::Flow(select)) = &request {
        let answered = multipart::flows(state, id, to, select).await;
        let mut s = state.borrow_mut();
        if let Err(error) = answered {
            refuse(&mut s, id, to, error, bytes);
        }
        return s.conns.contains_key(&id);
    }
    let waits = matches!(
        request,
        Request::Barrier | Request::BundleControl { step: BundleStep::CommitRequest, .. }
    );
    let reply = {
        let mut s = state.borrow_mut();
        let reply = handle(&mut s, id, to.xid, request, bytes);
        s.deliver(Some((id, to.xid)));
        if waits {
            s.flush_changes();
        }
        reply
    };
    if waits {
        crate::state::settle(state).await;
    }
    let mut s = state.borrow_mut();
    match reply {
        // Echoes come in any version, and go back in it.
        Ok(Some(reply @ Reply::EchoReply(_))) => {
            match bytes.first().and_then(|v| codec::version(*v)) {
                Some(version) => s.reply_in(id, version, to.xid, &reply),
                None => s.reply(id, to, &reply),
            }
        }
        Ok(Some(reply)) => s.reply(id, to, &reply),
        Ok(None) => {}
        Err(error) => refuse(&mut s, id, to, error, bytes),
    }
    s.conns.contains_key(&id)
}

/// Answers a message with an error.
fn refuse(s: &mut State, id: ConnId, to: ReplyTo, error: OfError, bytes: &[u8]) {
    let data = bytes[..bytes.len().min(ERROR_DATA)].to_vec();
    vlog::info!("connmgr", "{}: sending {error:?} error reply", s.conn_name(id));
    s.reply(id, to, &Reply::Error { error, data });
}

/// The first message must be a hello with a version in common.
fn hello(s: &mut State, id: ConnId, bytes: &[u8]) -> bool {
    let ours = s.versions_of(id);
    let Some(conn) = s.conns.get_mut(&id) else { return false };
    let agreed = match codec::decode_hello(bytes) {
        Ok(theirs) => codec::agree(ours, theirs),
        Err(_) => {
            vlog::warn!(MODULE, "{}: connection does not begin with a hello", conn.bridge);
            return false;
        }
    };
    let Some(version) = agreed else {
        let theirs = codec::decode_hello(bytes).unwrap_or(0);
        conn.send(codec::hello_failed(0, ours, theirs));
        return false;
    };
    conn.dialect = Some(version.into());
    s.conn_ready(id);
    true
}

fn decode(s: &mut State, id: ConnId, dialect: Dialect, bytes: &[u8]) -> Option<(ReplyTo, Request)> {
    match codec::decode(dialect, bytes) {
        Ok(decoded) => Some(decoded),
        Err(e) => {
            let xid = e.xid;
            vlog::info!("connmgr", "{}: sending {:?} error reply", s.conn_name(id), e.error);
            let version = bytes.first().and_then(|v| codec::version(*v)).unwrap_or(dialect.version);
            if version != dialect.version {
                vlog::err!(
                    "vconn",
                    "{}: received OpenFlow version 0x{:02x} != expected {:02x}",
                    s.conn_name(id),
                    version as u8,
                    dialect.version as u8
                );
            }
            s.reply_in(id, version, xid, &e.reply());
            None
        }
    }
}

/// Changes the switch as the request says; the reply, if it has one.
/// `bytes`: the whole message.
fn handle(
    s: &mut State,
    id: ConnId,
    xid: u32,
    request: Request,
    bytes: &[u8],
) -> Result<Option<Reply>, OfError> {
    let conn = s.conns.get_mut(&id).ok_or(OfError::BadType)?;
    let secondary = conn.role == Role::Secondary;
    if secondary && changes(&request) {
        return Err(OfError::IsSlave);
    }
    let bridge = s.bridge_id(id).ok_or(OfError::BadType)?;
    let now = s.now_ns();
    let conn = s.conns.get_mut(&id).ok_or(OfError::BadType)?;
    let reply = match request {
        Request::Hello { .. } | Request::EchoReply(_) | Request::Error { .. } => None,
        Request::EchoRequest(data) => Some(Reply::EchoReply(data)),
        Request::Features => Some(s.features(id)),
        Request::GetConfig => {
            let config = conn.config;
            Some(Reply::Config(SwitchConfig { frag: s.frag(id), ..config }))
        }
        Request::SetConfig(config) => {
            conn.configure(config);
            s.set_frag(id, config.frag)?;
            s.update_misses(bridge);
            None
        }
        Request::Barrier => Some(Reply::Barrier),
        Request::FlowMod(fm) => {
            flow_mod(s, id, &fm, now)?;
            None
        }
        Request::GroupMod(gm) => {
            s.ofproto.group_mod(bridge, &gm, now)?;
            None
        }
        // There are no meters: none can be added, and none is left to delete.
        Request::MeterMod(m) if m.command == MeterCommand::Delete => None,
        Request::MeterMod(m) if m.command == MeterCommand::Modify => {
            return Err(OfError::MeterUnknownMeter);
        }
        Request::MeterMod(_) => return Err(OfError::MeterOutOfMeters),
        Request::PortMod(pm) => {
            s.port_mod(id, &pm)?;
            None
        }
        Request::TableMod { table, config } => {
            table_mod(table, config)?;
            None
        }
        Request::PacketOut(po) => {
            packet_out(s, id, &po)?;
            None
        }
        Request::Multipart(m) => multipart::answer(s, id, m)?.map(Reply::Multipart),
        Request::QueueGetConfig { port } => {
            let queues = s.queues(id, port, queues::ALL)?;
            Some(Reply::QueueConfig { port, queues })
        }
        Request::Role { role, generation } => Some(role::set(s, id, role, generation)?),
        Request::GetAsync => Some(Reply::Async(conn.wants)),
        Request::BundleControl { id: b, step: BundleStep::CommitRequest, flags } => {
            let messages = bundle::take(conn, b, flags)?;
            commit(s, id, messages)?;
            Some(Reply::BundleControl { id: b, step: BundleStep::CommitReply, flags })
        }
        Request::BundleControl { id: b, step, flags } => {
            Some(bundle::control(conn, b, step, flags, (bytes, now))?)
        }
        Request::BundleAdd { id: b, flags, xid: inner_xid, inner } => {
            if inner_xid != xid {
                return Err(OfError::BundleMsgBadXid);
            }
            bundle::add(conn, b, flags, (inner_xid, *inner, bytes), now)?;
            None
        }
        request => return connection(s, id, bridge, request).map(|()| None),
    };
    Ok(reply)
}

/// What a connection sets for itself.
fn connection(
    s: &mut State,
    id: ConnId,
    bridge: BridgeId,
    request: Request,
) -> Result<(), OfError> {
    let conn = s.conns.get_mut(&id).ok_or(OfError::BadType)?;
    match request {
        Request::SetAsync(wants) => {
            conn.wants = wants;
            s.update_misses(bridge);
        }
        Request::SetPacketInFormat(format) => {
            conn.dialect.iter_mut().for_each(|d| d.packet_in = format);
        }
        Request::SetFlowFormat(format) => {
            conn.dialect.iter_mut().for_each(|d| d.nxm = format == FlowFormat::Nxm);
        }
        Request::FlowModTableId(on) => {
            conn.dialect.iter_mut().for_each(|d| d.table_id = on);
        }
        Request::SetControllerId(v) => {
            conn.id = v;
            s.update_misses(bridge);
        }
        Request::MonitorCancel(m) => {
            conn.monitors.remove(&m).ok_or(OfError::MonitorUnknown)?;
            s.update_monitored(bridge);
        }
        Request::Unsupported(error) => return Err(error),
        _ => return Err(OfError::BadType),
    }
    Ok(())
}

/// Requests that a secondary controller may not make.
fn changes(r: &Request) -> bool {
    matches!(
        r,
        Request::FlowMod(_)
            | Request::GroupMod(_)
            | Request::MeterMod(_)
            | Request::PortMod(_)
            | Request::TableMod { .. }
            | Request::PacketOut(_)
            | Request::BundleControl { .. }
            | Request::BundleAdd { .. }
    )
}

/// Tables cannot be made to evict flows or to tell of vacancies.
fn table_mod(table: u8, config: u32) -> Result<(), OfError> {
    const EVICTION_OR_VACANCY: u32 = 0b1100;
    match () {
        () if table != openflow::TABLE_ALL && usize::from(table) >= ofproto::N_TABLES => {
            Err(OfError::TableModBadTable)
        }
        () if config & EVICTION_OR_VACANCY != 0 => Err(OfError::TableModEperm),
        () if config != 0 => Err(OfError::TableModBadConfig),
        () => Ok(()),
    }
}

fn flow_mod(s: &mut State, id: ConnId, fm: &FlowMod, now: u64) -> Result<(), OfError> {
    let bridge = s.bridge_id(id).ok_or(OfError::BadType)?;
    check(s, id, fm)?;
    s.ofproto.flow_mod(bridge, fm, now)?;
    // Packets are not buffered here, so a buffer id can only be unknown.
    if fm.buffer_id != NO_BUFFER {
        return Err(OfError::BufferUnknown);
    }
    Ok(())
}

fn packet_out(s: &mut State, id: ConnId, po: &PacketOut) -> Result<(), OfError> {
    if po.buffer_id != NO_BUFFER {
        return Err(OfError::BufferUnknown);
    }
    let bridge = s.bridge_id(id).ok_or(OfError::BadType)?;
    s.flush_changes();
    s.packet_out(bridge, po)
}

fn commit(s: &mut State, id: ConnId, messages: Vec<bundle::Message>) -> Result<(), OfError> {
    let bridge = s.bridge_id(id).ok_or(OfError::BadType)?;
    let now = s.now_ns();
    let items: Vec<BundleItem> = messages.iter().filter_map(|m| item(&m.request)).collect();
    match check_all(s, id, &items).and_then(|()| s.ofproto.bundle(bridge, &items, now)) {
        Ok(()) => {
            s.flush_changes();
            for item in &items {
                if let BundleItem::PacketOut(po) = item {
                    s.packet_out(bridge, po)?;
                }
            }
            Ok(())
        }
        Err((index, error)) => {
            if let Some(m) = messages.into_iter().nth(index) {
                vlog::info!("connmgr", "{}: sending {error:?} error reply", s.conn_name(id));
                s.reply(id, m.xid, &Reply::Error { error, data: m.bytes });
            }
            Err(OfError::BundleMsgFailed)
        }
    }
}

/// A bundled message as the switch half takes it; others were refused when they came.
fn item(r: &Request) -> Option<BundleItem> {
    match r {
        Request::FlowMod(m) => Some(BundleItem::Flow(m.clone())),
        Request::GroupMod(m) => Some(BundleItem::Group(m.clone())),
        Request::PortMod(m) => Some(BundleItem::Port(m.clone())),
        Request::PacketOut(m) => Some(BundleItem::PacketOut(m.clone())),
        _ => None,
    }
}

fn check_all(s: &State, id: ConnId, items: &[BundleItem]) -> Result<(), (usize, OfError)> {
    for (i, item) in items.iter().enumerate() {
        if let BundleItem::Flow(fm) = item {
            check(s, id, fm).map_err(|e| (i, e))?;
        }
    }
    Ok(())
}

/// Do the instructions of a flow-mod fit its match, by the rules of the connection's version?
fn check(s: &State, id: ConnId, fm: &FlowMod) -> Result<(), OfError> {
    if matches!(fm.command, FlowModCommand::Delete | FlowModCommand::DeleteStrict) {
        return Ok(());
    }
    let version = s.conns.get(&id).and_then(|c| c.dialect).ok_or(OfError::BadType)?.version;
    let n_tables = ofproto::N_TABLES as u8;
    openflow::check::check_instructions(&fm.instructions, &fm.matching, version, n_tables, fm.table)
}
