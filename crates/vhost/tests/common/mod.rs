//! A guest: its memory, and the driver's side of one virtqueue of either layout.

#![allow(dead_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use vhost::{Memory, Region, Ring, RingSetup, SetupError, feature};

/// Bytes of memory: two regions, adjacent for the guest and apart for us.
pub const BYTES: u64 = 0x10_0000;
const HALF: usize = BYTES as usize / 2;
/// Untouchable bytes around each region.
const MOAT: usize = 0x1000;
const TOTAL: usize = 2 * HALF + 3 * MOAT;
const MOAT_BYTE: u8 = 0x5a;

/// Guest addresses of the ring's parts and of indirect tables. Above [`DATA`] are buffers.
pub const DESC: u64 = 0x1000;
pub const DRIVER: u64 = 0x9000;
pub const DEVICE: u64 = 0xb000;
pub const TABLES: u64 = 0x2_0000;
pub const DATA: u64 = 0x6_0000;
const TABLE: u64 = 1024;

pub const NEXT: u16 = 1;
pub const WRITE: u16 = 2;
pub const INDIRECT: u16 = 4;
pub const AVAIL: u16 = 1 << 7;
pub const USED: u16 = 1 << 15;

/// Memory of a guest with a moat around it.
pub struct GuestMemory {
    base: *mut u8,
}

// SAFETY: raw memory that is accessed through raw pointers only.
unsafe impl Send for GuestMemory {}
// SAFETY: as above.
unsafe impl Sync for GuestMemory {}

fn layout() -> Layout {
    Layout::from_size_align(TOTAL, 4096).unwrap()
}

impl Drop for GuestMemory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.base, layout()) }
    }
}

impl GuestMemory {
    pub fn new() -> Self {
        // SAFETY: the layout is not empty; the moats lie inside.
        unsafe {
            let base = alloc_zeroed(layout());
            for moat in [0, MOAT + HALF, 2 * (MOAT + HALF)] {
                base.add(moat).write_bytes(MOAT_BYTE, MOAT);
            }
            GuestMemory { base }
        }
    }

    /// Nothing outside the regions was written.
    pub fn is_dry(&self) -> bool {
        // SAFETY: as in `new`.
        unsafe {
            [0, MOAT + HALF, 2 * (MOAT + HALF)]
                .iter()
                .all(|moat| (0..MOAT).all(|i| *self.base.add(moat + i) == MOAT_BYTE))
        }
    }

    pub fn at(&self, guest: u64) -> *mut u8 {
        assert!(guest < BYTES);
        let moats = if guest < HALF as u64 { MOAT } else { 2 * MOAT };
        self.base.wrapping_add(guest as usize + moats)
    }

    pub fn table(&self) -> Arc<Memory> {
        let region = |guest| Region { guest, size: HALF as u64, host: self.at(guest) };
        Arc::new(Memory::new([region(0), region(HALF as u64)]))
    }

    pub fn put(&self, guest: u64, bytes: &[u8]) {
        for (i, b) in bytes.iter().enumerate() {
            // SAFETY: `at` checks; volatile, as a test may scribble from another thread.
            unsafe { self.at(guest + i as u64).write_volatile(*b) };
        }
    }

    pub fn get(&self, guest: u64, n: usize) -> Vec<u8> {
        // SAFETY: as above.
        (0..n).map(|i| unsafe { self.at(guest + i as u64).read_volatile() }).collect()
    }

    pub fn put16(&self, guest: u64, v: u16) {
        self.put(guest, &v.to_le_bytes());
    }

    pub fn get16(&self, guest: u64) -> u16 {
        u16::from_le_bytes(self.get(guest, 2).try_into().unwrap())
    }

    pub fn get32(&self, guest: u64) -> u32 {
        u32::from_le_bytes(self.get(guest, 4).try_into().unwrap())
    }
}

/// A piece of a buffer: guest address and length.
pub type Part = (u64, u32);

/// The driver's side of a virtqueue.
pub struct Driver {
    pub memory: Arc<GuestMemory>,
    pub size: u16,
    pub features: u64,
    free: Vec<u16>,
    /// Descriptors that a buffer took, by id.
    taken: HashMap<u16, Vec<u16>>,
    next: u16,
    wrap: bool,
    seen: u16,
    seen_wrap: bool,
    room: u16,
}

impl Driver {
    pub fn new(size: u16, features: u64) -> Driver {
        Driver {
            memory: Arc::new(GuestMemory::new()),
            size,
            features,
            free: (0..size).rev().collect(),
            taken: HashMap::new(),
            next: 0,
            wrap: true,
            seen: 0,
            seen_wrap: true,
            room: size,
        }
    }

    /// Starts over in the same memory.
    pub fn forget(&mut self) {
        let memory = self.memory.clone();
        *self = Driver { memory, ..Driver::new(self.size, self.features) };
    }

    pub fn packed(&self) -> bool {
        self.features & feature::RING_PACKED != 0
    }

    pub fn header(&self) -> usize {
        let long = feature::RING_PACKED | feature::MRG_RXBUF | feature::VERSION_1;
        if self.features & long != 0 { 12 } else { 10 }
    }

    pub fn setup(&self) -> RingSetup {
        RingSetup {
            features: self.features,
            size: self.size,
            areas: [DESC, DRIVER, DEVICE].map(|a| self.memory.at(a)),
            base: if self.packed() { 1 << 15 } else { 0 },
        }
    }

    pub fn ring(&self) -> Ring {
        self.try_ring(self.setup()).unwrap()
    }

    pub fn try_ring(&self, setup: RingSetup) -> Result<Ring, SetupError> {
        // SAFETY: the memory outlives the ring in every test.
        unsafe { Ring::new(&setup, self.memory.table()) }
    }

    /// True if there is room for a buffer of so many descriptors.
    pub fn has_room(&self, descs: usize) -> bool {
        let room = if self.packed() { self.room.into() } else { self.free.len() };
        descs <= room && !self.free.is_empty()
    }

    fn desc(&self, at: u64, addr: u64, len: u32, a: u16, b: u16) {
        self.memory.put(at, &addr.to_le_bytes());
        self.memory.put(at + 8, &len.to_le_bytes());
        self.memory.put16(at + 12, a);
        self.memory.put16(at + 14, b);
    }

    /// Makes a buffer available; None without room. Returns its id.
    pub fn offer(&mut self, parts: &[Part], write: bool, indirect: bool) -> Option<u16> {
        let descs = if indirect { 1 } else { parts.len() };
        if !self.has_room(descs) {
            return None;
        }
        let flags = if write { WRITE } else { 0 };
        let id = *self.free.last().unwrap();
        let table = TABLES + u64::from(id) * TABLE;
        let whole = [(table, 16 * parts.len() as u32)];
        let (list, extra) = if indirect { (&whole[..], INDIRECT) } else { (parts, flags) };
        if indirect {
            self.write_table(table, parts, flags);
        }
        match self.packed() {
            true => self.offer_packed(list, extra),
            false => self.offer_split(list, extra),
        }
        Some(id)
    }

    fn write_table(&self, table: u64, parts: &[Part], flags: u16) {
        for (i, (addr, len)) in parts.iter().enumerate() {
            let at = table + 16 * i as u64;
            let more = i + 1 < parts.len();
            match self.packed() {
                true => self.desc(at, *addr, *len, 0xeeee, flags),
                false => {
                    let flags = if more { flags | NEXT } else { flags };
                    self.desc(at, *addr, *len, flags, i as u16 + 1);
                }
            }
        }
    }

    fn offer_split(&mut self, list: &[Part], extra: u16) {
        let ids: Vec<u16> = list.iter().map(|_| self.free.pop().unwrap()).collect();
        for (i, (addr, len)) in list.iter().enumerate() {
            let (next, flags) = match ids.get(i + 1) {
                Some(next) => (*next, extra | NEXT),
                None => (0xdead, extra),
            };
            self.desc(DESC + 16 * u64::from(ids[i]), *addr, *len, flags, next);
        }
        let slot = u64::from(self.next % self.size);
        self.memory.put16(DRIVER + 4 + 2 * slot, ids[0]);
        self.next = self.next.wrapping_add(1);
        self.memory.put16(DRIVER + 2, self.next);
        self.taken.insert(ids[0], ids);
    }

    fn offer_packed(&mut self, list: &[Part], extra: u16) {
        let id = self.free.pop().unwrap();
        let (mut later, n) = (Vec::new(), list.len() as u16);
        for (i, (addr, len)) in list.iter().enumerate() {
            let mut flags = extra | if self.wrap { AVAIL } else { USED };
            flags |= if i + 1 < list.len() { NEXT } else { 0 };
            let at = DESC + 16 * u64::from(self.next);
            let id = if i + 1 < list.len() { 0xdead } else { id };
            self.memory.put(at, &addr.to_le_bytes());
            self.memory.put(at + 8, &len.to_le_bytes());
            self.memory.put16(at + 12, id);
            later.push((at + 14, flags));
            self.next += 1;
            if self.next == self.size {
                (self.next, self.wrap) = (0, !self.wrap);
            }
        }
        for (at, flags) in later.into_iter().rev() {
            self.memory.put16(at, flags);
        }
        self.room -= n;
        self.taken.insert(id, vec![id; n as usize]);
    }

    /// A buffer that came back: its id and the bytes written.
    pub fn used(&mut self) -> Option<(u16, u32)> {
        let (id, len) = if self.packed() { self.used_packed()? } else { self.used_split()? };
        let descs = self.taken.remove(&id).expect("an id that was offered");
        match self.packed() {
            true => {
                self.free.push(id);
                let n = descs.len() as u16;
                self.room += n;
                self.seen += n;
                if self.seen >= self.size {
                    (self.seen, self.seen_wrap) = (self.seen - self.size, !self.seen_wrap);
                }
            }
            false => self.free.extend(descs),
        }
        Some((id, len))
    }

    fn used_split(&mut self) -> Option<(u16, u32)> {
        if self.memory.get16(DEVICE + 2) == self.seen {
            return None;
        }
        let entry = DEVICE + 4 + 8 * u64::from(self.seen % self.size);
        self.seen = self.seen.wrapping_add(1);
        Some((self.memory.get32(entry) as u16, self.memory.get32(entry + 4)))
    }

    fn used_packed(&mut self) -> Option<(u16, u32)> {
        let at = DESC + 16 * u64::from(self.seen);
        let flags = self.memory.get16(at + 14);
        let is = |bit: u16| (flags & bit != 0) == self.seen_wrap;
        if !is(AVAIL) || !is(USED) {
            return None;
        }
        Some((self.memory.get16(at + 12), self.memory.get32(at + 8)))
    }

    /// Asks for a notification, for none, or for one when buffer `event` (an index, or a place
    /// with its wrap bit) is used.
    pub fn ask(&mut self, when: Ask) {
        let quiet = u16::from(when == Ask::Never);
        match (self.packed(), when) {
            (true, Ask::At(event)) => {
                self.memory.put16(DRIVER, event);
                self.memory.put16(DRIVER + 2, 2);
            }
            (true, _) => self.memory.put16(DRIVER + 2, quiet),
            (false, Ask::At(event)) => {
                self.memory.put16(DRIVER + 4 + 2 * u64::from(self.size), event);
            }
            (false, _) => self.memory.put16(DRIVER, quiet),
        }
    }
}

/// Takes the buffers that came back, and checks that they hold the next frames that were sent,
/// whole packets at a time. `places`: the parts of each buffer, by its id.
pub fn reap(
    driver: &mut Driver,
    places: &mut HashMap<u16, Vec<Part>>,
    sent: &mut VecDeque<Vec<u8>>,
) {
    let mut take = |driver: &mut Driver| {
        let (id, len) = driver.used()?;
        let mut bytes = Vec::new();
        for (at, n) in places.remove(&id).unwrap() {
            bytes.extend(driver.memory.get(at, n as usize));
        }
        bytes.truncate(len as usize);
        Some(bytes)
    };
    let header = driver.header();
    while let Some(mut bytes) = take(driver) {
        assert!(bytes[..10].iter().all(|b| *b == 0), "no offload is used");
        let buffers = if header == 12 { u16::from_le_bytes([bytes[10], bytes[11]]) } else { 1 };
        for _ in 1..buffers {
            bytes.extend(take(driver).expect("all buffers of a packet come at once"));
        }
        assert_eq!(bytes[header..], sent.pop_front().unwrap());
    }
}

/// When a driver wants to be notified.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    Always,
    Never,
    At(u16),
}

/// The layouts and headers that tests go through.
pub const LAYOUTS: [u64; 5] = [
    0,
    feature::VERSION_1,
    feature::VERSION_1 | feature::MRG_RXBUF | feature::EVENT_IDX,
    feature::VERSION_1 | feature::RING_PACKED,
    feature::VERSION_1 | feature::RING_PACKED | feature::MRG_RXBUF | feature::EVENT_IDX,
];

/// Features of a guest that takes segments of TCP merged.
pub const TAKES: u64 = feature::GUEST_CSUM | feature::GUEST_TSO4 | feature::GUEST_TSO6;
/// Features of a guest that leaves checksums and segments to the device.
pub const LEAVES: u64 = feature::CSUM | feature::HOST_TSO4 | feature::HOST_TSO6;
