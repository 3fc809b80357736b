//! What each request does, and what is answered.

use super::{Conn, ConnId, bundle, multipart};
use crate::state::{Shared, State};
use crate::vlog;
use ofproto::BundleItem;
use openflow::codec::{self, Dialect, ReplyTo};
use openflow::{
    BundleStep, FlowFormat, FlowMod, FlowModCommand, NO_BUFFER, OfError, PacketOut, Reply, Request,
    Role,
};

const MODULE: &str = "ofproto";

/// Handles one message; false ends the connection.
pub async fn message(state: &Shared, id: ConnId, bytes: &[u8]) -> bool {
    let request = {
        let mut s = state.borrow_mut();
        let Some(conn) = s.conns.get_mut(&id) else { return false };
        let (bridge, dialect) = (conn.bridge.clone(), conn.dialect);
        s.snoop(&bridge, bytes);
        match dialect {
            None => return hello(&mut s, id, bytes),
            Some(d) => decode(&mut s, id, d, bytes),
        }
    };
    let Some((to, request)) = request else { return true };
    let waits = matches!(
        request,
        Request::Barrier | Request::BundleControl { step: BundleStep::CommitRequest, .. }
    );
    let reply = {
        let mut s = state.borrow_mut();
        let reply = handle(&mut s, id, to.xid, request);
        if waits {
            s.flush_changes();
        }
        reply
    };
    if waits {
        crate::state::settle(state).await;
    }
    let mut s = state.borrow_mut();
    let Some(conn) = s.conns.get_mut(&id) else { return false };
    match reply {
        Ok(Some(reply)) => conn.reply(to, &reply),
        Ok(None) => {}
        Err(error) => {
            let data = bytes[..bytes.len().min(64)].to_vec();
            conn.reply(to, &Reply::Error { error, data });
        }
    }
    true
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
            s.conns.get_mut(&id)?.reply(xid, &e.reply());
            None
        }
    }
}

/// Changes the switch as the request says; the reply, if it has one.
fn handle(s: &mut State, id: ConnId, xid: u32, request: Request) -> Result<Option<Reply>, OfError> {
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
        Request::GetConfig => Some(Reply::Config(conn.config)),
        Request::SetConfig(config) => {
            conn.config = config;
            s.set_frag(id, config.frag)?;
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
        Request::MeterMod(_) => return Err(OfError::MeterOutOfMeters),
        Request::PortMod(pm) => {
            s.port_mod(id, &pm)?;
            None
        }
        Request::TableMod { .. } => return Err(OfError::TableModEperm),
        Request::PacketOut(po) => {
            packet_out(s, id, &po)?;
            None
        }
        Request::Multipart(m) => multipart::answer(s, id, m)?.map(Reply::Multipart),
        Request::QueueGetConfig { port } => Some(Reply::QueueConfig { port }),
        Request::Role { role, generation } => Some(set_role(s, id, role, generation)?),
        Request::GetAsync => Some(Reply::Async(conn.wants)),
        Request::SetAsync(wants) => {
            conn.wants = wants;
            None
        }
        Request::BundleControl { id: b, step: BundleStep::CommitRequest, flags } => {
            let messages = bundle::take(conn, b, flags)?;
            commit(s, id, messages)?;
            Some(Reply::BundleControl { id: b, step: BundleStep::CommitReply, flags })
        }
        Request::BundleControl { id: b, step, flags } => {
            Some(bundle::control(conn, b, step, flags)?)
        }
        Request::BundleAdd { id: b, flags, xid: inner_xid, inner } => {
            if inner_xid != xid {
                return Err(OfError::BundleMsgBadXid);
            }
            bundle::add(conn, b, flags, inner_xid, *inner)?;
            None
        }
        Request::SetPacketInFormat(format) => {
            conn.dialect.iter_mut().for_each(|d| d.packet_in = format);
            None
        }
        Request::SetFlowFormat(format) => {
            conn.dialect.iter_mut().for_each(|d| d.nxm = format == FlowFormat::Nxm);
            None
        }
        Request::FlowModTableId(on) => {
            conn.dialect.iter_mut().for_each(|d| d.table_id = on);
            None
        }
        Request::SetControllerId(v) => {
            conn.id = v;
            None
        }
        Request::MonitorCancel(m) => {
            conn.monitors.remove(&m).ok_or(OfError::MonitorUnknown)?;
            None
        }
        Request::Unsupported(error) => return Err(error),
    };
    Ok(reply)
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

fn commit(s: &mut State, id: ConnId, messages: Vec<(u32, Request)>) -> Result<(), OfError> {
    let bridge = s.bridge_id(id).ok_or(OfError::BadType)?;
    let now = s.now_ns();
    let items: Vec<BundleItem> = messages.iter().filter_map(|(_, r)| item(r)).collect();
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
            let xid = messages.get(index).map_or(0, |m| m.0);
            if let Some(conn) = s.conns.get_mut(&id) {
                conn.reply(xid, &Reply::Error { error, data: Vec::new() });
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

/// Role change (OpenFlow 1.3 section 6.3.6): generation ids only ever grow; one primary.
fn set_role(
    s: &mut State,
    id: ConnId,
    role: Role,
    generation: Option<u64>,
) -> Result<Reply, OfError> {
    let name = s.conns.get(&id).map(|c| c.bridge.clone()).unwrap_or_default();
    let known = s.bridges.get_mut(&name).ok_or(OfError::BadType)?;
    if let (Role::Primary | Role::Secondary, Some(g)) = (role, generation) {
        if known.generation.is_some_and(|old| (g.wrapping_sub(old) as i64) < 0) {
            return Err(OfError::RoleStale);
        }
        known.generation = Some(g);
    }
    let generation = known.generation.unwrap_or(u64::MAX);
    if role == Role::Primary {
        for (other, c) in s.conns.iter_mut() {
            if *other != id && c.bridge == name && c.role == Role::Primary {
                c.role = Role::Secondary;
            }
        }
    }
    let conn: &mut Conn = s.conns.get_mut(&id).ok_or(OfError::BadType)?;
    if role != Role::NoChange {
        conn.role = role;
    }
    Ok(Reply::Role { role: conn.role, generation })
}
