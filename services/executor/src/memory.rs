//! The memory limit of an action.

use model::Claimed;

/// Memory limit of an action in bytes, where control groups are available. An action whose client asked for
/// memory, or that ran out of memory before, gets the larger of that and its size: an action that is packed by
/// the usage of similar ones must not be killed for using what it asked for. All others get what the settings
/// allow (`most`; `None` means no limit).
pub(crate) fn limit(claimed: &Claimed, most: Option<u64>) -> Option<u64> {
    let record = &claimed.record;
    let asked = record.execution.needs.memory_bytes.max(record.so_far.memory_bytes);
    let given = asked.map(|asked| asked.max(claimed.size.memory_bytes));
    given.into_iter().chain(most).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn an_action_is_limited_to_what_it_asked_for_or_was_given_more() {
        let mut claimed = testing::claimed();
        claimed.size.memory_bytes = 100;
        assert_eq!(limit(&claimed, None), None);
        assert_eq!(limit(&claimed, Some(1000)), Some(1000));
        // Its size comes from the usage of similar actions.
        claimed.record.execution.needs.memory_bytes = Some(300);
        assert_eq!(limit(&claimed, None), Some(300));
        claimed.record.so_far.memory_bytes = Some(600);
        assert_eq!((limit(&claimed, None), limit(&claimed, Some(500))), (Some(600), Some(500)));
        claimed.size.memory_bytes = 800;
        assert_eq!(limit(&claimed, None), Some(800));
    }
}
