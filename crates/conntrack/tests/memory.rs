//! A process that may not have much address space: the table is smaller, and refuses what it has no
//! memory for. The only test of its program, as the limit is the process's.

use action::Ct;
use conntrack::{Arrival, Count, IpHeader, Keeper, Meta, Table, Worker, track};
use std::sync::Arc;
use sync::Domain;
use wire::IP_UDP;

/// Address space beside what the program has: not enough for the index of a large table, and for
/// few pieces of 12 MiB for connections.
const ROOM_BYTES: u64 = 120 << 20;
/// Connections that are begun, in as many zones as have room for them: more than there is memory
/// for.
const CONNECTIONS: u32 = 300_000;
const ZONES: u32 = 64;

fn have_no_more_than(more: u64) {
    let pages: u64 = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split(' ').next()?.parse().ok())
        .expect("the program's size");
    let most = pages * 4096 + more;
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: reads the structure.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
}

/// A datagram of connection `n`.
fn datagram(n: u32) -> Vec<u8> {
    let mut b = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, IP_UDP, 0, 0];
    b.extend((0x0a00_0000 | n).to_be_bytes());
    b.extend([11, 0, 0, 1, 4, 0, 0, 80, 0, 8, 0, 0]);
    b
}

#[test]
fn without_address_space_the_table_is_smaller() {
    have_no_more_than(ROOM_BYTES);
    let (domain, table) = (Domain::new(), Arc::new(Table::new()));
    let (mut reader, mut keeper) = (domain.reader(), Keeper::new(&table, domain, 0));
    let mut worker = Worker::new(&table);
    let mut send = |n: u32| {
        let ct = Ct { zone: (n % ZONES) as u16, commit: true, ..Ct::default() };
        let (mut data, mut meta) = (datagram(n), Meta::default());
        let (ip, came) = (IpHeader { l3: 0, sound: true }, Arrival { port: 1, now: 0 });
        let _ = track(&mut worker, &ct, &mut data, ip, &mut meta, came);
        reader.quiescent();
        keeper.tend(0, 64);
    };
    (0..CONNECTIONS).for_each(&mut send);
    let there = table.len();
    assert!((1 << 16..CONNECTIONS).contains(&there), "{there} connections");
    let full = table.counted()[Count::Full as usize];
    assert_eq!(full, u64::from(CONNECTIONS - there), "the others were refused, and counted");
    (0..1000).for_each(&mut send);
    let refused = table.counted()[Count::Full as usize];
    assert_eq!((table.len(), refused), (there, full), "what was there at first still is");
}
