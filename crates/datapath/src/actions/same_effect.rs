//! For tests: comparing what operations do with two packets.

use crate::actions::interpret::run;
use crate::parse::frame::Frame;
use crate::verify::compare;
use action::Op;
use telemetry::Drop;

/// Executes `ops` on packet `d` and `as_these` on packet `other`; the difference of the results in
/// words, if there is one.
pub(crate) fn same(d: &[u8], ops: &[Op], other: &[u8], as_these: &[Op]) -> Option<String> {
    let frame = |d| Frame::new(d, 7, 2).unwrap();
    compare(
        d,
        |sink, p| run(sink, &ops.into(), Drop::Policy, p, frame(d)),
        |sink, mut p| {
            // The same packet, with other bytes.
            p.keep(0..0);
            assert!(p.set_len(other.len()));
            p.data_mut().copy_from_slice(other);
            run(sink, &as_these.into(), Drop::Policy, p, frame(other));
        },
    )
}
