//! Makes a failing input smaller.

use std::time::{Duration, Instant};

use crate::outcome::{Fault, run};

/// Time for this, which is not part of the time of the target.
const LIMIT: Duration = Duration::from_secs(20);

/// The input without all that the fault does not need.
pub(crate) fn shrink(check: &dyn Fn(&[u8]) -> String, mut input: Vec<u8>, fault: &Fault) -> Vec<u8> {
    let (end, mut step) = (Instant::now() + LIMIT, input.len() / 2);
    while step > 0 {
        let mut at = 0;
        while at < input.len() && Instant::now() < end {
            let mut less = input.clone();
            less.drain(at..(at + step).min(input.len()));
            if run(check, &less).is_err_and(|found| is_same(&found, fault)) {
                input = less;
            } else {
                at += step;
            }
        }
        step /= 2;
    }
    input
}

/// Texts of panics often name a part of the input.
fn is_same(found: &Fault, fault: &Fault) -> bool {
    std::mem::discriminant(found) == std::mem::discriminant(fault)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_has_the_same_fault() {
        let check = |input: &[u8]| {
            assert!(!(input.contains(&b'<') && input.contains(&b'>')));
            String::new()
        };
        let input = [b"some text ".repeat(50), b"<".to_vec(), b"more".repeat(99), b">".to_vec()].concat();
        let fault = run(&check, &input).unwrap_err();
        assert_eq!(shrink(&check, input, &fault), b"<>");
    }
}
