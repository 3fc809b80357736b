//! The state tree as the daemon gives it, as far as views need it (crate `control`, appctl's
//! `weft/state`). What an older or newer daemon has not is zero or empty.

use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// Texts by name.
pub type Texts = BTreeMap<String, String>;
/// Numbers by name.
pub type Numbers = BTreeMap<String, u64>;

/// One look at the tree.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Tree {
    pub switch: Daemon,
    pub cores: BTreeMap<String, Core>,
    pub caches: BTreeMap<String, Cache>,
    pub ports: BTreeMap<String, Port>,
    pub bonds: BTreeMap<String, Bond>,
    pub guests: BTreeMap<String, Guest>,
    pub drops: BTreeMap<String, Drop>,
    pub memory: Memory,
    pub megaflows: Megaflows,
}

/// The daemon as a whole; `cycles` is the clock.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Daemon {
    pub version: String,
    pub pid: u64,
    pub cycles: u64,
    pub cycles_per_second: u64,
    pub other_config: Texts,
    pub packets: Numbers,
}

/// A worker; `polls`: a PMD thread.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Core {
    pub polls: bool,
    pub numa: u64,
    pub cycles: Numbers,
    pub packets: Numbers,
    pub bursts: Numbers,
    pub lookups: Numbers,
    pub decisions: Numbers,
    pub queues: Vec<QueueState>,
    /// Not of the tree: nanoseconds that it waited for its core, where that is known
    /// ([`super::waited_ns`]).
    #[serde(skip)]
    pub waited_ns: Option<u64>,
}

/// A receive queue.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct QueueState {
    pub port: String,
    pub queue: u64,
    pub pinned: bool,
    pub cycles: u64,
    pub packets: u64,
}

/// A worker's caches.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Cache {
    pub megaflows: u64,
    pub masks: u64,
    pub signature_cache: bool,
}

/// An interface; `traffic` is absent for patch and tunnel ports.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Port {
    pub bridge: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub ofport: Option<u64>,
    pub error: Option<String>,
    pub options: Texts,
    pub other_config: Texts,
    pub status: Texts,
    pub counters: Numbers,
    pub traffic: Option<Numbers>,
    pub drops: Numbers,
    pub link: Link,
    pub mac: Option<String>,
    pub mtu: Option<u64>,
}

/// A port's link.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Link {
    pub up: bool,
    pub admin_up: bool,
}

/// A port of several interfaces, or one that speaks LACP.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Bond {
    pub mode: Option<String>,
    pub members: BTreeMap<String, Member>,
}

/// An interface of a bond.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Member {
    pub enabled: bool,
}

/// The guest behind a vhost-user port.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Guest {
    pub connected: bool,
    pub mode: Option<String>,
    pub socket: Option<String>,
    pub features: Option<Vec<String>>,
    pub ring_sizes: Vec<u64>,
    pub ring_errors: Numbers,
    pub violations: Numbers,
}

/// A reason for drops.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Drop {
    pub packets: u64,
    pub help: String,
}

/// Accounts of memory.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Memory {
    pub packet_pools: Vec<Numbers>,
    pub packets_in_use: u64,
    pub connections_bytes: u64,
    pub flows: u64,
    pub megaflows: u64,
    pub resident_bytes: Option<u64>,
}

/// Megaflows.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Megaflows {
    pub all: u64,
    pub hottest: Vec<Megaflow>,
    pub error: Option<String>,
}

/// A megaflow.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Megaflow {
    pub ufid: String,
    pub core: Option<Value>,
    pub in_port: Option<String>,
    #[serde(rename = "match")]
    pub matching: String,
    pub actions: String,
    pub packets: u64,
    pub bytes: u64,
}
