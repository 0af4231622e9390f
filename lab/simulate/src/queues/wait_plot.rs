//! Waits of jobs relative to their durations: a histogram for each policy.

use std::fmt;

use super::{
    batch::Tally,
    name::QueuePolicy,
    outcome::{BINS, bin_from},
};
use crate::svg;

const FACETS: svg::Facets =
    svg::Facets { columns: 3, width: 300.0, height: 160.0, top: 64.0, left: 52.0, bottom: 34.0, right: 0.0 };
const PLOT: (f64, f64) = (268.0, 92.0);
const TITLE: f64 = 22.0;

/// Draws jobs by relative wait on logarithmic scales: one small picture per policy, mean of all seeds. All of
/// `tallies` belong to one workload.
pub fn plot_waits(tallies: &[&Tally]) -> String {
    let mut svg = String::new();
    let drawn = draw(&mut svg, tallies);
    assert!(drawn.is_ok(), "writing to a String failed");
    svg
}

fn draw(svg: &mut String, tallies: &[&Tally]) -> fmt::Result {
    let workload = tallies.first().map_or("", |tally| tally.workload.as_str());
    let size = FACETS.size(tallies.len());
    svg::open(svg, size, &format!("{workload}: waits relative to durations"), FACETS.left)?;
    svg::legend(
        svg,
        (FACETS.left, 46.0),
        &[(svg::ONE, "one queue"), (svg::EACH, "a queue for each worker")],
    )?;
    let bins: Vec<Vec<f64>> = tallies.iter().map(|tally| means(tally)).collect();
    let most = bins.iter().flatten().copied().fold(10.0, f64::max);
    let decades = most.log10().ceil();
    for (number, (tally, bins)) in tallies.iter().zip(&bins).enumerate() {
        facet(svg, number, tally, (bins, decades))?;
    }
    let middle = f64::midpoint(FACETS.left, size.0);
    svg::text(
        svg,
        (middle, size.1 - 8.0),
        "middle",
        "wait as a multiple of the duration (leftmost: less than 0.01); number of jobs",
    )?;
    svg::close(svg)
}

fn facet(svg: &mut String, number: usize, tally: &Tally, (bins, decades): (&[f64], f64)) -> fmt::Result {
    let (left, top) = FACETS.corner(number);
    let (width, height) = PLOT;
    let base = top + TITLE + height;
    let wait = |at: usize| {
        let waits = tally.outcomes.iter().filter_map(|outcome| outcome.relative_wait.get(at));
        waits.sum::<f64>() / (tally.outcomes.len() as f64).max(1.0)
    };
    svg::heading(svg, (left, top + 14.0), &format!("{}: p99 {:.1}", tally.policy, wait(2)))?;
    let mut decade = 0.0;
    while decade <= decades {
        let y = base - height * decade / decades;
        svg::line(svg, (left, y), (left + width, y), svg::GRID)?;
        if number.is_multiple_of(FACETS.columns) {
            svg::text(svg, (left - 6.0, y + 4.0), "end", &format!("{}", 10_f64.powf(decade)))?;
        }
        decade += 1.0;
    }
    let colour = match tally.policy {
        QueuePolicy::One(_, _) => svg::ONE,
        QueuePolicy::Each(_, _) => svg::EACH,
    };
    let step = width / BINS as f64;
    for (bin, count) in bins.iter().enumerate() {
        // A logarithmic scale cannot show a mean of less than one job per run.
        let part = height * count.max(1.0).log10() / decades;
        svg::bar(svg, [left + step * bin as f64, base - part, step - 1.0, part], colour)?;
    }
    svg::line(svg, (left, base), (left + width, base), svg::AXIS)?;
    for bin in (1..BINS).step_by(4) {
        let x = left + step * bin as f64;
        svg::line(svg, (x, base), (x, base + 3.0), svg::AXIS)?;
        svg::text(svg, (x, base + 15.0), "middle", &format!("{}", (bin_from(bin) * 100.0).round() / 100.0))?;
    }
    Ok(())
}

/// The bins, mean of all seeds.
fn means(tally: &Tally) -> Vec<f64> {
    let mut sums = vec![0.0; BINS];
    for outcome in &tally.outcomes {
        for (sum, count) in sums.iter_mut().zip(&outcome.wait_bins) {
            *sum += *count as f64 / tally.outcomes.len() as f64;
        }
    }
    sums
}
