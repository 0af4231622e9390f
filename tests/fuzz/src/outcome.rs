//! One run of a target.

use std::{
    cell::RefCell,
    panic::{self, AssertUnwindSafe, PanicHookInfo, catch_unwind},
    sync::{
        Mutex, Once, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Maximum time for an input of 64 KiB.
const TIME_MAX: Duration = Duration::from_secs(1);
/// Number of runs of a slow input: a pause of the machine slows down one of them.
const TRIES: u32 = 3;
/// The beginning of the names of threads that run tasks. A panic there ends a task and no test.
const TASKS: &str = "tokio-";

/// Panics of tasks, and the text of the last one.
static PANICS: AtomicU64 = AtomicU64::new(0);
static LAST_OF_TASKS: Mutex<String> = Mutex::new(String::new());

thread_local! {
    /// The text of the last panic of this thread, with its place.
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

/// What is wrong with how a target takes an input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    Panic(String),
    Slow,
}

/// Gives an input to a target. Returns what it says about it.
pub(crate) fn run(check: &dyn Fn(&[u8]) -> String, input: &[u8]) -> Result<String, Fault> {
    static NOTE: Once = Once::new();
    NOTE.call_once(|| panic::set_hook(Box::new(note)));
    let before = PANICS.load(Ordering::SeqCst);
    for _ in 0..TRIES {
        let start = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| check(input)));
        let outcome = outcome.map_err(|_| Fault::Panic(LAST.with_borrow(String::clone)))?;
        if PANICS.load(Ordering::SeqCst) != before {
            return Err(Fault::Panic(LAST_OF_TASKS.lock().unwrap_or_else(PoisonError::into_inner).clone()));
        }
        if start.elapsed() <= TIME_MAX {
            return Ok(outcome);
        }
    }
    Err(Fault::Slow)
}

/// Keeps what a panic says instead of printing it: there are many while an input is made smaller.
fn note(panic: &PanicHookInfo<'_>) {
    LAST.with_borrow_mut(|last| *last = panic.to_string());
    if std::thread::current().name().is_some_and(|name| name.starts_with(TASKS)) {
        *LAST_OF_TASKS.lock().unwrap_or_else(PoisonError::into_inner) = panic.to_string();
        PANICS.fetch_add(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_and_endless_work_are_faults() {
        assert_eq!(run(&|input| format!("{} bytes", input.len()), b"abc"), Ok("3 bytes".to_owned()));
        let panics = run(&|input| input.get(5).map_or_else(|| panic!("too short"), u8::to_string), b"");
        let Err(Fault::Panic(text)) = panics else { panic!("{panics:?}") };
        assert!(text.contains("too short") && text.contains("outcome.rs"), "{text}");
        let spins = |_: &[u8]| {
            let start = Instant::now();
            while start.elapsed() <= TIME_MAX {}
            String::new()
        };
        assert_eq!(run(&spins, b""), Err(Fault::Slow));
    }
}
