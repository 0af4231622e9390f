//! Spans of time as rows with bars, and the critical path through them.

use maud::{Markup, html};
use model::Millis;

use crate::layout::{since, span};

/// Maximum number of rows; the longest spans are shown.
const ROWS_MAX: usize = 200;
/// Width of the bars in units of their picture.
const WIDTH: u64 = 1000;

/// A span of time.
#[derive(Debug, Clone)]
pub(crate) struct Span {
    pub(crate) name: Markup,
    /// Class of its colour: `queue`, `prepare`, `run`, `store` or `bad`.
    pub(crate) kind: &'static str,
    pub(crate) start: Millis,
    /// None: it goes on.
    pub(crate) end: Option<Millis>,
    /// Its place on the critical path, if it is on it.
    pub(crate) is_critical: bool,
    /// How deep the row is indented.
    pub(crate) level: u8,
}

/// A table with a row and a bar for each span, ordered by start.
pub(crate) fn table(name: &str, spans: &[Span], now: Millis) -> Markup {
    let Some(from) = spans.iter().map(|span| span.start).min() else { return html! {} };
    let to = spans.iter().map(|span| span.end.unwrap_or(now)).max().unwrap_or(now);
    let whole = to.0.saturating_sub(from.0).max(1);
    let mut shown: Vec<&Span> = spans.iter().collect();
    if shown.len() > ROWS_MAX {
        shown.sort_by_key(|span| {
            std::cmp::Reverse((span.is_critical, span.end.unwrap_or(now).since(span.start)))
        });
        shown.truncate(ROWS_MAX);
    }
    shown.sort_by_key(|span| (span.level, span.start));
    html! {
        div.wide tabindex="0" role="region" aria-label=(name) {
            table.timeline {
                thead { tr { th scope="col" { "Step" } th scope="col" { "Took" } th.bars scope="col" { "From " (span(std::time::Duration::ZERO)) " to " (span(to.since(from))) } } }
                tbody {
                    @for it in &shown {
                        tr.critical[it.is_critical] {
                            td class={ "level" (it.level) } { @if it.is_critical { span.mark title="on the critical path" { "◆ " } } (it.name) }
                            td.number { @match it.end { Some(end) => (span(end.since(it.start))), None => { (since(it.start, now)) " so far" } } }
                            td.bars { (bar(it, from, whole, now)) }
                        }
                    }
                }
            }
        }
        @if shown.len() < spans.len() { p { "The longest " (shown.len()) " of " (spans.len()) " steps are shown." } }
    }
}

fn bar(it: &Span, from: Millis, whole: u64, now: Millis) -> Markup {
    let scaled =
        |time: u64| u64::try_from(u128::from(time) * u128::from(WIDTH) / u128::from(whole)).unwrap_or(WIDTH);
    let x = scaled(it.start.0.saturating_sub(from.0)).min(WIDTH - 2);
    let end = scaled(it.end.unwrap_or(now).0.saturating_sub(from.0));
    let width = end.saturating_sub(x).clamp(2, WIDTH - x);
    html! {
        svg viewBox="0 0 1000 14" preserveAspectRatio="none" aria-hidden="true" {
            rect class=(it.kind) x=(x) y="1" width=(width) height="12" {}
        }
    }
}

/// A step for the critical path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) start: Millis,
    pub(crate) end: Millis,
    /// Steps that had to end before it; none: any that ended before it may have been one.
    pub(crate) after: Option<Vec<usize>>,
}

/// The steps that decided when the last one ended, in order: each but the first began after the one before it, which ended
/// last of those that it waited for.
pub(crate) fn critical_path(steps: &[Step]) -> Vec<usize> {
    let mut by_end: Vec<usize> = (0..steps.len()).collect();
    by_end.sort_by_key(|number| steps.get(*number).map(|step| (step.end, step.start)));
    let Some(mut current) = by_end.last().copied() else { return Vec::new() };
    let mut path = vec![current];
    while let Some(step) = steps.get(current) {
        let before = |number: &usize| {
            *number != current && steps.get(*number).is_some_and(|other| other.end <= step.start)
        };
        let next = match &step.after {
            Some(after) => {
                after.iter().copied().filter(before).max_by_key(|number| steps.get(*number).map(|it| it.end))
            }
            None => by_end.iter().rev().copied().find(before),
        };
        // Steps without a length could otherwise follow each other in a circle.
        match next.filter(|next| !path.contains(next)) {
            Some(next) => current = next,
            None => break,
        }
        path.push(current);
    }
    path.reverse();
    path
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Millis, Step, critical_path};

    fn step(start: u64, end: u64, after: Option<Vec<usize>>) -> Step {
        Step { start: Millis(start), end: Millis(end), after }
    }

    #[test]
    fn the_path_goes_through_what_was_waited_for() {
        let steps = [
            step(0, 5, Some(vec![])),
            step(0, 3, Some(vec![])),
            step(5, 9, Some(vec![0, 1])),
            step(3, 8, Some(vec![1])),
        ];
        assert_eq!(critical_path(&steps), [0, 2]);
        let unknown: Vec<Step> = steps.iter().map(|it| Step { after: None, ..it.clone() }).collect();
        assert_eq!(critical_path(&unknown), [0, 2]);
        assert_eq!(critical_path(&[]), Vec::<usize>::new());
    }

    proptest! {
        #[test]
        fn a_path_ends_last_and_its_steps_follow_each_other(
            times in prop::collection::vec((0..50_u64, 0..20_u64), 1..30), knows in any::<bool>(),
        ) {
            let steps: Vec<Step> = times.iter().enumerate().map(|(number, (start, took))| {
                step(*start, start + took, knows.then(|| (0..number).collect()))
            }).collect();
            let path = critical_path(&steps);
            let last = steps.iter().map(|it| it.end).max().unwrap();
            prop_assert_eq!(steps[*path.last().unwrap()].end, last);
            for pair in path.windows(2) {
                prop_assert!(steps[pair[0]].end <= steps[pair[1]].start);
            }
        }
    }
}
