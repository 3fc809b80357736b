//! What is kept for all OpenFlow connections together: the one that has too much ends.

use super::State;
use crate::of::ConnId;
use crate::of::account::{ALL_CONNECTIONS_BYTES_MAX, CONNECTION_BYTES_MAX};
use crate::vlog;

/// The connection that has to go, if one has, of those with their bytes; and why.
fn overdrawn(accounts: &[(usize, ConnId)]) -> Option<(usize, ConnId, &'static str)> {
    let total: usize = accounts.iter().map(|(held, _)| held).sum();
    let (held, id) = *accounts.iter().max()?;
    if held > CONNECTION_BYTES_MAX {
        return Some((held, id, "more than one connection may have"));
    }
    (total > ALL_CONNECTIONS_BYTES_MAX).then_some((
        held,
        id,
        "the most of all connections, which have too much together",
    ))
}

impl State {
    /// Ends connections for which more is kept than may be; while it is too much for all together,
    /// the one with most.
    pub fn settle_accounts(&mut self) {
        loop {
            let accounts: Vec<_> = self.conns.iter().map(|(id, c)| (c.held(), *id)).collect();
            let Some((held, id, why)) = overdrawn(&accounts) else { return };
            let (name, waiting) = (self.conn_name(id), self.conns[&id].backlog.bytes());
            vlog::warn!(
                "connmgr",
                "{name}: {held} bytes are kept for it, of which {waiting} wait to be read by it: {why}, disconnecting"
            );
            self.of.counts.overdrawn += 1;
            self.remove_conn(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_too_much_goes_and_of_too_many_who_has_most() {
        let share = ALL_CONNECTIONS_BYTES_MAX / 8;
        let fair: Vec<_> = (1..=8).map(|id| (share, id)).collect();
        assert_eq!(overdrawn(&fair), None);
        assert_eq!(overdrawn(&[]), None);
        let one = [(10, 1), (CONNECTION_BYTES_MAX + 1, 2), (20, 3)];
        assert_eq!(overdrawn(&one).map(|(_, id, _)| id), Some(2));
        let mut many = fair;
        many[4].0 += 1;
        assert_eq!(overdrawn(&many).map(|(_, id, _)| id), Some(5));
    }
}
