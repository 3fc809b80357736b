//! LLDP frames, as any bytes: what is read is bounded by the frame, and is read again from a frame
//! that says the same.

use wire::{LLDP_FRAME_BYTES_MAX, LldpSelf, read_lldp};

pub fn run(data: &[u8]) {
    let (read, unknown) = read_lldp(data);
    let most = data.len().min(LLDP_FRAME_BYTES_MAX) as u64;
    assert!(unknown <= most / 2, "a TLV has a header");
    let Ok(unit) = read else { return };
    let texts = unit.name.len() + unit.description.len();
    let ids = unit.chassis.value.len() + unit.port.value.len();
    assert!((ids + texts + 5 * unit.assignments.len()) as u64 <= most, "more than there was");
    assert!(!unit.chassis.value.is_empty() && !unit.port.value.is_empty());
    assert!(unit.assignments.iter().all(|a| a.status < 16 && a.vlan < 4096 && a.isid < 1 << 24));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let own = LldpSelf {
        mac: [2; 6],
        port: text(&unit.port.value),
        ttl: unit.ttl,
        name: text(&unit.name),
        description: text(&unit.description),
        assignments: unit.assignments.iter().map(|a| (a.isid, a.vlan)).collect(),
    };
    let (frame, said) = own.write();
    assert!(frame.len() <= LLDP_FRAME_BYTES_MAX - 8, "{} bytes", frame.len());
    let again = read_lldp(&frame).0.expect("what is written is read");
    let pairs = again.assignments.iter().map(|a| (a.isid, a.vlan));
    assert!(pairs.eq(own.assignments.into_iter().take(said)) && again.ttl == unit.ttl);
}

pub fn seeds() -> Vec<Vec<u8>> {
    let few = LldpSelf {
        mac: [2, 0, 0, 0, 0, 1],
        port: "eth0".into(),
        ttl: 120,
        name: "host1".into(),
        description: "a switch".into(),
        assignments: vec![(1, 10), (0xff_ffff, 4094)],
    };
    let many = LldpSelf { assignments: (0..90).map(|n| (n, 7)).collect(), ..few.clone() };
    let none = LldpSelf { assignments: Vec::new(), name: String::new(), ttl: 0, ..few.clone() };
    let mut all: Vec<Vec<u8>> = [few, many, none].map(|own| own.write().0).into();
    // A management address, a port's description, TLVs of other organizations, a tag.
    let mut other = all[0].clone();
    other.truncate(other.len() - 2);
    other.extend([8 << 1, 12, 5, 1, 10, 0, 0, 1, 2, 0, 0, 0, 3, 0]);
    other.extend([4 << 1, 2, b'p', b'1', 127 << 1, 5, 0, 0x80, 0xc2, 1, 9, 9 << 1, 0, 0, 0]);
    all.push([&other[..12], &[0x81, 0, 0, 0], &other[12..]].concat());
    all.push(other);
    all
}
