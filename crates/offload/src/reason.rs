//! Why a megaflow is in an adapter or not: one reason for each.

/// A reason.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// Its packets come marked: parse and lookup are skipped, the host executes its operations.
    Partial,
    /// The adapter forwards its packets; the host does not see them.
    Full,
    /// `other_config:hw-offload` is not true.
    Disabled,
    /// Its port's adapter has no rule table.
    PortType,
    /// Its packets are looked up a second time: they were recirculated, or came out of a tunnel.
    NotFirstPass,
    /// The megaflow matches on a field that no rule matches on; with the field's name.
    Match(String),
    /// A mark does not help with its operation: decapsulation has a fast path of its own.
    Action(String),
    /// The megaflow sends packets to a port that is not on the adapter on which they come in.
    OtherAdapter,
    /// The host limits what its port may receive, or what may be sent to its output port.
    Limited,
    /// The adapter takes one mask per packet type, and another one is in its table.
    MaskConflict,
    /// The table is full of flows that have about as many packets, or more.
    TableFull,
    /// The megaflow has too few packets to be worth a rule.
    NotHot,
    /// The megaflow's rule was requested, and the adapter has not answered yet.
    Pending,
    /// The megaflow was in the adapter lately, or was refused lately.
    CoolingDown,
    /// The adapter refused rules of its form; with the adapter's message.
    Refused(String),
    /// The adapter marked packets of other flows with its mark, or would forward packets of other
    /// flows.
    Wider,
    /// Marks of its port cost more than they save, as measured, and are ignored.
    NoGain,
    /// The adapter does not work, or its port restarts.
    PortDown,
}

/// Each reason's short name, and its meaning.
pub const REASONS: [(&str, &str); 18] = [
    ("offloaded-partially", "packets come marked; parse and lookup are skipped"),
    ("disabled", "other_config:hw-offload is not true"),
    ("port-type", "the port has no adapter with a rule table"),
    ("not-first-pass", "for packets that were recirculated or came out of a tunnel"),
    ("match", "looks at a field that rules cannot look at"),
    ("action", "does what marks do not help with"),
    ("mask-conflict", "the adapter takes one mask per packet type, and another one is used"),
    ("table-full", "the table is full of flows that are used as much"),
    ("not-hot", "too few packets to be worth a rule"),
    ("pending", "a rule was asked for, the adapter has not answered"),
    ("cooling-down", "was in the adapter lately, or refused: waits"),
    ("refused", "the adapter refuses rules of this form"),
    ("wider", "the adapter matches more than it is asked to"),
    ("port-down", "the adapter is gone, ill or restarting"),
    ("offloaded-fully", "the adapter forwards its packets"),
    ("other-adapter", "goes to a port that is not on the adapter where its packets come in"),
    ("limited", "ingress policing or QoS of its input or output port is the host's to keep"),
    ("no-gain", "marks of its port cost more than they save: ignored until the next trial"),
];

impl Reason {
    /// Its index in [`REASONS`].
    pub fn index(&self) -> usize {
        match self {
            Reason::Partial => 0,
            Reason::Disabled => 1,
            Reason::PortType => 2,
            Reason::NotFirstPass => 3,
            Reason::Match(_) => 4,
            Reason::Action(_) => 5,
            Reason::MaskConflict => 6,
            Reason::TableFull => 7,
            Reason::NotHot => 8,
            Reason::Pending => 9,
            Reason::CoolingDown => 10,
            Reason::Refused(_) => 11,
            Reason::Wider => 12,
            Reason::PortDown => 13,
            Reason::Full => 14,
            Reason::OtherAdapter => 15,
            Reason::Limited => 16,
            Reason::NoGain => 17,
        }
    }
}

/// The short name, a colon, and the meaning with its particulars.
impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (name, text) = REASONS[self.index()];
        write!(f, "{name}: {text}")?;
        match self {
            Reason::Match(what) | Reason::Action(what) | Reason::Refused(what) => {
                write!(f, " ({what})")
            }
            _ => Ok(()),
        }
    }
}
