//! The room of one executor: its last report, less what was granted since.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use model::{ActionKey, ExecutorId, GrantNotice, Grants, PoolName, Resources, Room};
use policy::actions::{Ask, claims_max};
use tokio::time::Instant;

/// The known room of an executor.
#[derive(Debug, Default)]
pub(super) struct KnownRoom {
    report: Room,
    /// Grants that the report does not take into account, in the order of their numbers.
    later: VecDeque<LaterGrant>,
    /// Number of the last known grant.
    last: u64,
    /// Number of a grant of which only the number is known, and when it has arrived or is lost: until then, or until a
    /// report includes it, the room is unknown.
    unknown: Option<(u64, Instant)>,
}

#[derive(Debug)]
struct LaterGrant {
    notice: GrantNotice,
    /// When a report that does not include it proves that it did not arrive.
    arrives_before: Instant,
}

/// An executor with room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OpenExecutor {
    /// Its room after all known grants.
    pub(crate) ask: Ask,
    /// Pool of the executor.
    pub(crate) pool: PoolName,
    /// Number of the last known grant to it.
    pub(crate) after: u64,
    /// Maximum number of executions that it holds.
    pub(crate) claims_max: u32,
}

impl KnownRoom {
    /// Replaces the report by a newer one.
    pub(super) fn report(&mut self, report: &Room) {
        if report.number <= self.report.number {
            return;
        }
        self.report = report.clone();
        let (included, now) = (self.report.granted, Instant::now());
        self.last = self.last.max(included);
        self.later.retain(|later| later.notice.number > included && now < later.arrives_before);
        if self.unknown.is_some_and(|(number, until)| number <= included || until <= now) {
            self.unknown = None;
        }
    }

    /// Subtracts grants that were made after the report. Returns false if they are known.
    pub(super) fn granted(&mut self, notice: &GrantNotice) -> bool {
        if notice.number <= self.last {
            return false;
        }
        self.last = notice.number;
        let arrives_before = Instant::now() + Grants::IN_FLIGHT_MAX;
        self.later.push_back(LaterGrant { notice: notice.clone(), arrives_before });
        if self.unknown.is_some_and(|(number, _)| number <= notice.number) {
            self.unknown = None;
        }
        true
    }

    /// Notes that grants up to `number` were made.
    pub(super) fn outdated(&mut self, number: u64) {
        if number > self.last {
            self.unknown = self.unknown.max(Some((number, Instant::now() + Grants::IN_FLIGHT_MAX)));
        }
    }

    /// Notes that the executor holds as many executions as it may. Returns false if that is known.
    pub(super) fn refuse(&mut self) -> bool {
        let was_open = self.unknown.is_none();
        self.outdated(u64::MAX);
        was_open
    }

    /// Notes that messages may have been lost.
    pub(super) fn messages_lost(&mut self) {
        let now = Instant::now();
        self.later.iter_mut().for_each(|later| later.arrives_before = now);
        self.unknown = self.unknown.map(|(number, _)| (number, now));
    }

    /// Whether a later report than this one is known.
    pub(super) fn is_newer(&self, report: &Room) -> bool {
        self.report.number > report.number
    }

    pub(super) fn is_open(&self) -> bool {
        let (starts, ahead) = self.left();
        self.unknown.is_none() && (starts > 0 || ahead > 0)
    }

    /// Number of executions that can start now, and of further ones that it claims.
    fn left(&self) -> (u32, u32) {
        let (mut starts, mut ahead) = (u32::from(self.report.starts), u32::from(self.report.ahead));
        for LaterGrant { notice, .. } in &self.later {
            starts = starts.saturating_sub(notice.starts.into());
            ahead = ahead.saturating_sub(notice.ahead.into());
        }
        (starts, ahead)
    }

    /// Number of executions that it takes now.
    pub(super) fn count(&self) -> usize {
        let (starts, ahead) = self.left();
        usize::try_from(starts + ahead).unwrap_or(usize::MAX)
    }

    /// The room as the request of the executor for executions.
    pub(super) fn open(
        &self,
        executor: &ExecutorId,
        kind: usize,
        pool: PoolName,
        (capacity, slots): (&Resources, u16),
        images: &Arc<BTreeSet<ActionKey>>,
    ) -> OpenExecutor {
        let mut free = self.report.free.clone();
        self.later.iter().for_each(|later| free.take(&later.notice.size));
        let (starts, ahead) = self.left();
        // Executions of other bands leave as much free after any grant as before it; only if less is left, less is kept.
        let mut kept = self.report.kept.clone();
        kept.starts = kept.starts.min(u16::try_from(starts).unwrap_or(u16::MAX));
        let ask = Ask {
            executor: executor.clone(),
            kind,
            capacity: capacity.clone(),
            free,
            starts,
            kept,
            ahead,
            idle: self.report.idle && self.later.is_empty(),
            images: Arc::clone(images),
            fetches: self.report.fetches.clone(),
        };
        OpenExecutor { ask, pool, after: self.last, claims_max: claims_max(slots) }
    }
}

#[cfg(test)]
mod tests {
    use model::KeptRoom;

    use super::*;

    fn report(number: u64, granted: u64, starts: u16) -> Room {
        let free = Resources::new(u64::from(starts) * 1000, u64::from(starts) << 30);
        Room { number, granted, free, starts, idle: starts == 4, ..Room::default() }
    }

    fn notice(number: u64, starts: u16) -> GrantNotice {
        let size = Resources::new(u64::from(starts) * 1000, u64::from(starts) << 30);
        GrantNotice { executor: "x".parse().unwrap(), number, size, starts, ahead: 0 }
    }

    fn starts(room: &KnownRoom) -> (u32, u64) {
        let all = Resources::new(4000, 4 << 30);
        let open = room.open(&"x".parse().unwrap(), 0, "p".parse().unwrap(), (&all, 4), &Arc::default());
        assert_eq!(open.ask.free.cpu_millis, u64::from(open.ask.starts) * 1000);
        (open.ask.starts, open.after)
    }

    #[test]
    fn the_room_is_the_last_report_less_later_grants() {
        let mut room = KnownRoom::default();
        assert!(!room.is_open());
        room.report(&report(1, 0, 4));
        assert_eq!(starts(&room), (4, 0));
        assert!(room.granted(&notice(2, 2)));
        assert!(!room.granted(&notice(2, 2)), "a repeated notice counts once");
        assert_eq!(starts(&room), (2, 2));
        assert!(room.granted(&notice(3, 1)));
        room.report(&report(2, 2, 2));
        assert_eq!(starts(&room), (1, 3));
        room.report(&report(1, 0, 4));
        assert_eq!(starts(&room), (1, 3), "an older report is ignored");
        assert!(room.granted(&notice(4, 1)));
        assert!(!room.is_open());
    }

    #[test]
    fn an_unanswered_question_does_not_close_an_executor_for_ever() {
        let mut room = KnownRoom::default();
        room.report(&report(1, 0, 4));
        room.outdated(2);
        room.report(&report(2, 0, 4));
        assert!(!room.is_open());
        room.messages_lost();
        room.report(&report(3, 0, 4));
        assert!(room.is_open(), "the next grant is refused again, and asks again");
    }

    #[test]
    fn a_grant_that_did_not_arrive_takes_no_room() {
        let mut room = KnownRoom::default();
        room.report(&report(1, 0, 4));
        assert!(room.granted(&notice(2, 4)));
        room.report(&report(2, 0, 4));
        assert!(!room.is_open(), "it may be on its way");
        room.later[0].arrives_before = Instant::now();
        assert!(!room.is_open());
        room.report(&report(3, 0, 4));
        assert_eq!(starts(&room), (4, 2), "the index counts the lost grant");
        assert!(room.granted(&notice(3, 4)));
        room.messages_lost();
        room.report(&report(4, 0, 4));
        assert_eq!(starts(&room), (4, 3));
    }

    #[test]
    fn the_room_is_unknown_while_a_grant_of_another_scheduler_is() {
        let mut room = KnownRoom::default();
        room.report(&report(1, 0, 4));
        room.outdated(2);
        assert!(!room.is_open());
        room.report(&report(2, 1, 3));
        assert!(!room.is_open(), "the report was sent before grant 2 arrived");
        room.report(&report(3, 2, 2));
        assert_eq!((room.is_open(), starts(&room)), (true, (2, 2)));
        room.outdated(3);
        assert!(room.granted(&notice(3, 1)));
        assert_eq!((room.is_open(), starts(&room)), (true, (1, 3)));
        room.outdated(3);
        assert!(room.is_open(), "the grant is known");
    }

    /// What an executor with `free` free slots reports, of which it keeps `kept`, and its window admits `most`.
    fn keeping(number: u64, free: u16, kept: u16, most: u16) -> Room {
        let (starts, others) = (free.min(most), free.saturating_sub(kept).min(most));
        let kept = KeptRoom { starts: starts - others, resources: Resources::new(u64::from(kept) * 1000, 0) };
        let free = Resources::new(u64::from(free) * 1000, 0);
        Room { number, granted: number - 1, free, starts, kept, ..Room::default() }
    }

    /// Whether the room after a grant of `count` executions is what the executor then reports.
    fn assert_follows(free: u16, kept: u16, most: u16, count: u16) {
        let ask = |room: &KnownRoom| {
            let all = Resources::new(9000, 0);
            room.open(&"x".parse().unwrap(), 0, "p".parse().unwrap(), (&all, 9), &Arc::default()).ask
        };
        let mut known = KnownRoom::default();
        known.report(&keeping(1, free, kept, most));
        let size = Resources::new(u64::from(count) * 1000, 0);
        let executor = "x".parse().unwrap();
        known.granted(&GrantNotice { executor, number: 1, size, starts: count, ahead: 0 });
        let mut reported = KnownRoom::default();
        reported.report(&keeping(2, free - count, kept, most - count));
        assert_eq!(ask(&known), ask(&reported), "{count} of {free}, {kept} kept, at most {most}");
    }

    #[test]
    fn after_a_grant_the_room_is_what_the_executor_then_reports() {
        for (free, kept, most) in
            (0..7).flat_map(|a| (0..7).flat_map(move |b| (0..7).map(move |c| (a, b, c))))
        {
            (0..=free.min(most)).for_each(|count| assert_follows(free, kept, most, count));
        }
    }
}
