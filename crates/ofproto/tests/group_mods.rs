//! What group-mods allocate: publishing one does not copy the others.

use ofproto::{BridgeConfig, Switch};
use openflow::{Bucket, GROUP_ANY, GroupCommand, GroupMod, GroupType, port};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

struct Counting;

static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: hands everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_group_mod_does_not_copy_the_other_groups() {
    let mut sw = Switch::new(sync::Domain::new().writer());
    let br = sw.add_bridge("br0", BridgeConfig::default(), 0).unwrap();
    let mut add = |ids: std::ops::Range<u32>| {
        let before = BYTES.load(Ordering::Relaxed);
        for id in ids {
            let (watch_port, watch_group) = (port::ANY, GROUP_ANY);
            let bucket = Bucket { id: 0, weight: 1, watch_port, watch_group, actions: vec![] };
            let m = GroupMod {
                command: GroupCommand::Add,
                kind: GroupType::Indirect,
                id,
                buckets: vec![bucket],
                selection_method: String::new(),
                selection_param: 0,
                selection_fields: vec![],
            };
            sw.group_mod(br, &m, 0).unwrap();
        }
        BYTES.load(Ordering::Relaxed) - before
    };
    let [first, _, last] = [0..1000, 1000..9000, 9000..10_000].map(&mut add);
    assert!(last < 2 * first, "{last} bytes for 1,000 groups beside 9,000; alone {first}");
}
