//! How schedulers read the index of actions on a real Redis: some groups of many, and how far it is applied.

use crate::support::{GRACE, NOW, Test, key};
use index::actions::{Event, GroupHead, Heads, ReadFirst};
use model::{ExecutionKey, RequirementsId, Sequence};

#[tokio::test]
async fn of_several_groups_only_those_are_read_that_are_asked_for() {
    let mut test = Test::start().await;
    let (many, few): (Vec<_>, Vec<_>) = ((0..6).map(|_| key("g")).collect(), vec![key("h"), key("h")]);
    let events: Vec<Event> = many.iter().chain(&few).map(|key| test.waits(key, 0)).collect();
    test.apply(&events).await;
    let none = RequirementsId::none();
    let heads = async |test: &Test, max| {
        test.actions.heads(NOW, max, GRACE, &[RequirementsId::none()], &[]).await.unwrap()
    };
    let read = |heads: &Heads| -> Vec<(String, usize, bool)> {
        let of = |head: &GroupHead| (head.group.to_string(), head.waiting.len(), head.more);
        heads.queues[0].groups.iter().map(of).collect()
    };
    let expected = |g, h, more| [("g".to_owned(), g, more), ("h".to_owned(), h, more)];
    let all = heads(&test, 8).await;
    assert_eq!(read(&all), expected(6, 2, false));
    let first = heads(&test, 7).await;
    assert_eq!(read(&first), expected(0, 0, true));
    let firsts = |heads: &Heads| heads.queues[0].groups.iter().map(|head| head.first).collect::<Vec<_>>();
    assert_eq!(firsts(&first), firsts(&all));
    assert_eq!(first.queues[0].groups[0].unread_from(), Some(first.queues[0].groups[0].first));
    let asked =
        |group: &str, most| ReadFirst { requirements: none.clone(), group: group.parse().unwrap(), most };
    let found = test.actions.first_of(&[asked("h", 9), asked("g", 2), asked("x", 1)]).await.unwrap();
    let found: Vec<Vec<ExecutionKey>> =
        found.into_iter().map(|all| all.into_iter().map(|it| it.key).collect()).collect();
    assert_eq!(found, [few.clone(), many[..2].to_vec(), Vec::new()]);
    // A single group is read up to the limit, and a group's first score follows what is granted.
    for key in &few {
        test.commit(key, "x").await.unwrap();
    }
    assert_eq!(read(&heads(&test, 4).await), [("g".to_owned(), 4, true)]);
    test.commit(&many[0], "x").await.unwrap();
    let left = heads(&test, 8).await;
    assert_eq!(left.queues[0].groups[0].first, left.queues[0].groups[0].waiting[0].score);
}

#[tokio::test]
async fn a_process_that_follows_learns_how_far_another_one_has_applied() {
    let mut test = Test::start().await;
    let keys = test.accept(2).await;
    let first = [test.finished(&keys[0], None)];
    let effects = test.apply(&first).await;
    assert!(effects.was_first && !effects.is_followed);
    assert_eq!(test.actions.follow().await.unwrap(), Some(Sequence(3)));
    let both = [first[0].clone(), test.finished(&keys[1], None)];
    let effects = test.apply(&both).await;
    assert!(
        effects.applied_here && effects.is_followed && !effects.was_first,
        "the first was applied before"
    );
    let effects = test.apply(&both).await;
    assert!(!effects.applied_here && !effects.was_first);
    test.servers.flush_redis();
    assert_eq!(test.actions.follow().await.unwrap(), None);
}
