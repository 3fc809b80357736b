//! The pipeline that PMD threads call.

use super::plain;
use super::xlate::Xlate;
use crate::published::{PublishedState, Shared, View};
use crate::trace::recorder::Recorder;
use crate::types::BridgeId;
use action::{Decision, Pipeline, Request};
use flow::{Key, at};
use std::sync::Arc;
use sync::Guard;
use telemetry::Drop;

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
    fn resolve(&self, guard: Guard<'_>, request: &Request<'_>, out: &mut Decision) {
        let view = View::new(&self.shared, guard);
        resolve(view, self.shared.version(), request, out, &mut None);
    }

    fn resolve_all(&self, guard: Guard<'_>, requests: &[Request<'_>], out: &mut [Decision]) {
        let view = View::new(&self.shared, guard);
        for (requests, out) in requests
            .chunks(plain::MASKED_PACKETS_MAX)
            .zip(out.chunks_mut(plain::MASKED_PACKETS_MAX))
        {
            let done = plain::resolve(view, requests, out);
            let others = requests.iter().zip(out).enumerate().filter(|(i, _)| done >> i & 1 == 0);
            for (_, (request, out)) in others {
                out.clear();
                resolve(view, self.shared.version(), request, out, &mut None);
            }
        }
    }

    fn resolve_unmasked(&self, guard: Guard<'_>, keys: &mut [Key], out: &mut [Decision]) -> u32 {
        let view = View::new(&self.shared, guard);
        resolve_unmasked(view, self.shared.version(), keys, out)
    }

    fn resolve_both(
        &self,
        guard: Guard<'_>,
        requests: &[Request<'_>],
        keys: &mut [Key],
        out: &mut [Decision],
        twins: &mut [Decision],
    ) -> u32 {
        let view = View::new(&self.shared, guard);
        let version = self.shared.version();
        for (request, twin) in requests.iter().zip(twins) {
            resolve(view, version, request, twin, &mut None);
        }
        resolve_unmasked(view, version, keys, out)
    }
}

fn resolve_unmasked(view: View<'_>, version: u64, keys: &mut [Key], out: &mut [Decision]) -> u32 {
    let each = keys
        .chunks_mut(plain::UNMASKED_PACKETS_MAX)
        .zip(out.chunks_mut(plain::UNMASKED_PACKETS_MAX))
        .zip(0..);
    each.fold(0, |done, ((keys, out), n)| {
        done | plain::resolve_unmasked(view, version, keys, out)
            << (n * plain::UNMASKED_PACKETS_MAX)
    })
}

/// Decides about a packet by one version of the tables, with an optional trace.
pub(crate) fn resolve(
    view: View<'_>,
    version: u64,
    request: &Request<'_>,
    out: &mut Decision,
    trace: &mut Option<Recorder>,
) {
    let View { shared, guard, published } = view;
    let key = request.key;
    let frozen = match key.u32(at::RECIRC) {
        0 => None,
        id => match shared.frozen.get(guard, id) {
            Some(kept) => Some(kept),
            None => return drop_all(published, key, out, Drop::RecircLimit),
        },
    };
    let entry = match frozen {
        Some(f) => {
            let in_port = f.state.in_port();
            published.bridge(f.state.bridge).map(|b| (b, in_port)).ok_or(Drop::NoPort)
        }
        None => published.entry(key),
    };
    let (bridge, in_port) = match entry {
        Ok(entry) => entry,
        Err(why) => return drop_all(published, key, out, why),
    };
    // A trace shows what the flows that are there would do.
    if bridge.config.restoring && trace.is_none() {
        return drop_all(published, key, out, Drop::FlowRestoreWait);
    }
    let mut x = Xlate::new(view, bridge, key, out, trace);
    x.key.set_u32(at::OF_IN_PORT, in_port);
    x.tunnel.options = request.options;
    x.at_version(version);
    match frozen {
        Some(f) => x.resume(f),
        None => x.start(),
    }
    x.finish();
    if let Some(mut failure) = x.end.failure.take() {
        let mut key = *key;
        key.set_u32(at::OF_IN_PORT, in_port);
        // As in OVS, the log has traces of these only.
        let traced = matches!(x.end.failed, Some(Drop::DepthLimit | Drop::ResubmitLimit));
        if traced && frozen.is_none() {
            failure.received = Some((BridgeId(bridge.id), key, request.options.to_vec()));
        }
        shared.failures.keep(failure, &key);
    }
}

fn drop_all(published: &PublishedState, key: &Key, out: &mut Decision, why: Drop) {
    out.mask.set_u16(at::IN_PORT, 0xffff);
    out.mask.set_u32(at::RECIRC, !0);
    if why == Drop::TunnelUnknown {
        published.tunnels.look(key, &mut out.mask);
    }
    out.drop = Some(why);
}
