//! How many packets a ring says it has room for, and how many it takes.

mod common;

use common::{DATA, Driver};
use packet::{HeapPool, Packet, Pool};
use vhost::{Batch, Moved, feature};

const SIZE: u16 = 64;

#[test]
fn a_ring_takes_as_many_packets_as_it_has_room_for() {
    for features in [feature::VERSION_1, feature::VERSION_1 | feature::RING_PACKED] {
        let (mut driver, pool) = (Driver::new(SIZE, features), HeapPool::new());
        let (mut ring, mut batch) = (driver.ring(), Batch::default());
        let packets: Vec<Packet> = (0..80).map(|_| pool.packet(&[7; 64]).unwrap()).collect();
        for offered in (0..=usize::from(SIZE)).chain([3, 0, 64, 1]) {
            for i in 0..offered {
                driver.offer(&[(DATA + 2048 * i as u64, 2048)], true, false).unwrap();
            }
            for asked in [0, 1, 2, offered, offered + 1, 80] {
                assert_eq!(ring.room(asked), asked.min(offered), "{asked} of {offered}");
            }
            let mut moved = Moved::default();
            ring.enqueue(&mut batch, &packets, &mut moved);
            assert_eq!((moved.packets, ring.room(80)), (offered, 0));
            while driver.used().is_some() {}
        }
        pool.free(&packets);
        assert_eq!(pool.in_use(), 0);
    }
}

/// What an index says that makes no sense is for the call that reads buffers to find out.
#[test]
fn an_index_beyond_the_ring_is_no_error_yet() {
    let driver = Driver::new(SIZE, feature::VERSION_1);
    let mut ring = driver.ring();
    driver.memory.put16(common::DRIVER + 2, 1000);
    assert_eq!((ring.room(80), ring.is_broken()), (usize::from(SIZE), false));
}
