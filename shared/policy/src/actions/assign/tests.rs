use proptest::prelude::*;

use super::*;

#[test]
fn the_emptiest_executor_comes_first() {
    let free = [Free { executor: 'a', slots: 1 }, Free { executor: 'b', slots: 3 }];
    let given: String = assign((0..9).collect(), &free).into_iter().map(|it| it.executor).collect();
    assert_eq!(given, "bbab");
}

proptest! {
    #[test]
    fn nothing_waits_while_a_slot_is_free_and_none_is_given_twice(
        waiting in 0_usize..40,
        slots in proptest::collection::vec(0_u32..6, 0..8),
    ) {
        let free: Vec<Free<usize>> =
            slots.iter().enumerate().map(|(executor, slots)| Free { executor, slots: *slots }).collect();
        let assigned = assign((0..waiting).collect(), &free);
        let room: u32 = slots.iter().sum();
        prop_assert_eq!(assigned.len(), waiting.min(room as usize));
        for free in &free {
            let given = assigned.iter().filter(|it| it.executor == free.executor).count();
            prop_assert!(given <= free.slots as usize);
        }
    }

    #[test]
    fn the_order_is_kept(waiting in 0_usize..40, slots in proptest::collection::vec(0_u32..6, 0..8)) {
        let free: Vec<Free<usize>> =
            slots.iter().enumerate().map(|(executor, slots)| Free { executor, slots: *slots }).collect();
        let order: Vec<usize> = assign((0..waiting).collect(), &free).into_iter().map(|it| it.execution).collect();
        prop_assert_eq!(&order, &(0..order.len()).collect::<Vec<_>>());
    }
}
