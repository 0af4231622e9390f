//! Time until the last job ended: a bar for each policy, a small picture for each workload.

use std::fmt;

use super::{batch::Tally, name::QueuePolicy};
use crate::svg;

const ROW: f64 = 17.0;
const PLOT: f64 = 170.0;
const NAMES: f64 = 136.0;
const FIGURES: f64 = 64.0;
const TITLE: f64 = 24.0;

/// Draws makespans in seconds: the mean of all seeds, with a whisker from the least to the greatest.
pub fn plot_makespans(tallies: &[Tally]) -> String {
    let mut svg = String::new();
    let drawn = draw(&mut svg, tallies);
    assert!(drawn.is_ok(), "writing to a String failed");
    svg
}

fn draw(svg: &mut String, tallies: &[Tally]) -> fmt::Result {
    let mut workloads: Vec<&str> = tallies.iter().map(|tally| tally.workload.as_str()).collect();
    workloads.dedup();
    let rows = workloads.first().map_or(0, |first| tallies.iter().filter(|t| t.workload == **first).count());
    let facets = svg::Facets {
        columns: 3,
        width: NAMES + PLOT + FIGURES,
        height: TITLE + ROW * rows as f64 + 20.0,
        top: 60.0,
        left: 20.0,
        bottom: 4.0,
        right: 0.0,
    };
    svg::open(svg, facets.size(workloads.len()), "Makespans: seconds until the last job ended", facets.left)?;
    svg::legend(
        svg,
        (facets.left, 46.0),
        &[(svg::ONE, "one queue"), (svg::EACH, "a queue for each worker")],
    )?;
    for (number, workload) in workloads.iter().enumerate() {
        let of_it: Vec<&Tally> = tallies.iter().filter(|tally| tally.workload == *workload).collect();
        facet(svg, facets.corner(number), workload, &of_it)?;
    }
    svg::close(svg)
}

fn facet(svg: &mut String, (left, top): (f64, f64), workload: &str, tallies: &[&Tally]) -> fmt::Result {
    svg::heading(svg, (left, top + 14.0), workload)?;
    let spans: Vec<[f64; 3]> = tallies.iter().map(|tally| spans(tally)).collect();
    let most = spans.iter().map(|[_, _, most]| *most).fold(1e-9, f64::max);
    let x = |seconds: f64| left + NAMES + PLOT * seconds / most;
    let end = top + TITLE + ROW * tallies.len() as f64;
    for (row, (tally, [least, mean, greatest])) in tallies.iter().zip(&spans).enumerate() {
        let y = top + TITLE + ROW * row as f64;
        svg::text(svg, (left + NAMES - 6.0, y + 11.0), "end", &tally.policy.to_string())?;
        let colour = match tally.policy {
            QueuePolicy::One(_, _) => svg::ONE,
            QueuePolicy::Each(_, _) => svg::EACH,
        };
        svg::bar(svg, [x(0.0), y + 2.0, x(*mean) - x(0.0), ROW - 5.0], colour)?;
        svg::line(svg, (x(*least), y + ROW / 2.0), (x(*greatest), y + ROW / 2.0), "#000000")?;
        svg::text(svg, (x(*greatest) + 6.0, y + 12.0), "start", &format!("{mean:.0}"))?;
    }
    svg::line(svg, (x(0.0), top + TITLE), (x(0.0), end), svg::AXIS)
}

/// The least, mean and greatest makespan of all seeds, in seconds.
fn spans(tally: &Tally) -> [f64; 3] {
    let all = || tally.outcomes.iter().map(|outcome| outcome.makespan_ms as f64 / 1000.0);
    let mean = all().sum::<f64>() / (tally.outcomes.len() as f64).max(1.0);
    [all().fold(f64::INFINITY, f64::min), mean, all().fold(0.0, f64::max)]
}
