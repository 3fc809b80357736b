//! Groups of many buckets that change all the time.

use crate::groups::history::GROUPS_BRIDGE_MAX;
use crate::groups::replaced::REPLACED_MAX;
use crate::tests::*;
use crate::*;
use openflow::*;

const LAST: u32 = 0xffff_fffe;

fn buckets(ids: std::ops::Range<u32>) -> Vec<Bucket> {
    let (watch_port, watch_group) = (port::ANY, GROUP_ANY);
    let bucket = |id| Bucket { id, weight: 1, watch_port, watch_group, actions: vec![] };
    ids.map(bucket).collect()
}

fn change(command: GroupCommand, ids: std::ops::Range<u32>) -> GroupMod {
    GroupMod { command, buckets: buckets(ids), ..group(1, GroupType::Select, &[]) }
}

/// A message of few bytes changes a group of very many buckets, which all get new counters; the old
/// ones wait for ten seconds. What waits is bounded.
#[test]
fn groups_that_change_all_the_time_keep_few_counters() {
    const SECOND_NS: u64 = 1_000_000_000;
    let (few, full) = (100, Err(OfError::GroupOutOfBuckets));
    let mut lab = Lab::new();
    lab.sw.group_mod(lab.br, &change(GroupCommand::Add, 0..few), 0).unwrap();
    let insert = change(GroupCommand::InsertBucket(LAST), few..few + 1);
    let remove = change(GroupCommand::RemoveBucket(LAST), 0..0);
    assert_eq!(lab.sw.group_mod(lab.br, &insert, 0), Ok(()));
    let used = lab.sw.slots.len();
    // What many more changes would leave.
    let replaced = &mut lab.sw.bridge_mut(lab.br).unwrap().groups.replaced;
    replaced.add(REPLACED_MAX - 2 * few as usize - 2, SECOND_NS);
    assert_eq!(lab.sw.group_mod(lab.br, &remove, SECOND_NS), Ok(()));
    assert_eq!(lab.sw.group_mod(lab.br, &insert, SECOND_NS), full, "now as many wait as may");
    assert_eq!(lab.sw.group_mod(lab.br, &insert, 10 * SECOND_NS), full);
    assert!(lab.sw.slots.len() - used <= few as usize + 2);
    let delete = change(GroupCommand::Delete, 0..0);
    assert_eq!(lab.sw.group_mod(lab.br, &delete, 10 * SECOND_NS), Ok(()), "what makes room");
    assert_eq!(
        lab.sw.group_mod(lab.br, &change(GroupCommand::Add, 0..few), 12 * SECOND_NS),
        Ok(())
    );
    // Another bridge has its own share.
    let other = lab.sw.add_bridge("br1", crate::BridgeConfig::default(), 0).unwrap();
    let replaced = &mut lab.sw.bridge_mut(lab.br).unwrap().groups.replaced;
    replaced.add(REPLACED_MAX, 12 * SECOND_NS);
    let add = change(GroupCommand::AddOrMod, 0..few);
    assert_eq!(lab.sw.group_mod(lab.br, &add, 12 * SECOND_NS), full);
    assert_eq!(lab.sw.group_mod(other, &add, 12 * SECOND_NS), Ok(()));
}

#[test]
fn groups_and_buckets_of_a_bridge_are_bounded() {
    let full = Err(OfError::GroupOutOfBuckets);
    let mut lab = Lab::new();
    let many = |id| GroupMod { id, ..change(GroupCommand::AddOrMod, 0..1 << 14) };
    let n = GROUPS_BRIDGE_MAX as u32 >> 14;
    (1..n).for_each(|id| assert_eq!(lab.sw.group_mod(lab.br, &many(id), 0), Ok(())));
    assert_eq!(lab.sw.group_mod(lab.br, &many(n), 0), full);
    assert_eq!(lab.sw.group_mod(lab.br, &many(1), 0), Ok(()), "one that is there changes");
    // A change that is undone, and one that goes, leave as much room as there was before.
    let two = |last| [many(1), many(n)].into_iter().chain([last]).map(BundleItem::Group);
    let delete = |id| GroupMod { id, ..change(GroupCommand::Delete, 0..0) };
    assert_eq!(
        lab.sw.bundle(lab.br, two(delete(1)).collect(), 0),
        Err((1, OfError::GroupOutOfBuckets))
    );
    let undone = [delete(1), many(n), many(1)].map(BundleItem::Group).to_vec();
    assert_eq!(lab.sw.bundle(lab.br, undone, 0), Err((2, OfError::GroupOutOfBuckets)));
    assert_eq!(lab.sw.group_mod(lab.br, &many(n), 0), full);
    assert_eq!(lab.sw.group_mod(lab.br, &delete(1), 0), Ok(()));
    assert_eq!(lab.sw.group_mod(lab.br, &many(n), 0), Ok(()));
}

/// Whether a bucket is there already is found out by one look at each.
#[test]
fn buckets_that_are_inserted_are_compared_with_each_once() {
    let mut lab = Lab::new();
    lab.sw.group_mod(lab.br, &change(GroupCommand::Add, 0..8000), 0).unwrap();
    let mut m = change(GroupCommand::InsertBucket(LAST), 8000..16_000);
    m.buckets[7999].id = 7999;
    let (taken, answer) = crate::work::steps(|| lab.sw.group_mod(lab.br, &m, 0));
    assert_eq!(answer, Err(OfError::GroupBucketExists));
    assert!(taken <= 2 * 8000, "{taken} steps");
}

#[test]
fn a_bridge_leaves_others_meters() {
    let mut lab = Lab::new();
    let other = lab.sw.add_bridge("br1", BridgeConfig::default(), 0).unwrap();
    let add = |id| MeterMod {
        command: MeterCommand::Add,
        flags: 1,
        id,
        bands: vec![Band::Drop { rate: 1, burst: 1 }],
    };
    // All but seven are those of other bridges.
    (7..METERS_MAX).for_each(|_| assert!(lab.sw.meter_numbers.take().is_some()));
    let taken = (1..8).take_while(|id| lab.sw.meter_mod(lab.br, &add(*id), 0).is_ok()).count();
    assert_eq!(taken, 4, "as many as are left for others, and one");
    assert_eq!(lab.sw.meter_mod(lab.br, &add(9), 0), Err(OfError::MeterOutOfMeters));
    assert_eq!(lab.sw.meter_mod(other, &add(9), 0), Ok(()));
}
