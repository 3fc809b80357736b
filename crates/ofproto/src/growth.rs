//! Growth of tables that a turn of the control thread has to pay for: none moves very many entries,
//! however large a table may become.

use std::collections::HashMap;
use std::hash::Hash;

/// Entries from which on a table grows to all that it may have, at once: so no growth moves twice
/// as many. Up to here memory follows the number of entries.
pub(crate) const GROWN_ENTRIES: usize = 32_768;

/// Makes room for one more of at most `max` entries.
pub(crate) fn make_room<K: Eq + Hash, V>(map: &mut HashMap<K, V>, max: usize) {
    let n = map.len();
    if n == map.capacity() && n >= GROWN_ENTRIES {
        map.reserve(max.saturating_sub(n).max(n));
    }
}
