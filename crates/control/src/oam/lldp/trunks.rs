//! VLANs that Auto Attach adds to the trunks of ports, or takes from them: as ovs-vswitchd does, in
//! the database.

use std::collections::BTreeMap;

/// By interface, which is its port's name: VLANs, and whether each is being added (false: removed).
#[derive(Default)]
pub struct Trunks(BTreeMap<String, Vec<(u16, bool)>>);

/// A port's columns `trunks` and `vlan_mode`; None: the mode stays.
pub type Columns = (Vec<u16>, Option<&'static str>);

impl Trunks {
    /// An interface assigned the VLANs of `old` to services, and now those of `new`.
    pub fn assign(&mut self, iface: &str, old: &BTreeMap<u32, u16>, new: &BTreeMap<u32, u16>) {
        let gone = old.iter().filter(|(isid, _)| !new.contains_key(isid));
        let come = new.iter().filter(|(isid, _)| !old.contains_key(isid));
        let gone = gone.map(|(_, vlan)| (*vlan, false));
        let changes: Vec<_> = gone.chain(come.map(|(_, vlan)| (*vlan, true))).collect();
        if !changes.is_empty() {
            self.0.entry(iface.into()).or_default().extend(changes);
        }
    }

    /// True if there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes what is to be written of a port with these trunks.
    pub fn take(&mut self, port: &str, trunks: &[u16]) -> Option<Columns> {
        let mut all = trunks.to_vec();
        for (vlan, comes) in self.0.remove(port)? {
            let known = all.contains(&vlan);
            all.retain(|v| comes || *v != vlan);
            if comes && !known {
                all.push(vlan);
            }
        }
        all.sort_unstable();
        // Without trunks a trunk port carries all VLANs.
        let mode = match all.len() {
            0 => Some("access"),
            1 => Some("trunk"),
            _ => None,
        };
        (all != trunks).then_some((all, mode))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trunks_follow_what_is_assigned() {
        let all = |pairs: &[(u32, u16)]| pairs.iter().copied().collect::<BTreeMap<_, _>>();
        let mut trunks = Trunks::default();
        trunks.assign("p1", &all(&[]), &all(&[(1, 10), (2, 20)]));
        assert_eq!(trunks.take("p2", &[]), None);
        assert_eq!(trunks.take("p1", &[]), Some((vec![10, 20], None)));
        assert_eq!(trunks.take("p1", &[10, 20]), None, "once");
        trunks.assign("p1", &all(&[(1, 10), (2, 20)]), &all(&[(2, 20)]));
        assert_eq!(trunks.take("p1", &[10, 20]), Some((vec![20], Some("trunk"))));
        trunks.assign("p1", &all(&[(2, 20)]), &all(&[]));
        assert_eq!(trunks.take("p1", &[20]), Some((vec![], Some("access"))));
        trunks.assign("p1", &all(&[]), &all(&[(3, 30)]));
        assert_eq!(trunks.take("p1", &[30]), None, "it is there");
        assert!(trunks.is_empty());
    }
}
