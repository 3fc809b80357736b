//! One connection: the settings that its front-end sent, and the rings that result.

use crate::inflight;
use crate::memory::{self, RegionTable};
use crate::message::{Header, Message, RingAddress};
use crate::rings::{Call, OwnRing};
use crate::shared::{Info, PAIRS_MAX, RINGS_MAX, Shared};
use crate::stream::{End, Stream};
use crate::violation::Violation;
use crate::{PROTOCOL_FEATURES, protocol};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use vhost::{DirtyLog, Ring, RingSetup, feature};

/// Interval at which a waiting connection checks whether it can be served.
const TURN_INTERVAL: Duration = Duration::from_millis(100);
/// Longest log of dirty pages: that of 128 TB of memory.
const LOG_BYTES_MAX: u64 = 1 << 32;
/// Smallest MTU of a guest (RFC 791).
const MTU_MIN: u64 = 68;

/// Features of a guest that takes segments of TCP merged.
const MERGED: u64 = feature::GUEST_TSO4 | feature::GUEST_TSO6;

/// Settings of a ring.
#[derive(Default)]
struct RingState {
    size: u16,
    address: Option<RingAddress>,
    /// Index from which the ring continues, as in [`RingSetup::base`].
    base: u16,
    /// `base` is where we stopped, not a value of the front-end.
    exact: bool,
    started: bool,
    enabled: bool,
    call: Option<Arc<Call>>,
    /// The ring is in its place in [`crate::rings::Rings`].
    placed: bool,
}

/// The reply to a message.
enum Reply {
    /// No reply, except the acknowledgement that a front-end may ask for.
    None,
    U64(u64),
    Bytes(Vec<u8>, Option<OwnedFd>),
}

pub(crate) struct Session<'a> {
    id: u64,
    shared: &'a Shared,
    /// Features; None until the front-end sets them.
    features: Option<u64>,
    protocol: u64,
    table: Option<RegionTable>,
    rings: Vec<RingState>,
    log: Option<Arc<DirtyLog>>,
    mtu: Option<u16>,
    status: u64,
    numa: Option<usize>,
    /// Readable after a page of a mapping was lost.
    event: Arc<OwnedFd>,
    /// The connection could be served, but another one is served.
    waiting: bool,
    /// Units of work for the current message: see `crate::budget`.
    units: u32,
}

fn new_id() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// Serves a connection until it ends. A violation is counted and logged.
pub(crate) fn serve(shared: &Shared, stream: &Stream, on_served: impl Fn(bool)) -> End {
    let end = match memory::event() {
        Ok(event) => Session::new(shared, Arc::new(event)).run(stream, on_served),
        Err(_) => End::Closed,
    };
    if let End::Violation(what, request) = end {
        shared.violation(what, request);
    }
    end
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.withdraw_all();
        self.shared.release(self.id);
    }
}

impl<'a> Session<'a> {
    pub fn new(shared: &'a Shared, event: Arc<OwnedFd>) -> Session<'a> {
        Session {
            id: new_id(),
            shared,
            features: None,
            protocol: 0,
            table: None,
            rings: Vec::new(),
            log: None,
            mtu: None,
            status: 0,
            numa: None,
            event,
            waiting: false,
            units: 0,
        }
    }

    fn run(mut self, stream: &Stream, on_served: impl Fn(bool)) -> End {
        loop {
            if let Err(end) = self.step(stream) {
                return end;
            }
            on_served(self.is_served());
        }
    }

    fn step(&mut self, stream: &Stream) -> Result<(), End> {
        let until = self.waiting.then(|| Instant::now() + TURN_INTERVAL);
        let ready = stream.wait(self.event.as_raw_fd(), until)?;
        if ready.second {
            self.lose();
        }
        if ready.first {
            let (header, message) = stream.read()?;
            self.units = 1;
            let reply =
                self.act(message).map_err(|what| End::Violation(what, Some(header.request)))?;
            self.answer(stream, &header, reply)?;
            if let Some(rest) = self.shared.spend(self.units) {
                stream.rest(Instant::now() + rest)?;
            }
        } else if self.waiting {
            self.refresh()?;
        }
        Ok(())
    }

    fn answer(&self, stream: &Stream, header: &Header, reply: Reply) -> Result<(), End> {
        let acknowledged = header.need_reply && self.protocol & protocol::REPLY_ACK != 0;
        let (bytes, fd) = match reply {
            Reply::None if !acknowledged => return Ok(()),
            Reply::None => (vec![0; 8], None),
            Reply::U64(value) => (value.to_le_bytes().to_vec(), None),
            Reply::Bytes(bytes, fd) => (bytes, fd),
        };
        stream.send(&Header::reply(header.request, &bytes), fd.as_ref().map(|fd| fd.as_fd()))
    }

    fn act(&mut self, message: Message) -> Result<Reply, Violation> {
        match message {
            Message::GetFeatures => return Ok(Reply::U64(self.shared.features())),
            Message::GetProtocolFeatures => return Ok(Reply::U64(PROTOCOL_FEATURES)),
            Message::GetQueueNum => return Ok(Reply::U64(PAIRS_MAX as u64)),
            Message::GetStatus => return Ok(Reply::U64(self.status)),
            Message::GetRingBase(ring) => return self.stop_ring(ring),
            Message::GetInflight(wanted) => {
                let (bytes, file) = inflight::make(wanted, self.is_packed())?;
                return Ok(Reply::Bytes(bytes, Some(file)));
            }
            Message::SetLogBase(size, offset, file) => {
                self.set_log(size, offset, file)?;
                return Ok(Reply::U64(0));
            }
            Message::SetInflight(region, file) => inflight::check(region, file.as_fd())?,
            Message::SetOwner | Message::SetLogFd => {}
            Message::SetRingErr(ring) => _ = self.ring(ring)?,
            Message::SetProtocolFeatures(bits) => self.set_protocol(bits)?,
            Message::SetStatus(status) => self.status = status,
            Message::SetMtu(mtu) => self.set_mtu(mtu)?,
            Message::SendRarp(mac) if self.is_served() => self.shared.announce(mac),
            Message::SendRarp(_) => {}
            Message::SetFeatures(bits) => self.set_features(bits)?,
            Message::ResetOwner => self.reset(),
            Message::SetMemTable(regions) => self.set_table(regions)?,
            Message::SetRingSize(ring, size) => self.set_size(ring, size)?,
            Message::SetRingAddress(ring, address) => {
                self.withdraw(ring)?.address = Some(address);
            }
            Message::SetRingBase(ring, base) => self.set_base(ring, base)?,
            Message::SetRingKick(ring) => self.ring(ring)?.started = true,
            Message::SetRingEnable(ring, on) => self.ring(ring)?.enabled = on,
            Message::SetRingCall(ring, fd) => {
                let call = fd.map(Call::new).transpose()?.map(Arc::new);
                self.withdraw(ring)?.call = call;
            }
        }
        self.refresh()?;
        Ok(Reply::None)
    }

    /// Acts on a message whose reply the front-end does not wait for. Returns its units of work.
    pub fn work(&mut self, message: Message) -> Result<u32, Violation> {
        self.units = 1;
        self.act(message)?;
        Ok(self.units)
    }

    fn has(&self, bits: u64) -> bool {
        self.features.unwrap_or(0) & bits != 0
    }

    fn is_packed(&self) -> bool {
        self.has(feature::RING_PACKED)
    }

    fn is_served(&self) -> bool {
        self.rings.iter().any(|ring| ring.placed)
    }

    /// Settings of a ring, which are the defaults if nothing was set.
    fn ring(&mut self, ring: u32) -> Result<&mut RingState, Violation> {
        let i = ring as usize;
        if i >= RINGS_MAX {
            return Err(Violation::Ring);
        }
        if self.rings.len() <= i {
            self.rings.resize_with(i + 1, RingState::default);
        }
        Ok(&mut self.rings[i])
    }

    /// Does what [`Session::ring`] does, and takes the ring from the workers until the next
    /// refresh.
    fn withdraw(&mut self, ring: u32) -> Result<&mut RingState, Violation> {
        if self.ring(ring)?.placed {
            self.units += 1;
            let own = self.shared.take(ring as usize);
            let state = self.ring(ring)?;
            state.placed = false;
            if let Some(own) = own {
                (state.base, state.exact) = (own.ring.base(), true);
            }
        }
        self.ring(ring)
    }

    fn withdraw_all(&mut self) {
        for i in 0..self.rings.len() {
            // The ring exists.
            let _ = self.withdraw(i as u32);
        }
    }

    /// A page of a mapping was lost: no ring is served until there is a new memory table.
    fn lose(&mut self) {
        self.withdraw_all();
        memory::clear(&self.event);
        (self.table, self.log) = (None, None);
        self.shared.violation(Violation::LostMemory, None);
        self.rest();
    }

    /// The connection serves no guest.
    fn rest(&mut self) {
        self.waiting = false;
        self.shared.release(self.id);
    }

    fn set_protocol(&mut self, bits: u64) -> Result<(), Violation> {
        if bits & !PROTOCOL_FEATURES != 0 {
            return Err(Violation::Features);
        }
        self.protocol = bits;
        Ok(())
    }

    fn set_features(&mut self, bits: u64) -> Result<(), Violation> {
        if bits & !self.shared.features() != 0 {
            return Err(Violation::Features);
        }
        let changed = self.features.map_or(0, |before| before ^ bits);
        // The feature LOG_ALL alone may change while rings are served.
        if changed & !feature::LOG_ALL != 0 && self.is_served() {
            return Err(Violation::Order);
        }
        self.withdraw_all();
        self.features = Some(bits);
        Ok(())
    }

    fn set_mtu(&mut self, mtu: u64) -> Result<(), Violation> {
        let mtu = u16::try_from(mtu).ok().filter(|mtu| u64::from(*mtu) >= MTU_MIN);
        self.mtu = Some(mtu.ok_or(Violation::Value)?);
        Ok(())
    }

    fn set_table(
        &mut self,
        regions: Vec<(crate::message::TableEntry, OwnedFd)>,
    ) -> Result<(), Violation> {
        self.units += regions.len() as u32;
        self.withdraw_all();
        // The old table is unmapped first: both at once may exceed the address space or memory.
        self.table = None;
        self.table = Some(RegionTable::new(regions, &self.event, self.shared.complainer())?);
        self.numa = None;
        Ok(())
    }

    fn set_log(&mut self, size: u64, offset: u64, file: OwnedFd) -> Result<(), Violation> {
        if self.protocol & protocol::LOG_SHMFD == 0 {
            return Err(Violation::Order);
        }
        if size == 0 || size > LOG_BYTES_MAX {
            return Err(Violation::Log);
        }
        let map = memory::map(file.as_fd(), offset, size, &self.event)?;
        let at = map.at;
        // SAFETY: `size` bytes are mapped at `at` as long as the mapping lives.
        let log = unsafe { DirtyLog::new(at, size, Box::new(map)) };
        self.withdraw_all();
        self.log = Some(Arc::new(log));
        self.refresh()
    }

    fn set_size(&mut self, ring: u32, size: u32) -> Result<(), Violation> {
        let fits = |size: &u16| (1..=32_768).contains(size);
        let size = u16::try_from(size).ok().filter(fits).ok_or(Violation::RingSize)?;
        self.withdraw(ring)?.size = size;
        Ok(())
    }

    fn set_base(&mut self, ring: u32, base: u32) -> Result<(), Violation> {
        let is_packed = self.is_packed();
        let state = self.withdraw(ring)?;
        // Of a packed ring: next available index in the low half, next used index in the high half.
        // We use descriptors in order.
        let (low, high) = (base as u16, (base >> 16) as u16);
        if !is_packed && high != 0 {
            return Err(Violation::Value);
        }
        state.base = if is_packed && high != 0 { high } else { low };
        state.exact = false;
        Ok(())
    }

    fn stop_ring(&mut self, ring: u32) -> Result<Reply, Violation> {
        let is_packed = self.is_packed();
        let state = self.withdraw(ring)?;
        (state.started, state.exact) = (false, false);
        let base = u32::from(state.base);
        let base = if is_packed { base << 16 | base } else { base };
        self.refresh()?;
        Ok(Reply::Bytes([ring.to_le_bytes(), base.to_le_bytes()].concat(), None))
    }

    fn reset(&mut self) {
        self.withdraw_all();
        self.rings.clear();
        (self.features, self.protocol, self.status) = (None, 0, 0);
        (self.table, self.log, self.mtu) = (None, None, None);
    }

    /// Whether ring `i` could be served if it is enabled.
    fn is_ready(&self, i: usize) -> bool {
        let said = |r: &RingState| r.started && r.size > 0 && r.address.is_some();
        self.rings.get(i).is_some_and(said) && self.table.is_some() && self.features.is_some()
    }

    fn is_enabled(&self, i: usize) -> bool {
        self.rings[i].enabled || !self.has(protocol::FEATURE)
    }

    /// Puts the rings that can be served in their places and takes away the others. A guest is
    /// served when both rings of its first pair are ready and one ring is enabled.
    fn refresh(&mut self) -> Result<(), Violation> {
        let n = self.rings.len();
        let is_there = self.is_ready(0) && self.is_ready(1) && (0..n).any(|i| self.is_enabled(i));
        if !is_there {
            self.withdraw_all();
            self.rest();
            return Ok(());
        }
        self.waiting = !self.shared.claim(self.id);
        if self.waiting {
            return Ok(());
        }
        let (mut masks, was) = ([0u64; 2], self.is_served());
        for i in 0..n {
            let wanted = self.is_ready(i) && self.is_enabled(i);
            match (wanted, self.rings[i].placed) {
                (true, false) => self.place(i)?,
                (false, true) => _ = self.withdraw(i as u32)?,
                _ => {}
            }
            masks[i % 2] |= u64::from(wanted) << (i / 2);
        }
        let info = self.info();
        if !was {
            self.shared.say_added(info.numa.unwrap_or(0));
        }
        self.shared.set_info(info);
        // The guest receives on its even rings.
        if self.shared.publish(masks[1], masks[0]) || !was {
            self.shared.tell();
        }
        Ok(())
    }

    fn info(&mut self) -> Info {
        if self.numa.is_none() {
            self.numa = self.table.as_ref().and_then(RegionTable::numa);
        }
        let sizes = self.rings.iter().map(|ring| ring.size).filter(|size| *size > 0);
        Info {
            numa: self.numa,
            socket: String::new(),
            features: self.features.unwrap_or(0),
            mtu: self.mtu,
            vrings: sizes.collect(),
        }
    }

    /// Creates ring `i`, which is ready, and puts it in its place.
    fn place(&mut self, i: usize) -> Result<(), Violation> {
        self.units += 1;
        let (Some(table), Some(features)) = (&self.table, self.features) else { return Ok(()) };
        let (state, log) = (&mut self.rings[i], &self.log);
        let Some(address) = state.address else { return Ok(()) };
        let host = |user| table.host(user).ok_or(Violation::RingAddress);
        let areas = [host(address.desc)?, host(address.avail)?, host(address.used)?];
        // Merged segments are always offered, as by ovs-vswitchd, and sent with TSO only.
        let unused = if self.shared.offloads { 0 } else { MERGED };
        let features = features & !unused;
        let mut setup = RingSetup { features, size: state.size, areas, base: state.base };
        if !state.exact {
            // SAFETY: the table's regions are mapped as long as its memory lives.
            setup.base = unsafe { vhost::resumed_base(&setup, &table.memory) };
        }
        // SAFETY: as above; the ring keeps the memory.
        let ring = unsafe { Ring::new(&setup, table.memory.clone()) };
        let mut ring = ring.map_err(|error| match error {
            vhost::SetupError::Size => Violation::RingSize,
            vhost::SetupError::Areas => Violation::RingAddress,
            vhost::SetupError::Base => Violation::Value,
            vhost::SetupError::Iommu => Violation::Features,
        })?;
        if features & feature::LOG_ALL != 0 {
            ring.set_log(log.clone());
        }
        ring.silence();
        (state.base, state.exact, state.placed) = (setup.base, true, true);
        self.shared
            .rings
            .put(i, Some(OwnRing::new(ring, state.call.clone(), Some(table.dma.clone()))));
        Ok(())
    }
}
