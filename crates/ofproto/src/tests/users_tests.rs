//! Which flows go with a group or a meter that is deleted, against the plainest reading.

use crate::tests::properties::Rng;
use crate::tests::*;
use crate::*;
use openflow::*;
use std::collections::BTreeMap;

/// What a flow names.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Named {
    Nothing,
    Group(u32),
    Meter(u32),
}

const FLOWS: u64 = 12;
const IDS: u64 = 3;

fn flow_of(number: u64, named: Named) -> FlowMod {
    let to = match named {
        Named::Nothing => vec![],
        Named::Group(id) => apply(vec![Action::Clone(vec![Action::Group(id)]), Action::Group(id)]),
        Named::Meter(id) => vec![Instruction::Meter(id)],
    };
    flow((number % 2) as u8, 5, &format!("udp,tp_dst={number}"), to)
}

fn put_all(lab: &mut Lab) {
    for id in 1..=IDS as u32 {
        let _ = lab.sw.group_mod(lab.br, &group(id, GroupType::All, &[(2, 0)]), 0);
        let band = Band::Drop { rate: 1, burst: 0 };
        let bands = vec![band];
        let meter = MeterMod { command: MeterCommand::Add, flags: 4, id, bands };
        let _ = lab.sw.meter_mod(lab.br, &meter, 0);
    }
}

#[test]
fn a_deleted_group_or_meter_takes_those_flows_that_name_it() {
    let mut r = Rng::new(1);
    let (mut lab, mut twin) = (Lab::new(), BTreeMap::new());
    put_all(&mut lab);
    for _ in 0..3000 {
        let (number, id) = (r.below(FLOWS), 1 + r.below(IDS) as u32);
        let named = match r.below(3) {
            0 => Named::Nothing,
            1 => Named::Group(id),
            _ => Named::Meter(id),
        };
        let m = flow_of(number, named);
        match r.below(8) {
            0..3 => {
                lab.add(m);
                twin.insert(number, named);
            }
            3 => {
                lab.add(FlowMod { command: FlowModCommand::ModifyStrict, cookie: u64::MAX, ..m });
                twin.entry(number).and_modify(|n| *n = named);
            }
            4 => {
                lab.add(FlowMod { command: FlowModCommand::DeleteStrict, ..m });
                twin.remove(&number);
            }
            5 => {
                // The last item fails.
                let wrong = flow(0, 1, "", apply(vec![Action::Group(99)]));
                let items = [m, wrong].map(BundleItem::Flow).into();
                assert!(lab.sw.bundle(lab.br, items, 0).is_err());
            }
            6 => {
                let command = GroupCommand::Delete;
                let delete = GroupMod { command, ..group(id, GroupType::All, &[]) };
                lab.sw.group_mod(lab.br, &delete, 0).unwrap();
                twin.retain(|_, named| *named != Named::Group(id));
                put_all(&mut lab);
            }
            _ => {
                let command = MeterCommand::Delete;
                let delete = MeterMod { command, flags: 0, id, bands: vec![] };
                lab.sw.meter_mod(lab.br, &delete, 0).unwrap();
                twin.retain(|_, named| *named != Named::Meter(id));
                put_all(&mut lab);
            }
        }
        let mut flows: Vec<_> = lab.dump().iter().map(|f| f.matching.clone()).collect();
        let mut expected: Vec<_> =
            twin.iter().map(|(n, named)| flow_of(*n, *named).matching).collect();
        let port = |m: &Match| flow::Field::UdpDst.get(&m.key);
        flows.sort_by_key(port);
        expected.sort_by_key(port);
        assert_eq!(flows, expected);
        for id in 1..=IDS as u32 {
            let stats = lab.sw.meter_stats(lab.br, id, 0, 0).unwrap();
            let named = twin.values().filter(|named| **named == Named::Meter(id)).count();
            assert_eq!(stats.entries[0].flow_count as usize, named);
        }
    }
}
