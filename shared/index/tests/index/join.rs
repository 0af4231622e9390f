//! Joining executions on a real Redis.

use std::time::Duration;

use farm::Servers;
use index::{
    Applied, Index,
    actions::{Actions, Change, Event, Joined, MergeKey, Move, Open},
};
use model::{
    ActionKeys, Attempt, ClientTool, Demand, DigestFunction, Execution, ExecutionId, ExecutionKey, Millis,
    Needs, Sequence,
};

const NOW: Millis = Millis(1_000_000);
const LONG: Duration = Duration::from_secs(60);

struct Test {
    servers: Servers,
    actions: Actions,
    last: u64,
}

fn execution(group: &str) -> Execution {
    Execution {
        id: ExecutionId::generate(),
        group: group.parse().unwrap(),
        instance: "main".into(),
        action: DigestFunction::Sha256.digest(b"action"),
        band: model::Priority::Interactive,
        priority: 0,
        requirements: model::Requirements::default(),
        timeout_ms: 1,
        image: None,
        do_not_cache: false,
        zone: None,
        caller: String::new(),
        accepted_at_ms: NOW,
        expires_at_ms: NOW,
        max_attempts: Attempt(1),
        traceparent: None,
        client: ClientTool::default(),
        build: None,
        needs: Needs::default(),
        keys: ActionKeys::default(),
    }
}

impl Test {
    async fn start() -> Self {
        let servers = Servers::prepare(0);
        servers.start_redis().await;
        // What the index needs is what users of a farm with access control have.
        servers.limit_redis(&index::acl_rules());
        let actions = Index::connect(&servers.redis_url(), true).await.unwrap().actions();
        let test = Self { servers, actions, last: 0 };
        test.rebuild(&[]).await;
        test
    }

    async fn rebuild(&self, events: &[&Event]) {
        let token = self.actions.begin_rebuild().await.unwrap().unwrap();
        self.actions.load(&token, events, NOW).await.unwrap();
        assert!(self.actions.finish_rebuild(&token, Sequence(self.last), &[], NOW, NOW).await.unwrap());
    }

    fn event(&mut self, execution: &Execution, change: Change) -> Event {
        self.last += 1;
        Event { key: execution.key(), sequence: Sequence(self.last), change }
    }

    fn goes_on(&mut self, execution: &Execution, step: Move) -> Event {
        let open = Open {
            until: NOW.after(LONG),
            demand: Demand::default(),
            cost: 1000,
            place: policy::actions::Place::Fixed(0),
            merge: MergeKey::of(execution),
            record: b"record".to_vec(),
        };
        self.event(execution, Change::Open(step, Box::new(open)))
    }

    fn ends(&mut self, execution: &Execution) -> Event {
        let merge = MergeKey::of(execution);
        self.event(execution, Change::Finished { executor: None, merge, beyond: None })
    }

    async fn apply(&self, event: &Event) {
        let from = Sequence(event.sequence.0 - 1);
        let applied = self.actions.apply(from, event.sequence, &[event], &[], NOW).await.unwrap();
        assert!(matches!(applied, Applied::Done(_)), "{applied:?}");
    }

    async fn join_within(&self, candidate: &Execution, over: &[ExecutionKey], ttl: Duration) -> Joined {
        let what = MergeKey::of(candidate).unwrap();
        self.actions.join(&what, &candidate.key(), over, ttl).await.unwrap()
    }

    async fn join(&self, candidate: &Execution) -> Joined {
        self.join_within(candidate, &[], LONG).await
    }
}

#[tokio::test]
async fn of_many_at_once_one_is_the_first_and_the_others_join_it() {
    let test = Test::start().await;
    let mut joins = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let actions = test.actions.clone();
        joins.spawn(async move {
            let candidate = execution("g");
            let what = MergeKey::of(&candidate).unwrap();
            (candidate.key(), actions.join(&what, &candidate.key(), &[], LONG).await.unwrap())
        });
    }
    let joined = joins.join_all().await;
    let first: Vec<_> = joined.iter().filter(|(_, joined)| *joined == Joined::First).collect();
    let [(first, _)] = first.as_slice() else { panic!("{} are the first", first.len()) };
    assert_eq!(joined.iter().filter(|(_, joined)| *joined == Joined::Other(first.clone())).count(), 99);
}

#[tokio::test]
async fn groups_actions_and_instances_keep_to_themselves() {
    let test = Test::start().await;
    let first = execution("g");
    assert_eq!(test.join(&first).await, Joined::First);
    let digest = DigestFunction::Blake3.digest(b"action");
    let others = [
        execution("h"),
        Execution { action: digest, ..execution("g") },
        Execution { instance: String::new(), ..execution("g") },
    ];
    for other in others {
        assert_eq!(test.join(&other).await, Joined::First, "{other:?}");
    }
    assert_eq!(MergeKey::of(&Execution { do_not_cache: true, ..execution("g") }), None);
    assert_eq!(test.join(&execution("g")).await, Joined::Other(first.key()));
}

#[tokio::test]
async fn what_can_be_joined_lives_as_long_as_the_execution() {
    let mut test = Test::start().await;
    let first = execution("g");
    let short = Duration::from_millis(50);
    assert_eq!(test.join_within(&first, &[], short).await, Joined::First);
    let accepted = test.goes_on(&first, Move::Waits);
    test.apply(&accepted).await;
    // Longer than the time to live of a pending record.
    tokio::time::sleep(2 * short).await;
    assert_eq!(test.join(&execution("g")).await, Joined::Other(first.key()));
    for step in [Move::Stays, Move::Hedged, Move::Waits] {
        let event = test.goes_on(&first, step);
        test.apply(&event).await;
        assert_eq!(test.join(&execution("g")).await, Joined::Other(first.key()));
    }
    // A rebuilt index knows it too.
    test.servers.flush_redis();
    test.rebuild(&[&accepted]).await;
    assert_eq!(test.join(&execution("g")).await, Joined::Other(first.key()));
    let end = test.ends(&first);
    test.apply(&end).await;
    assert_eq!(test.join(&execution("g")).await, Joined::First);
}

#[tokio::test]
async fn what_was_never_written_is_forgotten() {
    let test = Test::start().await;
    let first = execution("g");
    let short = Duration::from_millis(50);
    assert_eq!(test.join_within(&first, &[], short).await, Joined::First);
    assert_eq!(test.join(&execution("g")).await, Joined::Other(first.key()));
    tokio::time::sleep(2 * short).await;
    assert_eq!(test.join(&execution("g")).await, Joined::First);
}

#[tokio::test]
async fn what_has_ended_is_not_joined_though_the_index_is_behind() {
    let mut test = Test::start().await;
    let first = execution("g");
    assert_eq!(test.join(&first).await, Joined::First);
    // Known only from its pending record.
    let (second, third) = (execution("g"), execution("g"));
    assert_eq!(test.join_within(&second, &[first.key()], LONG).await, Joined::First);
    assert_eq!(test.join_within(&third, &[first.key()], LONG).await, Joined::Other(second.key()));
    // And after it is projected, while its end is not.
    let accepted = test.goes_on(&first, Move::Waits);
    test.apply(&accepted).await;
    assert_eq!(test.join(&third).await, Joined::Other(first.key()));
    assert_eq!(test.join_within(&third, &[first.key()], LONG).await, Joined::Other(second.key()));
    // Not even when both have ended.
    let fourth = execution("g");
    let both = [first.key(), second.key()];
    assert_eq!(test.join_within(&fourth, &both, LONG).await, Joined::First);
    assert_eq!(test.join_within(&third, &both, LONG).await, Joined::Other(fourth.key()));
    // The end of one execution does not affect the other.
    let end = test.ends(&first);
    test.apply(&end).await;
    assert_eq!(test.join(&third).await, Joined::Other(fourth.key()));
}
