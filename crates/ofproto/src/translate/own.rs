//! Headers that actions put in front of the packet: a decision does not depend on bits of these.

use crate::translate::state::{Headers, Own};
use crate::translate::xlate::Xlate;
use flow::at;

impl Xlate<'_, '_> {
    pub(super) fn begin_own(&mut self, headers: Headers) {
        let whole = [Some(Headers::Frame), Some(Headers::Nsh)].contains(&self.own_headers());
        if !whole && self.own_headers() != Some(headers) {
            self.forget_own();
            self.packet.layers.own = Some(Box::new(Own { headers, seen: self.wc }));
        }
    }

    pub(super) fn own_headers(&self) -> Option<Headers> {
        self.packet.layers.own.as_ref().map(|own| own.headers)
    }

    /// Records that the packet has these headers in front again.
    pub(super) fn back_to(&mut self, headers: Option<Headers>) {
        if self.own_headers() != headers {
            self.forget_own();
            headers.into_iter().for_each(|headers| self.begin_own(headers));
        }
    }

    /// Removes the bits of these headers from those that were read.
    pub(super) fn forget_own(&mut self) {
        let Some(own) = self.packet.layers.own.take() else { return };
        for bytes in [own.headers.bytes(), at::IPV6_SRC..at::TUN_DST] {
            self.wc.bytes_mut()[bytes.clone()].copy_from_slice(&own.seen.bytes()[bytes]);
        }
    }
}
