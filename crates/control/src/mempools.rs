//! `other_config:shared-mempool-config`: pools of packets by MTU and NUMA node, as users wish them.
//! One pool serves all ports here, so that the wishes are read and logged as by ovs-vswitchd, and
//! the list of settings says that they have no effect.

use crate::vlog;

const MODULE: &str = "netdev_dpdk";

/// One wished pool: its MTU, and its node if not all.
type Wish = (u32, Option<u32>);

/// Logs what is wished, or what is wrong with it.
pub fn log(text: &str) {
    match parse(text) {
        Ok(all) => all.iter().for_each(|(mtu, node)| {
            let node = node.map_or("ALL".into(), |node| node.to_string());
            vlog::info!(MODULE, "User configured shared mempool set for: MTU {mtu}, NUMA {node}.");
        }),
        Err(what) => {
            vlog::warn!(MODULE, "Invalid user configured shared mempool {what}.");
            vlog::warn!(MODULE, "User configured shared mempools will not be used.");
        }
    }
}

/// `MTU[:NODE],...`; the error is the part that is wrong. What is no number stands for all nodes.
fn parse(text: &str) -> Result<Vec<Wish>, &'static str> {
    let words = text.split([',', ' ', '\t', '\n']).filter(|word| !word.is_empty());
    let wish = |word: &str| {
        let (mtu, node) = word.split_once([':', '=']).unwrap_or((word, ""));
        let mtu = mtu.parse().map_err(|_| "MTU")?;
        match node.parse::<i32>() {
            Ok(node) => Ok((mtu, Some(u32::try_from(node).map_err(|_| "NUMA")?))),
            Err(_) => Ok((mtu, None)),
        }
    };
    words.map(wish).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_are_read_as_ovs_vswitchd_reads_them() {
        assert_eq!(
            parse("8000,6000:1, 1500"),
            Ok(vec![(8000, None), (6000, Some(1)), (1500, None)])
        );
        assert_eq!(parse("1500:x"), Ok(vec![(1500, None)]));
        assert_eq!(
            (parse("x"), parse("-1"), parse("1500:-1")),
            (Err("MTU"), Err("MTU"), Err("NUMA"))
        );
        assert_eq!(parse(""), Ok(vec![]));
    }
}
