//! What PMD threads call.

use super::{plain, resolve};
use crate::published::{Shared, World};
use action::{Decision, Pipeline, Request};
use flow::Key;
use std::sync::Arc;

/// The pipeline that PMD threads call.
pub(crate) struct Pipe {
    shared: Arc<Shared>,
}

impl Pipe {
    pub fn new(shared: Arc<Shared>) -> Pipe {
        Pipe { shared }
    }
}

impl Pipeline for Pipe {
    fn resolve(&self, request: &Request<'_>, out: &mut Decision) {
        // SAFETY: the contract of resolve(): called by an online reader of the domain, or by the
        // control side, which is the only writer.
        let world = unsafe { self.shared.world.read() };
        resolve(&self.shared, world, self.shared.version(), request, out, &mut None);
    }

    fn resolve_all(&self, requests: &[Request<'_>], out: &mut [Decision]) {
        // SAFETY: as above.
        let world = unsafe { self.shared.world.read() };
        for (requests, out) in requests.chunks(plain::AT_ONCE).zip(out.chunks_mut(plain::AT_ONCE)) {
            let done = plain::resolve(&self.shared, world, requests, out);
            let others = requests.iter().zip(out).enumerate().filter(|(i, _)| done >> i & 1 == 0);
            for (_, (request, out)) in others {
                out.clear();
                resolve(&self.shared, world, self.shared.version(), request, out, &mut None);
            }
        }
    }

    fn resolve_once(&self, keys: &mut [Key], out: &mut [Decision]) -> u32 {
        // SAFETY: as above.
        let world = unsafe { self.shared.world.read() };
        resolve_once(world, self.shared.version(), keys, out)
    }

    fn resolve_twice(
        &self,
        requests: &[Request<'_>],
        keys: &mut [Key],
        out: &mut [Decision],
        twins: &mut [Decision],
    ) -> u32 {
        // SAFETY: as above.
        let world = unsafe { self.shared.world.read() };
        let version = self.shared.version();
        for (request, twin) in requests.iter().zip(twins) {
            resolve(&self.shared, world, version, request, twin, &mut None);
        }
        resolve_once(world, version, keys, out)
    }
}

fn resolve_once(world: &World, version: u64, keys: &mut [Key], out: &mut [Decision]) -> u32 {
    let each = keys.chunks_mut(plain::ONCE).zip(out.chunks_mut(plain::ONCE)).zip(0..);
    each.fold(0, |done, ((keys, out), n)| {
        done | plain::resolve_once(world, version, keys, out) << (n * plain::ONCE)
    })
}
