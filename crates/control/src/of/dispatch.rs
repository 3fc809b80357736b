//! What each request does, and what is answered.

use super::change::SLICE_FLOWS_MAX;
use super::flow_mod_log::FlowMods;
use super::{ConnId, async_msgs, bundle, change, message_text, multipart, queues, role, room};
use crate::state::of_ports::admin_up;
use crate::state::{Shared, State};
use crate::vlog;
use ofproto::{BridgeId, BundleItem, StagedPacket};
use openflow::codec::{self, Dialect, ERROR_DATA, ReplyTo};
use openflow::{
    BundleStep, FlowFormat, FlowMod, FlowModCommand, GroupCommand, GroupMod, MeterCommand,
    MeterMod, MultipartRequest, NO_BUFFER, OfError, OfPort, PacketOut, Reply, Request, Role,
    SwitchConfig, TableStats, Version,
};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

const MODULE: &str = "ofproto";

/// Handles one message; false ends the connection.
pub async fn message(state: &Shared, id: ConnId, bytes: &[u8]) -> bool {
    let request = {
        let mut s = state.borrow_mut();
        let Some(conn) = s.conns.get_mut(&id) else { return false };
        let (bridge, dialect) = (conn.bridge.clone(), conn.dialect);
        if conn.kind.is_controller() {
            s.of.snoops.copy(&bridge, bytes);
        }
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
    let is_port_mod = matches!(request, Request::PortMod(_));
    let reply = perform(state, id, to, request, bytes).await;
    if is_port_mod {
        // Another thread takes the device up or down. Only this connection waits.
        crate::device_changer::finished(state).await;
    }
    let bridge = state.borrow().bridge_id(id).filter(|_| waits);
    if let Some(bridge) = bridge {
        room::sent_packets_of(state, bridge).await;
        change::notified(state, bridge).await;
    }
    {
        let mut s = state.borrow_mut();
        s.deliver(Some((id, to.xid)));
        if waits {
            s.flush_changes();
        }
    }
    if waits {
        crate::state::wait_for_changes(state).await;
    }
    let mut s = state.borrow_mut();
    match reply {
        // Echoes come in any version, and go back in it.
        Ok(Some(Reply::EchoReply(_))) => s.echo(id, bytes),
        // About an earlier message of the same request.
        Ok(Some(Reply::Error { error, data })) => refuse(&mut s, id, to, error, &data),
        Ok(Some(reply)) => s.reply(id, to, &reply),
        Ok(None) => {}
        Err(error) => refuse(&mut s, id, to, error, bytes),
    }
    s.conns.contains_key(&id)
}

/// Tells module `vconn` of a message; None: it says nothing that can be read.
fn log_received(s: &State, id: ConnId, request: Option<&Request>, bytes: &[u8]) {
    if !message_text::is_logged() {
        return;
    }
    let Some(conn) = s.conns.get(&id) else { return };
    message_text::log_received(&conn.vconn, || match (request, conn.version()) {
        (Some(request), Some(version)) => message_text::request(request, version, bytes),
        _ => codec::headline(bytes),
    });
}

/// True if the request reads rules' counters, which have to be up to date for it.
fn reads_counters(request: &Request) -> bool {
    use MultipartRequest::{Aggregate, Flow, GroupStats, Table};
    let Request::Multipart(request) = request else { return false };
    matches!(request, Flow(_) | Aggregate(_) | GroupStats(_) | Table)
}

/// Does what a request says; the reply, if it has one. What may take long goes in slices.
async fn perform(
    state: &Shared,
    id: ConnId,
    to: ReplyTo,
    request: Request,
    bytes: &[u8],
) -> Result<Option<Reply>, OfError> {
    if is_write(&request) {
        let bridge = state.borrow().bridge_id(id);
        if let Some(bridge) = bridge {
            match request {
                // It changes no flow but those that it teaches, which wait by themselves.
                Request::PacketOut(_) => change::finished_in(state, bridge).await,
                _ => change::turn(state, bridge).await,
            }
        }
        let s = state.borrow();
        if s.conns.get(&id).is_some_and(|c| c.role == Role::Secondary) {
            return Err(OfError::IsSlave);
        }
    }
    if matches!(request, Request::PacketOut(_) | Request::Resume(_)) {
        let bridge = state.borrow().bridge_id(id);
        if let Some(bridge) = bridge {
            room::room(state, bridge).await;
        }
    }
    if reads_counters(&request) {
        room::sent_packets(state).await;
        crate::state::collect(state).await;
    }
    if let Request::Multipart(MultipartRequest::QueueStats { port, .. }) = request {
        queues::asked(state, id, port).await;
    }
    match request {
        Request::Multipart(MultipartRequest::Aggregate(select)) => {
            multipart::aggregate(state, id, &select).await.map(|r| Some(Reply::Multipart(r)))
        }
        Request::Multipart(MultipartRequest::Flow(select)) => {
            multipart::flows(state, id, to, &select).await.map(|()| None)
        }
        Request::Multipart(
            request @ (MultipartRequest::GroupStats(_)
            | MultipartRequest::GroupDesc(_)
            | MultipartRequest::MeterStats(_)
            | MultipartRequest::MeterConfig(_)
            | MultipartRequest::PortStats(_)),
        ) => multipart::numbered(state, id, to, &request).await.map(|()| None),
        Request::Multipart(MultipartRequest::FlowMonitor(requests)) => {
            multipart::monitor(state, id, to, requests).await.map(|()| None)
        }
        Request::FlowMod(fm) if ofproto::concerns_many(&fm) => {
            let command = fm.command;
            flow_mod_sliced(state, id, to.xid, fm).await?;
            state.borrow_mut().count_flow_mod(id, command);
            Ok(None)
        }
        Request::GroupMod(gm) if gm.command == GroupCommand::Delete => {
            group_delete(state, id, to.xid, gm).await.map(|()| None)
        }
        Request::MeterMod(m) if m.command == MeterCommand::Delete => {
            meter_delete(state, id, to.xid, m).await.map(|()| None)
        }
        Request::BundleControl { id: b, step: BundleStep::CommitRequest, flags } => {
            commit(state, id, to.xid, b, flags).await?;
            Ok(Some(Reply::BundleControl { id: b, step: BundleStep::CommitReply, flags: 0 }))
        }
        Request::CtFlush(flush) => {
            super::ct_flush::end(state, &flush).await;
            Ok(None)
        }
        request => handle(&mut state.borrow_mut(), id, to.xid, request, bytes),
    }
}

/// Answers a message with an error.
fn refuse(s: &mut State, id: ConnId, to: ReplyTo, error: OfError, bytes: &[u8]) {
    let data = bytes[..bytes.len().min(ERROR_DATA)].to_vec();
    log_error_reply(s, id, error, bytes);
    if let Some(conn) = s.conns.get_mut(&id) {
        conn.counts.refused += 1;
    }
    s.reply(id, to, &Reply::Error { error, data });
}

/// Says that a message is answered with an error, in ovs-vswitchd's words.
fn log_error_reply(s: &State, id: ConnId, error: OfError, bytes: &[u8]) {
    let (name, kind) = (s.conn_name(id), codec::type_name(bytes));
    vlog::info!("connmgr", "{name}: sending {} error reply to {kind} message", error.ovs_name());
}

/// The first message must be a hello with a version in common.
fn hello(s: &mut State, id: ConnId, bytes: &[u8]) -> bool {
    let ours = s.versions_of(id);
    let Some(conn) = s.conns.get_mut(&id) else { return false };
    if message_text::is_logged() {
        message_text::log_received(&conn.vconn, || message_text::hello(bytes));
    }
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
    let [ours, theirs] =
        [ours, codec::decode_hello(bytes).unwrap_or(0)].map(message_text::supported);
    vlog::dbg!(
        "vconn",
        "{}: negotiated OpenFlow version 0x{:02x} (we support {ours}, peer supports {theirs})",
        conn.vconn,
        version as u8
    );
    s.conn_ready(id);
    true
}

fn decode(s: &mut State, id: ConnId, dialect: Dialect, bytes: &[u8]) -> Option<(ReplyTo, Request)> {
    let decoded = codec::decode(dialect, bytes);
    log_received(s, id, decoded.as_ref().ok().map(|(_, request)| request), bytes);
    match decoded {
        Ok(decoded) => Some(decoded),
        Err(e) => {
            let xid = e.xid;
            log_error_reply(s, id, e.error, bytes);
            if let Some(conn) = s.conns.get_mut(&id) {
                conn.counts.malformed += 1;
            }
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

/// Answers a request, or does what it says; the reply, if it has one. `bytes`: the whole message.
fn handle(
    s: &mut State,
    id: ConnId,
    xid: u32,
    request: Request,
    bytes: &[u8],
) -> Result<Option<Reply>, OfError> {
    let bridge = s.bridge_id(id).ok_or(OfError::BadType)?;
    let now = s.now_ns();
    let conn = s.conns.get_mut(&id).ok_or(OfError::BadType)?;
    Ok(Some(match request {
        Request::EchoRequest(data) => Reply::EchoReply(data),
        Request::Features => s.features(id),
        Request::GetConfig => {
            let config = conn.config;
            Reply::Config(SwitchConfig { frag: s.frag(id), ..config })
        }
        Request::Barrier => Reply::Barrier,
        Request::Multipart(MultipartRequest::TableFeatures(part)) => {
            return multipart::table_features(s, (id, xid), part, bytes);
        }
        Request::Multipart(m) => return Ok(multipart::answer(s, id, m)?.map(Reply::Multipart)),
        Request::QueueGetConfig { port } => {
            let queues = s.queues(id, port, queues::ALL)?;
            Reply::QueueConfig { port, queues }
        }
        Request::TlvTable => {
            let (space, fields, maps) = s.ofproto.tlv_table(bridge)?;
            Reply::TlvTable { space, fields, maps }
        }
        Request::Role { role, generation } => role::set(s, id, role, generation)?,
        Request::GetAsync => Reply::Async(conn.wants),
        Request::BundleControl { id: b, step, flags } => {
            bundle::control(conn, b, step, flags, (bytes, now))?
        }
        Request::BundleAdd { id: b, flags, xid: inner_xid, inner } => {
            if inner_xid != xid {
                return Err(OfError::BundleMsgBadXid);
            }
            check_bundled(version(s, id)?, &inner)?;
            let conn = s.conns.get_mut(&id).ok_or(OfError::BadType)?;
            bundle::add(conn, b, flags, bytes, now)?;
            return Ok(None);
        }
        request => return modify(s, (id, xid), bridge, request).map(|()| None),
    }))
}

/// Changes the switch as a request says that has no reply.
fn modify(
    s: &mut State,
    (id, xid): (ConnId, u32),
    bridge: BridgeId,
    request: Request,
) -> Result<(), OfError> {
    let now = s.now_ns();
    match request {
        Request::EchoReply(_) | Request::FlowAge => Ok(()),
        // A hello comes first or not at all, and an error is a switch's to send.
        Request::Hello { .. } | Request::Error { .. } => Err(OfError::BadType),
        Request::SetConfig(config) => {
            let conn = s.conns.get_mut(&id).ok_or(OfError::BadType)?;
            conn.configure(config);
            s.set_frag(id, config.frag)?;
            s.update_misses(bridge);
            Ok(())
        }
        Request::FlowMod(fm) => {
            flow_mod(s, id, &fm, now)?;
            s.count_flow_mod(id, fm.command);
            Ok(())
        }
        Request::GroupMod(gm) => {
            s.ofproto.group_mod(bridge, &gm, now)?;
            async_msgs::forward(s, (id, xid), &gm);
            Ok(())
        }
        Request::MeterMod(m) => s.ofproto.meter_mod(bridge, &m, now),
        Request::PortMod(pm) => s.port_mod(id, &pm),
        Request::TableMod { table, config, vacancy } => table_mod(s, id, table, config, vacancy),
        Request::PacketOut(po) => packet_out(s, id, &po.in_memory()),
        Request::TlvTableMod(m) => s.ofproto.tlv_table_mod(bridge, &m),
        Request::Resume(r) => {
            s.flush_changes();
            s.resume(bridge, &r)
        }
        request => connection(s, id, bridge, request),
    }
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
        Request::SetAsync { wants, given } => {
            conn.configure_async(&wants, given);
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
        _ => return Err(OfError::BadType),
    }
    Ok(())
}

/// Requests that a secondary controller may not make.
fn is_write(r: &Request) -> bool {
    matches!(
        r,
        Request::FlowMod(_)
            | Request::GroupMod(_)
            | Request::MeterMod(_)
            | Request::PortMod(_)
            | Request::TableMod { .. }
            | Request::TlvTableMod(_)
            | Request::CtFlush(_)
            | Request::PacketOut(_)
            | Request::BundleControl { .. }
            | Request::BundleAdd { .. }
    )
}

/// In 1.4 and 1.5 it says whether tables evict and report that they fill up, in 1.1 and 1.2 what
/// becomes of packets that no flow matches.
fn table_mod(
    s: &mut State,
    id: ConnId,
    table: u8,
    config: u32,
    vacancy: Option<[u8; 2]>,
) -> Result<(), OfError> {
    let bridge = s.bridge_id(id).ok_or(OfError::BadType)?;
    if table != openflow::TABLE_ALL && usize::from(table) >= ofproto::N_TABLES {
        // As in OVS, where the last table is the switch's own.
        return Err(OfError::TableModEperm);
    }
    match version(s, id)? {
        Version::V14 | Version::V15 => {
            let vacancy = vacancy.filter(|_| config & TableStats::VACANCY != 0);
            let evict = config & TableStats::EVICTION != 0;
            s.ofproto.table_mod(bridge, table, evict, vacancy)
        }
        _ => {
            let tables = if table == openflow::TABLE_ALL {
                0..=ofproto::N_TABLES as u8 - 1
            } else {
                table..=table
            };
            s.change_bridge(bridge, |c| {
                for table in tables {
                    match ofproto::TableMiss::from_bits(config) {
                        Some(miss) => drop(c.misses.insert(table, miss)),
                        None => drop(c.misses.remove(&table)),
                    }
                }
            });
            Ok(())
        }
    }
}

fn flow_mod(s: &mut State, id: ConnId, fm: &FlowMod, now: u64) -> Result<(), OfError> {
    let bridge = s.bridge_id(id).ok_or(OfError::BadType)?;
    check(version(s, id)?, fm)?;
    s.ofproto.flow_mod(bridge, fm, now)
}

/// As [`flow_mod`], for a flow-mod of many flows, a slice at a time.
async fn flow_mod_sliced(state: &Shared, id: ConnId, xid: u32, fm: FlowMod) -> Result<(), OfError> {
    let bridge = {
        let s = state.borrow();
        check(version(&s, id)?, &fm)?;
        s.bridge_id(id).ok_or(OfError::BadType)?
    };
    let items = Box::new(std::iter::once(Ok(BundleItem::Flow(fm))));
    change::run(state, Some((id, xid)), bridge, items).await.map_err(|(_, e)| e)
}

/// Deletes groups with the flows that use them, a slice at a time.
async fn group_delete(state: &Shared, id: ConnId, xid: u32, gm: GroupMod) -> Result<(), OfError> {
    let bridge = state.borrow().bridge_id(id).ok_or(OfError::BadType)?;
    let items = Box::new(std::iter::once(Ok(BundleItem::Group(gm.clone()))));
    change::run(state, Some((id, xid)), bridge, items).await.map_err(|(_, e)| e)?;
    async_msgs::forward(&mut state.borrow_mut(), (id, xid), &gm);
    Ok(())
}

/// Deletes meters: the flows that use them before, a slice at a time.
async fn meter_delete(state: &Shared, id: ConnId, xid: u32, m: MeterMod) -> Result<(), OfError> {
    let bridge = state.borrow().bridge_id(id).ok_or(OfError::BadType)?;
    let items = Box::new(std::iter::once(Ok(BundleItem::MeterUsers(m.id))));
    change::run(state, Some((id, xid)), bridge, items).await.map_err(|(_, e)| e)?;
    let mut s = state.borrow_mut();
    let now = s.now_ns();
    s.ofproto.meter_mod(bridge, &m, now)
}

/// Packets are not buffered here, so a buffer id can only be unknown.
fn known_buffer(id: u32) -> Result<(), OfError> {
    if id == NO_BUFFER { Ok(()) } else { Err(OfError::BufferUnknown) }
}

fn packet_out(s: &mut State, id: ConnId, po: &PacketOut) -> Result<(), OfError> {
    known_buffer(po.buffer_id)?;
    let bridge = s.bridge_id(id).ok_or(OfError::BadType)?;
    s.flush_changes();
    s.packet_out(bridge, po)
}

/// What a bundle's commit does beside changing the switch half.
#[derive(Default)]
struct Bundled {
    /// How many flow-mods it has.
    flow_mods: FlowMods,
    /// Ports whose devices are taken up (true) or down.
    admin_up: BTreeMap<OfPort, bool>,
}

impl Bundled {
    fn note(&mut self, request: &Request) {
        match request {
            Request::FlowMod(fm) => self.flow_mods.count(fm.command, 0),
            Request::PortMod(pm) => {
                self.admin_up.extend(admin_up(pm).map(|up| (pm.port, up)));
            }
            _ => {}
        }
    }
}

async fn commit(
    state: &Shared,
    id: ConnId,
    xid: u32,
    bundle: u32,
    flags: u16,
) -> Result<(), OfError> {
    let (bridge, dialect, messages) = {
        let mut s = state.borrow_mut();
        let bridge = s.bridge_id(id).ok_or(OfError::BadType)?;
        let conn = s.conns.get_mut(&id).ok_or(OfError::BadType)?;
        let dialect = conn.dialect.ok_or(OfError::BadType)?;
        (bridge, dialect, Rc::new(bundle::take(conn, bundle, flags)?))
    };
    let seen = Rc::new(RefCell::new(Bundled::default()));
    let noted = seen.clone();
    let fits = move |r: &Request| {
        noted.borrow_mut().note(r);
        if let Request::FlowMod(fm) = r { check(dialect.version, fm) } else { Ok(()) }
    };
    let vlan_limit = state.borrow().dp.settings().vlan_limit;
    let items = Box::new(messages.clone().items(dialect, vlan_limit, fits));
    let outcome = change::run(state, Some((id, xid)), bridge, items).await;
    match outcome {
        Ok(()) => {
            let Bundled { flow_mods, admin_up } = seen.take();
            let changes_devices = !admin_up.is_empty();
            let packets = {
                let mut s = state.borrow_mut();
                let now = s.now_ms();
                if let Some(conn) = s.conns.get_mut(&id) {
                    conn.flow_mods.count_all(&flow_mods, now);
                }
                admin_up.into_iter().for_each(|(port, up)| s.set_admin_up(bridge, port, up));
                s.flush_changes();
                s.ofproto.take_packets()
            };
            if changes_devices {
                crate::device_changer::finished(state).await;
            }
            send_packets(state, bridge, packets).await
        }
        Err((index, error)) => {
            let mut s = state.borrow_mut();
            if let Some((xid, data)) = messages.describe(index) {
                log_error_reply(&s, id, error, &data);
                s.reply(id, xid, &Reply::Error { error, data });
            }
            Err(OfError::BundleMsgFailed)
        }
    }
}

/// Sends the packets of a bundle, some of them a turn.
async fn send_packets(
    state: &Shared,
    bridge: BridgeId,
    packets: Vec<StagedPacket>,
) -> Result<(), OfError> {
    let mut left = SLICE_FLOWS_MAX;
    for p in packets {
        let parts = 1 + p.decision.ops.len() + p.decision.credits.len();
        if parts > left {
            tokio::task::yield_now().await;
            left = SLICE_FLOWS_MAX;
        }
        left = left.saturating_sub(parts);
        room::room(state, bridge).await;
        state.borrow_mut().send_packet(bridge, &p.packet_out, &p.decision)?;
    }
    Ok(())
}

fn version(s: &State, id: ConnId) -> Result<Version, OfError> {
    Ok(s.conns.get(&id).and_then(|c| c.dialect).ok_or(OfError::BadType)?.version)
}

/// What can be said of a message before the bundle is committed.
fn check_bundled(version: Version, request: &Request) -> Result<(), OfError> {
    match request {
        Request::FlowMod(fm) => {
            ofproto::check_table(fm)?;
            check(version, fm)
        }
        Request::PacketOut(po) => known_buffer(po.buffer_id),
        _ => Ok(()),
    }
}

/// Checks that the instructions of a flow-mod fit its match by the rules of a version, and that it
/// is about no buffered packet.
fn check(version: Version, fm: &FlowMod) -> Result<(), OfError> {
    if matches!(fm.command, FlowModCommand::Delete | FlowModCommand::DeleteStrict) {
        return Ok(());
    }
    let n_tables = ofproto::N_TABLES as u8;
    let checked = openflow::check::check_instructions;
    checked(&fm.instructions, &fm.matching, version, n_tables, fm.table)?;
    known_buffer(fm.buffer_id)
}
