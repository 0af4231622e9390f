//! An unstable sort that is identical to the one of GNU C++: equal elements end up in the same places. The published
//! figures of the thesis depend on it (introsort is by Musser, 1997).

/// Maximum length of a part that is left to the final insertion sort.
const SMALL: usize = 16;

/// Sorts by the first element of each pair.
pub(crate) fn sort<K: Ord + Copy, V: Copy>(all: &mut [(K, V)]) {
    let Some(depth) = all.len().checked_ilog2() else { return };
    partition_all(all, 2 * depth);
    let small = all.len().min(SMALL);
    for at in 1..small {
        insert(all, at);
    }
    for at in small..all.len() {
        insert(all, at);
    }
}

/// Partitions until the parts are small. As in GNU C++, the right part is done first.
fn partition_all<K: Ord + Copy, V: Copy>(mut part: &mut [(K, V)], mut depth: u32) {
    while part.len() > SMALL {
        if depth == 0 {
            // GNU C++ uses a heap sort here; no known input gets here.
            part.sort_by_key(|(key, _)| *key);
            return;
        }
        depth -= 1;
        let cut = partition(part);
        let (left, right) = part.split_at_mut(cut);
        partition_all(right, depth);
        part = left;
    }
}

/// Partitions by the median of the second, the middle and the last element, and returns where the right part begins.
fn partition<K: Ord + Copy, V: Copy>(part: &mut [(K, V)]) -> usize {
    let (second, middle, last) = (1, part.len() / 2, part.len() - 1);
    let median = if less(part, second, middle) {
        if less(part, middle, last) {
            middle
        } else if less(part, second, last) {
            last
        } else {
            second
        }
    } else if less(part, second, last) {
        second
    } else if less(part, middle, last) {
        last
    } else {
        middle
    };
    part.swap(0, median);
    let (mut from, mut to) = (1, part.len());
    loop {
        while less(part, from, 0) {
            from += 1;
        }
        to -= 1;
        while less(part, 0, to) {
            to -= 1;
        }
        if from >= to {
            return from;
        }
        part.swap(from, to);
        from += 1;
    }
}

/// Moves the element at `at` before all greater ones that precede it.
fn insert<K: Ord + Copy, V: Copy>(all: &mut [(K, V)], mut at: usize) {
    while at > 0 && less(all, at, at - 1) {
        all.swap(at, at - 1);
        at -= 1;
    }
}

fn less<K: Ord, V>(all: &[(K, V)], a: usize, b: usize) -> bool {
    all.get(a).zip(all.get(b)).is_some_and(|((a, _), (b, _))| a < b)
}

#[cfg(test)]
mod tests {
    use policy::Random;

    use super::*;

    #[test]
    fn it_sorts_and_keeps_every_element() {
        let mut random = Random::new(3);
        for length in [0, 1, 2, 15, 16, 17, 100, 1000] {
            let mut all: Vec<(u64, u64)> = (0..length).map(|at| (random.below(50), at)).collect();
            let mut expected: Vec<u64> = all.iter().map(|(key, _)| *key).collect();
            expected.sort_unstable();
            sort(&mut all);
            assert_eq!(all.iter().map(|(key, _)| *key).collect::<Vec<_>>(), expected);
            all.sort_unstable_by_key(|(_, value)| *value);
            assert!((0..length).eq(all.iter().map(|(_, value)| *value)));
        }
    }

    #[test]
    fn few_equals_keep_their_order_and_many_do_not() {
        let equals = |length: u32| {
            let mut all: Vec<(u32, u32)> = (0..length).map(|at| (0, at)).collect();
            sort(&mut all);
            all.into_iter().map(|(_, at)| at).collect::<Vec<u32>>()
        };
        assert!(equals(16).is_sorted());
        // The result of std::sort of GNU C++ 12 for twenty equal elements.
        assert_eq!(equals(20), [10, 19, 18, 17, 16, 15, 14, 13, 12, 11, 0, 9, 8, 7, 6, 5, 4, 3, 2, 1]);
    }

    #[test]
    fn equals_end_where_gnu_c_plus_plus_puts_them() {
        let mut state = 1_u32;
        let mut all: Vec<(u32, u32)> = (0..60)
            .map(|at| {
                state = state.wrapping_mul(1_103_515_245).wrapping_add(12_345);
                ((state >> 16) % 5, at)
            })
            .collect();
        sort(&mut all);
        let places: Vec<u32> = all.into_iter().map(|(_, at)| at).collect();
        // The result of std::sort of GNU C++ 12 for the same sixty elements.
        let there = [
            18, 35, 57, 56, 5, 54, 42, 8, 48, 22, 14, 23, 40, 39, 21, 1, 37, 26, 17, 15, 45, 47, 9, 53, 44,
            58, 30, 33, 32, 28, 7, 24, 11, 16, 13, 59, 2, 3, 55, 6, 51, 50, 46, 0, 31, 41, 27, 43, 38, 4, 34,
            25, 36, 52, 20, 49, 10, 19, 12, 29,
        ];
        assert_eq!(places, there);
    }
}
