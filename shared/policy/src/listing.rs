//! Joins the builds that the bus has with those of the archive, which is behind: by milliseconds, or by more while
//! its database is away.

use std::collections::HashMap;

use model::{BuildKey, BuildView, ListReply};

/// The builds of the bus that are newer than what the archive answered, newest first: `page` is its first page.
pub fn not_archived(live: &[BuildView], page: &ListReply) -> Vec<BuildView> {
    let oldest = page.builds.last().map_or(0, place);
    let known = by_key(&page.builds);
    let is_new = |view: &&BuildView| !known.contains_key(&view.record.build.key()) && place(view) > oldest;
    newest_first(live.iter().filter(is_new).cloned().collect())
}

/// The list of `newer` builds, at most `limit`, followed by `page`, the builds of the archive for the remaining places;
/// those that changed since in their state of `live`.
pub fn with_archived(newer: Vec<BuildView>, page: ListReply, live: &[BuildView], limit: usize) -> ListReply {
    let known = by_key(live);
    let current = |view: BuildView| {
        let of_bus = known.get(&view.record.build.key());
        of_bus.filter(|other| other.sequence > view.sequence).map_or(view, |other| (*other).clone())
    };
    let full = newer.len() >= limit;
    // The archive has no cursor for a build that it has not read yet.
    let truncated = newer.len() > limit || full && !page.builds.is_empty() || page.truncated;
    let older = page.builds.into_iter().map(current).filter(|_| !full);
    let builds = newer.into_iter().take(limit).chain(older).collect();
    ListReply { builds, truncated, next: page.next.filter(|_| !full) }
}

/// Number of builds to request first from each of so many groups for a list of `limit` of all of them.
pub fn first_of_each(groups: usize, limit: usize) -> usize {
    limit.div_ceil(groups.max(1)).saturating_mul(2).clamp(1, limit.max(1))
}

/// Indices of the groups that may have more builds on a list of `limit` of all groups than they answered, if each was
/// asked for `asked` builds.
pub fn to_ask_again(replies: &[ListReply], asked: usize, limit: usize) -> Vec<usize> {
    if asked >= limit {
        return Vec::new();
    }
    let mut places: Vec<u64> = replies.iter().flat_map(|reply| &reply.builds).map(place).collect();
    places.sort_unstable_by(|one, other| other.cmp(one));
    let last = limit.checked_sub(1).and_then(|at| places.get(at)).copied().unwrap_or(0);
    let is_cut = |reply: &ListReply| {
        reply.builds.len() >= asked
            && reply.builds.iter().map(place).min().is_some_and(|oldest| oldest >= last)
    };
    (0..).zip(replies).filter(|(_, reply)| is_cut(reply)).map(|(at, _)| at).collect()
}

/// One list of the builds of several groups, newest first, at most `limit`.
pub fn of_all_groups(replies: Vec<ListReply>, limit: usize) -> ListReply {
    let cut = replies.iter().any(|reply| reply.truncated);
    let mut builds = newest_first(replies.into_iter().flat_map(|reply| reply.builds).collect());
    let truncated = cut || builds.len() > limit;
    builds.truncate(limit);
    ListReply { builds, truncated, next: None }
}

fn newest_first(mut builds: Vec<BuildView>) -> Vec<BuildView> {
    builds.sort_by_key(|view| std::cmp::Reverse(place(view)));
    builds
}

fn by_key(builds: &[BuildView]) -> HashMap<BuildKey, &BuildView> {
    builds.iter().map(|view| (view.record.build.key(), view)).collect()
}

/// Position of the first event of a build, which orders lists.
fn place(view: &BuildView) -> u64 {
    view.record.queue.first_sequence.unwrap_or(view.sequence).0
}

#[cfg(test)]
mod tests {
    use model::{Accepted, BuildId, BuildRecord, BuildRequest, Millis, RequestLimits, Sequence, TimeLimits};
    use proptest::prelude::*;

    use super::*;

    /// A build whose first event is at `place`, read at `sequence`.
    fn view(place: u64, sequence: u64) -> BuildView {
        let times = TimeLimits { timeout_seconds: 1, queue_timeout_seconds: 1, lease_ttl_seconds: 1 };
        let limits = RequestLimits {
            times,
            times_max: times,
            attempts: 1,
            attempts_max: 1,
            ..RequestLimits::default()
        };
        let id: BuildId = format!("00000000-0000-4000-8000-{place:012x}").parse().unwrap();
        let request = BuildRequest { id: Some(id), command: vec!["true".into()], ..BuildRequest::default() };
        let Accepted { build, .. } =
            request.validate(&"g".parse().unwrap(), None, None, &limits, Millis(1)).unwrap();
        let mut record = BuildRecord::enqueued(build);
        record.queue.first_sequence = Some(Sequence(place));
        BuildView::new(Sequence(sequence), record)
    }

    /// A page of an archive that has the builds up to `last`.
    fn page(last: u64, before: u64, limit: usize) -> ListReply {
        let places: Vec<u64> = (1..before.min(last + 1)).rev().collect();
        let next = (places.len() > limit).then(|| places[limit - 1].to_string());
        let builds = places.into_iter().take(limit).map(|place| view(place, place)).collect();
        ListReply { builds, truncated: false, next }
    }

    /// The first page of a list of what the bus and the archive have.
    fn first(live: &[BuildView], archived: u64, limit: usize) -> ListReply {
        let found = page(archived, u64::MAX, limit);
        let newer = not_archived(live, &found);
        let left = limit.saturating_sub(newer.len());
        let rest = if left > 0 { page(archived, u64::MAX, left) } else { found };
        with_archived(newer, rest, live, limit)
    }

    proptest! {
        #[test]
        fn pages_have_every_build_once_newest_first(
            all in 1_u64..60, behind in 0_u64..20, kept in 0_u64..60, limit in 1_usize..40
        ) {
            let archived = all.saturating_sub(behind);
            // The bus has at least what the archive has not read yet; its builds have changed since.
            let oldest = all.saturating_sub(kept).min(archived) + 1;
            let live: Vec<_> = (oldest..=all).map(|place| view(place, 1000 + place)).collect();
            let mut reply = first(&live, archived, limit);
            let unread = usize::try_from(all - archived).unwrap();
            prop_assert_eq!(reply.truncated, unread > limit || (unread == limit && archived > 0));
            prop_assert!(reply.builds.iter().all(|view| place(view) < oldest || view.sequence.0 > 1000));
            let mut seen = Vec::new();
            loop {
                prop_assert!(reply.builds.len() <= limit);
                seen.extend(reply.builds.iter().map(place));
                let Some(next) = reply.next.take() else { break };
                reply = page(archived, next.parse().unwrap(), limit);
            }
            let expected: Vec<u64> = (1..=all).rev().collect();
            if unread < limit {
                prop_assert_eq!(seen, expected);
            } else {
                prop_assert_eq!(&seen[..], &expected[..limit.min(expected.len())]);
            }
        }
    }

    /// The newest `most` of the builds of a group, which are at `places`.
    fn newest(places: &[u64], most: usize) -> ListReply {
        let mut places = places.to_vec();
        places.sort_unstable_by(|one, other| other.cmp(one));
        let builds = places.into_iter().take(most).map(|place| view(place, place)).collect();
        ListReply { builds, truncated: false, next: None }
    }

    proptest! {
        #[test]
        fn few_builds_of_each_group_and_more_of_some_are_the_newest_of_all(
            owners in proptest::collection::vec(0_usize..6, 0..80), limit in 1_usize..30
        ) {
            let mut groups = vec![Vec::new(); 6];
            for (owner, place) in owners.iter().zip(1..) {
                groups[*owner].push(place);
            }
            let asked = first_of_each(groups.len(), limit);
            prop_assert!((1..=limit).contains(&asked));
            let mut replies: Vec<_> = groups.iter().map(|places| newest(places, asked)).collect();
            let again = to_ask_again(&replies, asked, limit);
            for at in &again {
                prop_assert!(groups[*at].len() >= asked, "{again:?}");
                replies[*at] = newest(&groups[*at], limit);
            }
            let all: Vec<_> = groups.iter().map(|places| newest(places, limit)).collect();
            let (found, wanted) = (of_all_groups(replies, limit), of_all_groups(all, limit));
            prop_assert_eq!(found.builds, wanted.builds);
            prop_assert_eq!(found.truncated, wanted.truncated);
        }
    }

    #[test]
    fn groups_whose_builds_are_older_are_not_asked_again() {
        let replies = [newest(&[1, 2, 3], 2), newest(&[4, 5, 6], 2), newest(&[7], 2)];
        assert_eq!(to_ask_again(&replies, 2, 3), [1]);
        assert_eq!(to_ask_again(&replies, 2, 10), [0, 1]);
        assert_eq!(first_of_each(20, 50), 6);
    }

    #[test]
    fn a_list_of_several_groups_says_that_it_was_cut() {
        let of = |places: [u64; 2]| ListReply {
            builds: places.map(|place| view(place, place)).into(),
            truncated: false,
            next: None,
        };
        let both = |limit| of_all_groups(vec![of([4, 1]), of([3, 2])], limit);
        let places: Vec<u64> = both(4).builds.iter().map(place).collect();
        assert_eq!((places, both(4).truncated, both(3).truncated), (vec![4, 3, 2, 1], false, true));
        let cut = ListReply { truncated: true, ..of([4, 1]) };
        assert!(of_all_groups(vec![cut, of([3, 2])], 4).truncated);
    }
}
