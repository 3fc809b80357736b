//! What connection tracking is asked to do with a packet (ovs-actions(7), `ct`).

use std::fmt::{self, Display, Formatter};
use std::net::IpAddr;

/// Send the packet through connection tracking. It leaves with `ct_state` and the connection's
/// zone, mark, label and original tuple in its key, for a lookup that an [`crate::Op::Recirc`] asks
/// for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ct {
    /// Connections of different zones do not know each other.
    pub zone: u16,
    /// A connection that is new is kept.
    pub commit: bool,
    /// Only with `commit`: a connection that the packet answers ends, and the packet begins
    /// another.
    pub force: bool,
    /// Value and mask of the connection's mark: masked bits become those of the value. Takes effect
    /// with `commit`.
    pub mark: (u32, u32),
    /// Value and mask of the bits of the label to set.
    pub label: (u128, u128),
    /// Which protocol's control connection the packet belongs to.
    pub alg: Option<Alg>,
    /// The timeout policy that a connection is kept under; None: the default.
    pub timeout: Option<u32>,
    /// Translate addresses.
    pub nat: Option<Nat>,
}

/// A protocol whose control connections announce others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Alg {
    Ftp,
    Tftp,
}

/// How addresses are translated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Nat {
    /// None: as the packet's connection says, whatever that is.
    pub side: Option<NatSide>,
    /// First and last address, of one family; None: the packet's own, except that ports are changed
    /// where they clash.
    pub addresses: Option<(IpAddr, IpAddr)>,
    /// First and last port, 1 or more; None: the packet's own where that is free.
    pub ports: Option<(u16, u16)>,
    /// A station keeps its address from one connection to the next.
    pub persistent: bool,
    /// Ports are chosen by a hash of the packet's addresses and ports.
    pub hash: bool,
    /// Ports are chosen at random.
    pub random: bool,
}

/// Which address of a connection's first packet a translation is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum NatSide {
    Source,
    Destination,
}

impl Display for Ct {
    /// As OVS prints datapath actions: `ct(commit,zone=5,nat(src=10.0.0.1))`.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        match (self.commit, self.force) {
            (true, true) => parts.push("force_commit".into()),
            (true, false) => parts.push("commit".into()),
            _ => {}
        }
        if self.zone != 0 {
            parts.push(format!("zone={}", self.zone));
        }
        if self.mark.1 != 0 {
            let (value, mask) = self.mark;
            parts.push(format!("mark={}/{mask:#x}", hex(value.into())));
        }
        match self.label {
            (_, 0) => {}
            (value, u128::MAX) => parts.push(format!("label={}", hex(value))),
            (value, mask) => parts.push(format!("label={}/{mask:#x}", hex(value))),
        }
        match self.alg {
            Some(Alg::Ftp) => parts.push("helper=ftp".into()),
            Some(Alg::Tftp) => parts.push("helper=tftp".into()),
            None => {}
        }
        parts.extend(self.timeout.map(|id| format!("timeout={id}")));
        parts.extend(self.nat.as_ref().map(Nat::to_string));
        match parts.is_empty() {
            true => f.write_str("ct"),
            false => write!(f, "ct({})", parts.join(",")),
        }
    }
}

/// C's `%#x`.
pub(crate) fn hex(v: u128) -> String {
    if v == 0 { "0".into() } else { format!("{v:#x}") }
}

impl Display for Nat {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Some(side) = self.side else { return f.write_str("nat") };
        f.write_str(match side {
            NatSide::Source => "nat(src",
            NatSide::Destination => "nat(dst",
        })?;
        if let Some((first, last)) = self.addresses {
            let brackets = first.is_ipv6() && self.ports.is_some();
            f.write_str(if brackets { "=[" } else { "=" })?;
            write!(f, "{first}")?;
            if last != first {
                write!(f, "-{last}")?;
            }
            f.write_str(if brackets { "]" } else { "" })?;
        }
        if let Some((first, last)) = self.ports {
            write!(f, ":{first}")?;
            if last != first {
                write!(f, "-{last}")?;
            }
        }
        let flags = [(self.persistent, "persistent"), (self.hash, "hash"), (self.random, "random")];
        flags.iter().filter(|(on, _)| *on).try_for_each(|(_, name)| write!(f, ",{name}"))?;
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_ovs_prints_it() {
        assert_eq!(Ct::default().to_string(), "ct");
        let nat = Nat {
            side: Some(NatSide::Source),
            addresses: Some(([10, 9, 9, 1].into(), [10, 9, 9, 2].into())),
            ports: Some((2000, 3000)),
            ..Nat::default()
        };
        let ct = Ct {
            zone: 5,
            commit: true,
            mark: (7, 0xffff_ffff),
            label: (0x12, 0xff),
            alg: Some(Alg::Ftp),
            nat: Some(nat),
            ..Ct::default()
        };
        let text = "ct(commit,zone=5,mark=0x7/0xffffffff,label=0x12/0xff,helper=ftp,\
                    nat(src=10.9.9.1-10.9.9.2:2000-3000))";
        assert_eq!(ct.to_string(), text);
        let bare = Ct { force: true, commit: true, nat: Some(Nat::default()), ..Ct::default() };
        assert_eq!(bare.to_string(), "ct(force_commit,nat)");
    }
}
