//! Frames that the kernel leaves whole, with any offload header: the plan of their segments holds.

use wire::gso::{Plan, SEGMENTS_PER_FRAME_MAX};
use wire::vnet::{VNET_LEN, VnetHeader};

/// Segments that are written; plans say in advance how many there are.
const SEGMENTS_MOST: usize = 64;

pub fn run(data: &[u8]) {
    let Some((raw, frame)) = data.split_first_chunk::<VNET_LEN>() else { return };
    let header = VnetHeader::read(raw);
    let Some(plan) = Plan::new(frame, &header) else { return };
    let (count, mut out) = (plan.count(), Vec::new());
    assert!(count <= frame.len().min(SEGMENTS_PER_FRAME_MAX), "{count} segments");
    for i in (0..count.min(SEGMENTS_MOST)).chain([count - 1]) {
        out.clear();
        out.resize(plan.len(i), 0);
        assert!(out.len() <= frame.len());
        plan.write(frame, i, &mut out).expect("the frame that was planned for");
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    use testkit::{Frame, L4, Net, V4, V6};
    let (a, b) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    let tcp = || L4::Tcp(1, 2, 3, 4, 0x18, vec![7; 100]);
    let v4 = |l4| Net::V4(V4::new([10, 0, 0, 1], [10, 0, 0, 2], l4));
    let v6 = |l4| Net::V6(V6::new([1; 16], [2; 16], l4));
    let inner = Frame::new(a, b, v4(tcp())).bytes();
    let vxlan = [&[8, 0, 0, 0, 0, 0, 42, 0][..], &inner].concat();
    let header = |gso: u8, size: u16, start: u16| {
        let mut h = vec![u8::from(start > 0), gso, 0, 0];
        [size, start, 16].iter().for_each(|w| h.extend(w.to_ne_bytes()));
        h
    };
    let with = |h: Vec<u8>, net| [h, Frame::new(a, b, net).bytes()].concat();
    vec![
        with(header(1, 30, 34), v4(tcp())),
        with(header(1, 1, 0), v4(tcp())),
        with(header(4, 50, 54), v6(tcp())),
        with(header(5, 16, 0), v6(L4::Udp(5, 6, vec![1; 90]))),
        with(header(1, 40, 84), v4(L4::Udp(5, 4789, vxlan))),
    ]
}
