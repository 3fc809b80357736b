//! Messages of a vhost-user front-end, with descriptors of several kinds, to a connection that has
//! no socket.

use crate::within;
use ::vhost_user::testing::{Said, converse};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;

/// Messages of one input.
const MESSAGES_MOST: usize = 48;
/// Units of work that one message may be: 128 rings that are taken away and put back, and 8
/// regions.
const UNITS_MOST: u32 = 1 + 8 + 2 * 128;
/// Milliseconds that all messages of an input may take together.
const DIALOGUE_MS_MOST: u64 = 200;
/// Bytes of the files that are memory.
const FILE_BYTES: u64 = 1 << 16;
/// Descriptors with one message.
const DESCRIPTORS_MOST: u8 = 9;

/// An eventfd, memory that may shrink, memory that may not, and no memory at all.
fn kinds() -> &'static [OwnedFd; 4] {
    static FDS: OnceLock<[OwnedFd; 4]> = OnceLock::new();
    FDS.get_or_init(|| {
        // SAFETY: makes descriptors, which are ours.
        let [event, plain, sealed] = unsafe {
            let memory = || libc::memfd_create(c"fuzz".as_ptr(), libc::MFD_ALLOW_SEALING);
            [libc::eventfd(0, libc::EFD_NONBLOCK), memory(), memory()]
                .map(|fd| OwnedFd::from_raw_fd(fd))
        };
        for fd in [&plain, &sealed] {
            let file = File::from(fd.try_clone().expect("a descriptor is free"));
            file.set_len(FILE_BYTES).expect("room");
        }
        // SAFETY: sets a flag of a file of ours.
        unsafe { libc::fcntl(sealed.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
        let null = File::open("/dev/null").expect("/dev/null");
        [event, plain, sealed, null.into()]
    })
}

/// Each message: a byte that says how many descriptors of which kind, the request, flags, the
/// payload's length, and the payload. A length of 255 is one that the header says wrongly.
fn read(data: &[u8]) -> Vec<Said> {
    let (mut rest, mut messages) = (data, Vec::new());
    while let [fds, request, flags, len, more @ ..] = rest {
        if messages.len() == MESSAGES_MOST {
            break;
        }
        let (payload, after) = more.split_at(more.len().min(usize::from(*len)));
        rest = after;
        let kind = &kinds()[usize::from(fds & 3)];
        let clone = |_| kind.try_clone().expect("a descriptor is free");
        let size = if *len == 255 { u32::MAX } else { payload.len() as u32 };
        let words = [u32::from(*request), u32::from(flags ^ 1), size];
        let mut header = [0; 12];
        for (to, word) in header.chunks_mut(4).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        let fds = (0..(fds >> 2).min(DESCRIPTORS_MOST)).map(clone).collect();
        messages.push(Said { header, payload: payload.to_vec(), fds });
    }
    messages
}

pub fn run(data: &[u8]) {
    let messages = read(data);
    let said = messages.len();
    let (taken, units) = within(DIALOGUE_MS_MOST, "a dialogue", || converse(messages));
    assert!(taken <= said && units <= UNITS_MOST, "{taken} of {said}, {units} units");
}

pub fn seeds() -> Vec<Vec<u8>> {
    let one = |fds: u8, request: u8, payload: &[u8]| {
        [&[fds, request, 0, payload.len() as u8][..], payload].concat()
    };
    let words = |words: &[u32]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
    let longs = |longs: &[u64]| longs.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
    let dialogue = |features: u64, packed: bool| {
        const USER: u64 = 0x7000_0000_0000;
        let table = [words(&[1, 0]), longs(&[0, FILE_BYTES, USER, 0])].concat();
        let mut all = vec![
            one(0, 1, &[]),
            one(0, 15, &[]),
            one(0, 16, &longs(&[0])),
            one(0, 3, &[]),
            one(0, 2, &longs(&[features])),
            one(4 | 1, 5, &table),
        ];
        for ring in 0..2u32 {
            let base = USER + u64::from(ring) * 0x8000;
            let parts = longs(&[base, base + 0x3000, base + 0x2000, 0]);
            all.push(one(0, 8, &words(&[ring, 128])));
            all.push(one(0, 10, &words(&[ring, if packed { 0x8000_8000 } else { 0 }])));
            all.push(one(0, 9, &[words(&[ring, 0]), parts].concat()));
            all.push(one(4, 13, &longs(&[ring.into()])));
            all.push(one(4, 12, &longs(&[ring.into()])));
            all.push(one(0, 18, &words(&[ring, 1])));
        }
        all.push(one(0, 11, &words(&[0, 0])));
        all.concat()
    };
    let log = [one(0, 16, &longs(&[2])), one(4 | 1, 6, &longs(&[4096, 0]))].concat();
    let flight = [longs(&[0, 0]), vec![2, 0, 128, 0]].concat();
    vec![
        dialogue(1 << 32 | 1 << 30, false),
        dialogue(1 << 34 | 1 << 32 | 1 << 30, true),
        [log, dialogue(1 << 32 | 1 << 30 | 1 << 26, false)].concat(),
        [one(0, 16, &longs(&[1 << 12])), one(0, 31, &flight)].concat(),
        [one(0, 20, &longs(&[1400])), one(0, 19, &longs(&[2])), one(0, 17, &[])].concat(),
    ]
}

#[cfg(test)]
mod tests {
    #[test]
    fn seeds_are_taken_to_their_end() {
        for (i, seed) in super::seeds().iter().enumerate() {
            let messages = super::read(seed);
            let said = messages.len();
            assert_eq!(super::converse(messages).0, said, "seed {i}");
        }
    }
}
