//! Messages of a memif client to the server that checks them.

#[path = "../../port-dpdk/src/memif/message.rs"]
#[allow(dead_code)]
mod message;

use message::{ADD_REGION, ADD_RING, CONNECT, INIT, Message, Next, Offer, RingTarget, Rings};
use message::{DESCRIPTOR_BYTES, RING_HEADER_BYTES, SECRET_BYTES, SIZE};
use std::fs::File;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;

/// The port that there is, and its rings.
const ID: u32 = 7;
const RINGS: Rings = Rings { c2s: 2, s2c: 2 };
/// Messages of one input.
const MESSAGES_MOST: usize = 32;

/// Descriptors that a client may pass: an eventfd, and shared memory that may shrink or not.
fn descriptors() -> &'static [OwnedFd; 3] {
    static FDS: OnceLock<[OwnedFd; 3]> = OnceLock::new();
    FDS.get_or_init(|| {
        // SAFETY: makes descriptors, which are ours.
        let [event, sealed, plain] = unsafe {
            let memory = || libc::memfd_create(c"fuzz".as_ptr(), libc::MFD_ALLOW_SEALING);
            [libc::eventfd(0, 0), memory(), memory()].map(|fd| OwnedFd::from_raw_fd(fd))
        };
        let file = |fd: &OwnedFd| File::from(fd.try_clone().expect("a descriptor is free"));
        file(&sealed).set_len(1 << 20).expect("room");
        file(&plain).set_len(1 << 20).expect("room");
        // SAFETY: sets a flag of a file of ours.
        unsafe {
            use std::os::fd::AsRawFd;
            libc::fcntl(sealed.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK);
        }
        [event, sealed, plain]
    })
}

/// Each message is a byte that says which descriptors come with it, and a length; the rest of the
/// message is zero.
pub fn run(data: &[u8]) {
    let (mut rest, mut offer) = (data, Offer::default());
    let target = RingTarget { rings: RINGS, secret: [0; SECRET_BYTES] };
    let find = |id| (id == ID).then_some(target);
    for _ in 0..MESSAGES_MOST {
        let [which, len, more @ ..] = rest else { return };
        let (bytes, more) = more.split_at(more.len().min(usize::from(*len)).min(SIZE));
        rest = more;
        let mut whole = [0; SIZE];
        whole[..bytes.len()].copy_from_slice(bytes);
        let message = Message::from_bytes(&whole).expect("a whole message");
        let clone = |fd: &OwnedFd| fd.as_fd().try_clone_to_owned().expect("a descriptor is free");
        let fds = (0..3).filter(|i| which >> i & 1 != 0).map(|i| clone(&descriptors()[i]));
        match offer.take(&message, fds.collect(), find) {
            Ok(Next::Connect) => return check(&offer),
            Ok(Next::Gone) | Err(_) => return,
            Ok(_) => {}
        }
    }
}

/// What the rest relies on: each queue has its ring, in a region that there is.
fn check(offer: &Offer) {
    assert_eq!(offer.id, Some(ID));
    assert_eq!([offer.c2s.len(), offer.s2c.len()], [RINGS.c2s, RINGS.s2c].map(usize::from));
    for ring in offer.c2s.iter().chain(&offer.s2c) {
        let (region, offset, log2_size) = ring.as_ref().expect("all are there").place;
        let (_, bytes) = &offer.regions[usize::from(region)];
        assert!(u64::from(offset) + RING_HEADER_BYTES + (DESCRIPTOR_BYTES << log2_size) <= *bytes);
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    let one = |fds: u8, bytes: Vec<u8>| [vec![fds, bytes.len() as u8], bytes].concat();
    let words = |words: &[u16]| words.iter().flat_map(|w| w.to_ne_bytes()).collect::<Vec<u8>>();
    let init = one(0, [words(&[INIT, 0x0200]), ID.to_ne_bytes().to_vec(), vec![0]].concat());
    let region = [words(&[ADD_REGION, 0]), (1u64 << 20).to_ne_bytes().to_vec()].concat();
    let region = one(2, region);
    let ring = |flags, index, offset: u32| {
        let head = words(&[ADD_RING, flags, index, 0]);
        one(1, [head, offset.to_ne_bytes().to_vec(), vec![10]].concat())
    };
    let rings = [ring(1, 0, 0), ring(1, 1, 0x8000), ring(0, 0, 0x1_0000), ring(0, 1, 0x1_8000)];
    let all = [vec![init, region], rings.to_vec(), vec![one(0, words(&[CONNECT]))]].concat();
    vec![all.concat(), all[..3].concat(), all[1..].concat()]
}
