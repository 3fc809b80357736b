//! What programs do with packets besides sending them to a port: [`TxState`] as a [`Sink`].

use super::TxState;
use crate::actions::fragments::Paused;
use crate::actions::interpret::Sink;
use crate::batch::Pending;
use crate::batch::keys::bytes_mut;
use crate::events::PuntEvent;
use crate::parse::frame::Frame;
use action::{Ct, Meter, Punt, PuntClass, Verdict};
use conntrack::alg::Edit;
use conntrack::ipf::Fragment;
use conntrack::{Arrival, IpHeader, Meta, Ref};
use flow::{Key, PortNo, at};
use packet::Packet;
use std::sync::Arc;
use telemetry::Drop;

/// Recirculated packets of one worker that may wait to be looked up: 16 vectors. A packet may be
/// copied at each of six depths; without this limit that would be 4,096^6 packets, with it no more
/// than this many wait at each depth.
const RECIRCULATED_WAITING_MAX: usize = 16 * packet::VECTOR;

impl Sink for TxState {
    #[inline]
    fn output(&mut self, port: PortNo, packet: Packet) {
        self.send(port, packet);
    }
    fn free(&mut self, packet: Packet) {
        self.buffers.to_free.push(packet);
    }
    fn dropped(&mut self, in_port: PortNo, why: Drop) {
        self.stats(in_port).lost(why, 1);
    }
    fn copies(&mut self, in_port: PortNo, n: u64) {
        self.stats(in_port).copies.add(n);
    }
    fn copy(&mut self, packet: &Packet) -> Option<Packet> {
        self.buffers.pool.copy(packet)
    }
    fn punt(&mut self, punt: &Arc<Punt>, packet: &Packet, key: Key, in_port: PortNo) {
        let source = (in_port, punt.class);
        let data = packet.data();
        let n =
            if punt.max_len == 0xffff { data.len() } else { data.len().min(punt.max_len.into()) };
        if let Err(why) = self.punts.admit(source, n, self.now_ms) {
            let why = match (punt.class, why) {
                (PuntClass::Sample, Drop::PuntRate) => Drop::SampleRate,
                (PuntClass::Sample, _) => Drop::SampleFull,
                _ => why,
            };
            return self.stats(in_port).lost(why, 1);
        }
        let event = PuntEvent {
            packet: data[..n].to_vec(),
            key,
            in_port,
            punt: punt.clone(),
            total_len: data.len(),
        };
        self.punts.send(source, event);
        self.stats(in_port).punted.add(1);
    }
    fn recirculate(&mut self, id: u32, packet: Packet, frame: &Frame) {
        let room = self.recirculated.len() < RECIRCULATED_WAITING_MAX;
        let may =
            if room { self.copies.recirculate(frame.in_port()) } else { Err(Drop::RecircLimit) };
        if let Err(why) = may {
            self.dropped(frame.in_port(), why);
            return self.free(packet);
        }
        let mut frame = *frame;
        frame.depth += 1;
        bytes_mut(&mut frame.line)[at::RECIRC..at::RECIRC + 4].copy_from_slice(&id.to_be_bytes());
        self.recirculated.push(Pending { packet, frame });
    }
    fn track(
        &mut self,
        ct: &Ct,
        data: &mut [u8],
        ip: IpHeader,
        port: PortNo,
        meta: &mut Meta<Ref>,
    ) -> Option<Edit> {
        let came = Arrival { port, now: self.now_ms };
        conntrack::track(&mut self.ct.worker, ct, data, ip, meta, came)
    }
    fn gather(&mut self, ct: &Ct, fragment: Fragment, mut paused: Paused) -> Option<Paused> {
        paused.newest_port = self.newest_port;
        self.ct.fragments.gather(&mut self.ct.worker, ct, fragment, paused, self.now_ms)
    }
    fn meter(&mut self, meter: &Meter, bytes: usize) -> Verdict {
        meter.run(bytes, self.now_ms)
    }
    fn random(&mut self) -> u32 {
        self.rng ^= self.rng << 13;
        self.rng ^= self.rng >> 7;
        self.rng ^= self.rng << 17;
        (self.rng >> 32) as u32
    }
}
