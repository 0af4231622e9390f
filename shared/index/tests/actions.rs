//! The index of actions against a real Redis.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]

use std::time::Duration;

use farm::Servers;
use index::{
    Index,
    actions::{Actions, Answer, Applied, Astray, Change, Committed, Event, Heads, Heard, Pick, Verdict},
};
use model::{
    ExecutionId, ExecutionKey, ExecutorHeartbeat, ExecutorId, ExecutorStatus, Millis, PoolName, Sequence,
};

const GRACE: Duration = Duration::from_millis(100);
const NOW: Millis = Millis(1_000_000);
const LATER: Millis = Millis(2_000_000);

struct Test {
    servers: Servers,
    actions: Actions,
    last: u64,
}

fn key(group: &str) -> ExecutionKey {
    ExecutionKey { group: group.parse().unwrap(), id: ExecutionId::generate() }
}

fn id(text: &str) -> ExecutorId {
    text.parse().unwrap()
}

fn pool() -> PoolName {
    "default".parse().unwrap()
}

fn heartbeat(executor: &str, slots: u16, running: &[ExecutionKey]) -> ExecutorHeartbeat {
    ExecutorHeartbeat {
        executor: id(executor),
        pool: pool(),
        host: "machine".into(),
        pid: 1,
        started_at_ms: NOW,
        status: ExecutorStatus::Ready,
        slots,
        running: running.to_vec(),
        ttl_ms: 900_000,
    }
}

fn answer(committed: &Committed, verdict: Verdict) -> Answer {
    Answer { pick: committed.pick.clone(), sequence: committed.sequence, verdict }
}

fn taken(committed: &Committed) -> Answer {
    answer(committed, Verdict::Taken)
}

impl Test {
    /// A ready, empty index.
    async fn start() -> Self {
        let servers = Servers::prepare(0);
        servers.start_redis().await;
        let actions = Index::connect(&servers.redis_url(), true).await.unwrap().actions();
        let test = Self { servers, actions, last: 0 };
        test.rebuild(&[], &[]).await;
        test
    }

    async fn rebuild(&self, events: &[Event], awaited: &[ExecutorId]) {
        let token = self.actions.begin_rebuild().await.unwrap().unwrap();
        assert_eq!(self.actions.load(&token, events).await.unwrap(), Applied::Done(Vec::new()));
        let (hold, guard) = (NOW.after(Duration::from_millis(500)), NOW.after(Duration::from_secs(15)));
        let done = self.actions.finish_rebuild(&token, Sequence(self.last), awaited, hold, guard).await;
        assert!(done.unwrap());
    }

    fn waits(&mut self, key: &ExecutionKey, priority: i32) -> Event {
        self.last += 1;
        let sequence = Sequence(self.last);
        let change = Change::Waits {
            pool: pool(),
            priority,
            place: sequence,
            until: LATER,
            record: format!("record {key}").into_bytes(),
        };
        Event { key: key.clone(), sequence, change }
    }

    fn finished(&mut self, key: &ExecutionKey, executor: Option<&str>) -> Event {
        self.last += 1;
        let change = Change::Finished { executor: executor.map(id) };
        Event { key: key.clone(), sequence: Sequence(self.last), change }
    }

    async fn apply(&self, events: &[Event]) -> Vec<Astray> {
        let from = Sequence(events.first().unwrap().sequence.0 - 1);
        match self.actions.apply(from, Sequence(self.last), events).await.unwrap() {
            Applied::Done(astray) => astray,
            other @ (Applied::Gap(_) | Applied::Empty | Applied::Rebuilding | Applied::Lost) => {
                panic!("{other:?}")
            }
        }
    }

    /// Accepts so many executions of equal priority.
    async fn accept(&mut self, count: usize) -> Vec<ExecutionKey> {
        let keys: Vec<ExecutionKey> = (0..count).map(|_| key("g")).collect();
        let events: Vec<Event> = keys.iter().map(|key| self.waits(key, 0)).collect();
        self.apply(&events).await;
        keys
    }

    async fn heads(&self, now: Millis, answers: &[Answer]) -> Heads {
        self.actions.heads(now, 100, GRACE, answers).await.unwrap()
    }

    async fn announce(&self, heartbeat: &ExecutorHeartbeat) -> Heard {
        self.actions.announce(heartbeat, b"heartbeat", NOW, GRACE).await.unwrap()
    }

    /// Gives the first waiting execution to the first free executor.
    async fn commit_one(&self) -> Committed {
        let heads = self.heads(NOW, &[]).await;
        let head = heads.pools.first().expect("something waits and someone is free");
        let pick = Pick { key: head.waiting[0].clone(), executor: head.free[0].0.clone() };
        self.actions.commit(vec![pick], NOW, NOW.after(GRACE)).await.unwrap().remove(0)
    }

    /// How many wait and run.
    async fn counts(&self) -> (u64, u64) {
        let queue = self.actions.queue(&pool(), None, NOW).await.unwrap();
        (queue.waiting, queue.running)
    }
}

#[tokio::test]
async fn executions_are_handed_out_by_priority_then_age_with_their_record() {
    let mut test = Test::start().await;
    let (old, young, urgent) = (key("a"), key("b"), key("c"));
    let events = [test.waits(&old, 0), test.waits(&young, 0), test.waits(&urgent, -1)];
    test.apply(&events).await;
    assert!(test.heads(NOW, &[]).await.pools.is_empty(), "nobody is free");
    assert!(test.announce(&heartbeat("x", 2, &[])).await.news);
    let heads = test.heads(NOW, &[]).await;
    assert_eq!((heads.waiting, heads.claimed, heads.next_overdue), (3, 0, Some(LATER)));
    assert_eq!(heads.pools[0].waiting, [urgent.clone(), old.clone()]);
    assert_eq!(heads.pools[0].free, [(id("x"), 2)]);
    let queue = test.actions.queue(&pool(), Some(&young), NOW).await.unwrap();
    assert_eq!((queue.executors, queue.place, queue.executor), (1, Some(2), None));
    let committed = test.commit_one().await;
    assert_eq!((committed.pick.key, committed.sequence), (urgent.clone(), Sequence(3)));
    assert_eq!(committed.record, format!("record {urgent}"));
    assert_eq!(test.counts().await, (2, 1));
    let queue = test.actions.queue(&pool(), Some(&urgent), NOW).await.unwrap();
    assert_eq!((queue.place, queue.executor), (None, Some(id("x"))));
}

#[tokio::test]
async fn two_schedulers_never_give_one_execution_or_one_slot_twice() {
    let mut test = Test::start().await;
    let keys = test.accept(3).await;
    test.announce(&heartbeat("x", 1, &[])).await;
    test.announce(&heartbeat("y", 1, &[])).await;
    let pick = |key: &ExecutionKey, executor: &str| Pick { key: key.clone(), executor: id(executor) };
    let first = test.actions.commit(vec![pick(&keys[0], "x")], NOW, LATER).await.unwrap();
    assert_eq!(first.len(), 1);
    // The same execution, then a full executor, behind which nothing of the pool overtakes.
    let picks = vec![pick(&keys[0], "y"), pick(&keys[1], "x"), pick(&keys[2], "y")];
    assert_eq!(test.actions.commit(picks, NOW, LATER).await.unwrap(), []);
    let picks = vec![pick(&keys[1], "y"), pick(&keys[2], "y")];
    assert_eq!(test.actions.commit(picks, NOW, LATER).await.unwrap().len(), 1);
    assert_eq!(test.counts().await, (1, 2));
}

#[tokio::test]
async fn an_end_frees_the_slot_and_tells_whom_it_passed_by() {
    let mut test = Test::start().await;
    test.accept(2).await;
    test.announce(&heartbeat("x", 2, &[])).await;
    let (one, two) = (test.commit_one().await, test.commit_one().await);
    assert!(test.heads(NOW, &[]).await.pools.is_empty());
    let (one, two) = (one.pick.key, two.pick.key);
    let events = [test.finished(&one, Some("x")), test.finished(&two, None)];
    assert_eq!(test.apply(&events).await, [Astray { key: two, executor: id("x") }]);
    assert_eq!(test.counts().await, (0, 0));
    test.accept(1).await;
    assert_eq!(test.heads(NOW, &[]).await.pools[0].free, [(id("x"), 2)]);
    // Each event counts once, whoever applies it again.
    let again = test.actions.apply(Sequence(2), Sequence(4), &events).await.unwrap();
    assert_eq!(again, Applied::Done(Vec::new()));
    assert_eq!(
        test.actions.apply(Sequence(99), Sequence(100), &[]).await.unwrap(),
        Applied::Gap(Sequence(test.last))
    );
}

#[tokio::test]
async fn a_heartbeat_that_still_names_what_has_ended_takes_no_slot() {
    let mut test = Test::start().await;
    let keys = test.accept(2).await;
    test.announce(&heartbeat("e", 2, &[])).await;
    for _ in 0..2 {
        test.commit_one().await;
    }
    // Both end; the heartbeat was sent before the executor knew. One of them it did not end itself: that runs there.
    let events = [test.finished(&keys[0], Some("e")), test.finished(&keys[1], None)];
    test.apply(&events).await;
    let heard = test.announce(&heartbeat("e", 2, &keys)).await;
    assert_eq!((heard.extra, heard.dead), (1, vec![keys[1].clone()]));
    test.accept(2).await;
    let heads = test.heads(NOW, &[]).await;
    assert_eq!(heads.pools[0].free, [(id("e"), 1)]);
}

#[tokio::test]
async fn a_busy_executor_gets_nothing_until_it_is_heard_of() {
    let mut test = Test::start().await;
    test.accept(1).await;
    test.announce(&heartbeat("x", 1, &[])).await;
    let committed = test.commit_one().await;
    let heads = test.heads(NOW, &[answer(&committed, Verdict::Busy)]).await;
    assert_eq!((heads.waiting, heads.claimed, heads.pools.len()), (1, 0, 0));
    // Something that the index does not know takes its slot.
    let heard = test.announce(&heartbeat("x", 1, &[key("g")])).await;
    assert_eq!((heard.news, heard.dead.len()), (false, 1));
    assert!(test.announce(&heartbeat("x", 1, &[])).await.news);
    test.commit_one().await;
}

#[tokio::test]
async fn a_gone_executor_gets_nothing() {
    let mut test = Test::start().await;
    test.accept(1).await;
    test.announce(&heartbeat("x", 1, &[])).await;
    let committed = test.commit_one().await;
    let heads = test.heads(NOW, &[answer(&committed, Verdict::Gone)]).await;
    assert_eq!((heads.waiting, heads.claimed, heads.pools.len()), (1, 0, 0));
    assert_eq!(test.actions.queue(&pool(), None, NOW).await.unwrap().executors, 0);
    // The same by its own word, with what it had in hand.
    test.announce(&heartbeat("y", 1, &[])).await;
    test.commit_one().await;
    let gone = ExecutorHeartbeat { status: ExecutorStatus::Gone, ..heartbeat("y", 1, &[]) };
    assert!(test.announce(&gone).await.news);
    assert_eq!(test.counts().await, (1, 0));
    // And by its silence.
    test.announce(&heartbeat("z", 1, &[])).await;
    assert!(test.heads(LATER, &[]).await.pools.is_empty());
    assert_eq!(test.actions.executors(NOW).await.unwrap().len(), 0);
}

#[tokio::test]
async fn an_offer_that_is_not_answered_is_asked_for_and_comes_back() {
    let mut test = Test::start().await;
    test.accept(2).await;
    test.announce(&heartbeat("x", 2, &[])).await;
    let (has, lost) = (test.commit_one().await.pick.key, test.commit_one().await.pick.key);
    let late = NOW.after(GRACE);
    let heads = test.heads(late, &[]).await;
    assert_eq!((heads.silent, heads.waiting, heads.claimed), (1, 0, 2), "it is asked first");
    assert_eq!(heads.next_offer, Some(late.after(GRACE)));
    assert!(test.announce(&heartbeat("x", 2, std::slice::from_ref(&has))).await.news);
    assert_eq!(test.counts().await, (1, 1));
    assert_eq!(test.heads(late, &[]).await.pools[0].waiting, [lost]);
    // What it names stays its own however much later.
    assert_eq!(test.heads(LATER, &[]).await.claimed, 1);
}

#[tokio::test]
async fn an_offer_to_an_executor_that_hangs_comes_back() {
    let mut test = Test::start().await;
    test.accept(1).await;
    test.announce(&heartbeat("x", 1, &[])).await;
    test.commit_one().await;
    assert_eq!(test.heads(NOW.after(GRACE), &[]).await.silent, 1);
    let heads = test.heads(NOW.after(GRACE * 3), &[]).await;
    assert_eq!((heads.waiting, heads.claimed, heads.pools.len()), (1, 0, 0));
}

#[tokio::test]
async fn a_taken_execution_that_its_executor_has_no_more_comes_back() {
    let mut test = Test::start().await;
    test.accept(1).await;
    test.announce(&heartbeat("x", 1, &[])).await;
    let committed = test.commit_one().await;
    let heads = test.heads(NOW, &[taken(&committed)]).await;
    assert_eq!((heads.offered, heads.claimed, heads.next_offer), (0, 1, None));
    // Not named once: its end may be on its way.
    test.announce(&heartbeat("x", 1, &[])).await;
    assert_eq!(test.counts().await, (0, 1));
    assert_eq!(test.heads(NOW.after(GRACE), &[]).await.silent, 1);
    test.announce(&heartbeat("x", 1, &[])).await;
    assert_eq!(test.counts().await, (1, 0));
}

#[tokio::test]
async fn a_lost_executor_leaves_its_claims_until_what_follows_is_applied() {
    let mut test = Test::start().await;
    test.accept(3).await;
    test.announce(&heartbeat("x", 2, &[])).await;
    test.commit_one().await;
    test.commit_one().await;
    assert_eq!(test.actions.holders().await.unwrap(), [id("x")]);
    let lost = test.actions.lost(&id("x")).await.unwrap();
    assert_eq!((lost.host.as_deref(), lost.executions.len()), (Some("machine"), 2));
    let again = test.actions.lost(&id("x")).await.unwrap();
    assert_eq!((again.host, again.executions.len()), (None, 2), "whoever took it over finds the same");
    assert_eq!(test.counts().await, (1, 2));
    assert!(test.heads(NOW, &[]).await.pools.is_empty());
    let events: Vec<Event> = lost.executions.iter().map(|it| test.waits(&it.key, 0)).collect();
    assert_eq!(test.apply(&events).await, []);
    assert_eq!(test.counts().await, (3, 0));
    assert_eq!(test.actions.holders().await.unwrap(), []);
}

#[tokio::test]
async fn a_forgotten_index_is_rebuilt_around_what_runs() {
    let mut test = Test::start().await;
    let keys: Vec<ExecutionKey> = (0..3).map(|_| key("g")).collect();
    let mut events: Vec<Event> = keys.iter().map(|key| test.waits(key, 0)).collect();
    events.push(test.finished(&keys[2], Some("x")));
    test.servers.flush_redis();
    assert_eq!(test.actions.health().await.unwrap(), None);
    assert_eq!(test.actions.apply(Sequence(0), Sequence(4), &events).await.unwrap(), Applied::Empty);
    assert!(!test.heads(NOW, &[]).await.ready);
    // One executor speaks before the index is there, which counts for nothing but its being there.
    assert!(!test.announce(&heartbeat("x", 1, &keys[..1])).await.ready);
    test.rebuild(&events, &[id("x"), id("y")]).await;
    let heads = test.heads(NOW, &[]).await;
    assert_eq!((heads.ready, heads.waiting, heads.pools.len()), (true, 2, 0));
    assert_eq!(heads.hold, Some(NOW.after(Duration::from_millis(500))));
    assert_eq!(heads.next_overdue, Some(LATER));
    let early = Pick { key: keys[0].clone(), executor: id("x") };
    assert_eq!(test.actions.commit(vec![early], NOW, LATER).await.unwrap(), [], "held");
    test.announce(&heartbeat("x", 1, &keys[..1])).await;
    assert_eq!(test.counts().await, (1, 1));
    assert!(test.heads(NOW, &[]).await.hold.is_some(), "the other one is still awaited");
    test.announce(&heartbeat("y", 1, &[])).await;
    let heads = test.heads(NOW, &[]).await;
    assert_eq!((heads.hold, &heads.pools[0].waiting), (None, &vec![keys[1].clone()]));
    assert_eq!(heads.pools[0].free, [(id("y"), 1)]);
}

#[tokio::test]
async fn a_rebuild_waits_for_the_silent_only_so_long() {
    let mut test = Test::start().await;
    let one = key("g");
    let events = [test.waits(&one, 0)];
    test.rebuild(&events, &[id("dead"), id("x")]).await;
    test.announce(&heartbeat("x", 1, &[])).await;
    assert!(test.heads(NOW, &[]).await.pools.is_empty());
    let after = NOW.after(Duration::from_millis(500));
    assert_eq!(test.heads(after, &[]).await.pools[0].waiting, [one]);
    // Nothing is overdue before it is sure that it does not run.
    let overdue = |now| test.actions.overdue(now, LATER.after(GRACE), 10);
    assert_eq!(overdue(after).await.unwrap().len(), 0);
    assert_eq!(overdue(LATER).await.unwrap().len(), 1);
    assert_eq!(overdue(LATER).await.unwrap().len(), 0, "handed out once");
    assert_eq!(overdue(LATER.after(GRACE)).await.unwrap().len(), 1, "and again, if nothing came of it");
    // A lost executor is not awaited any longer.
    test.rebuild(&events, &[id("dead")]).await;
    assert!(test.heads(NOW, &[]).await.hold.is_some());
    test.actions.lost(&id("dead")).await.unwrap();
    assert!(test.heads(NOW, &[]).await.hold.is_none());
}

#[tokio::test]
async fn a_rebuild_need_not_read_what_is_finished() {
    let mut test = Test::start().await;
    assert_eq!(test.actions.floor().await.unwrap(), Some(Sequence(0)));
    let keys = test.accept(3).await;
    assert_eq!(test.actions.floor().await.unwrap(), Some(Sequence(0)));
    let events = [test.finished(&keys[0], None), test.waits(&keys[1], 0)];
    test.apply(&events).await;
    assert_eq!(test.actions.floor().await.unwrap(), Some(Sequence(2)));
    let events = [test.finished(&keys[2], None), test.finished(&keys[1], None)];
    test.apply(&events).await;
    assert_eq!(test.actions.floor().await.unwrap(), Some(Sequence(7)));
    test.servers.flush_redis();
    assert_eq!(test.actions.floor().await.unwrap(), None);
}

#[tokio::test]
async fn an_answer_older_than_the_index_still_counts() {
    let mut test = Test::start().await;
    let one = key("g");
    let events = [test.waits(&one, 0)];
    test.apply(&events).await;
    test.announce(&heartbeat("x", 1, &[])).await;
    let committed = test.commit_one().await;
    test.servers.flush_redis();
    test.rebuild(&events, &[]).await;
    test.heads(NOW, &[taken(&committed)]).await;
    assert_eq!(test.counts().await, (1, 0), "who is that?");
    test.announce(&heartbeat("x", 1, &[])).await;
    let old = Answer { sequence: Sequence(0), ..taken(&committed) };
    test.heads(NOW, &[old]).await;
    assert_eq!(test.counts().await, (1, 0), "it was lost since");
    test.heads(NOW, &[taken(&committed)]).await;
    assert_eq!(test.counts().await, (0, 1));
    // But one for an execution that has ended does nothing.
    let events = [test.finished(&one, Some("x"))];
    test.apply(&events).await;
    let heads = test.heads(NOW, &[taken(&committed)]).await;
    assert_eq!((heads.waiting, heads.claimed), (0, 0));
}
