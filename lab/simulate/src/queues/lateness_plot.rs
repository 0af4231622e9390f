//! Lateness over time: for each policy, twenty bars from the first arrivals to the last.

use std::fmt;

use super::{batch::Tally, outcome::WINDOWS};
use crate::svg;

const FACETS: svg::Facets =
    svg::Facets { columns: 3, width: 300.0, height: 150.0, top: 64.0, left: 52.0, bottom: 40.0, right: 0.0 };
const PLOT: (f64, f64) = (272.0, 96.0);
const TITLE: f64 = 22.0;

/// Draws the share of jobs in each lateness class over windows of arrival: one small picture per policy, all seeds
/// together. All of `tallies` belong to one workload.
pub fn plot_lateness(tallies: &[&Tally]) -> String {
    let mut svg = String::new();
    let drawn = draw(&mut svg, tallies);
    assert!(drawn.is_ok(), "writing to a String failed");
    svg
}

fn draw(svg: &mut String, tallies: &[&Tally]) -> fmt::Result {
    let workload = tallies.first().map_or("", |tally| tally.workload.as_str());
    let size = FACETS.size(tallies.len());
    svg::open(svg, size, &format!("{workload}: lateness by order of arrival"), FACETS.left)?;
    let entries: Vec<(&str, &str)> = svg::LATENESS.into_iter().zip(svg::LATENESS_NAMES).collect();
    svg::legend(svg, (FACETS.left, 46.0), &entries)?;
    for (number, tally) in tallies.iter().enumerate() {
        facet(svg, number, tally)?;
    }
    let middle = f64::midpoint(FACETS.left, size.0);
    svg::text(
        svg,
        (middle, size.1 - 10.0),
        "middle",
        "windows of a twentieth of the jobs each, first arrivals first; share of the jobs",
    )?;
    svg::close(svg)
}

fn facet(svg: &mut String, number: usize, tally: &Tally) -> fmt::Result {
    let (left, top) = FACETS.corner(number);
    let counts = windows(tally);
    let on_time: u64 = tally.outcomes.iter().filter_map(|outcome| outcome.classes.first()).sum();
    let jobs: u64 = tally.outcomes.iter().map(|outcome| outcome.jobs).sum();
    let share = 100.0 * on_time as f64 / (jobs as f64).max(1.0);
    svg::heading(svg, (left, top + 14.0), &format!("{}: {share:.0} % on time", tally.policy))?;
    let (width, height) = PLOT;
    let base = top + TITLE + height;
    let step = width / WINDOWS as f64;
    for (window, counts) in counts.iter().enumerate() {
        let all = counts.iter().sum::<u64>() as f64;
        let x = left + step * window as f64;
        let mut y = base;
        for (count, colour) in counts.iter().zip(svg::LATENESS) {
            let part = height * *count as f64 / all.max(1.0);
            y -= part;
            svg::bar(svg, [x, y, step - 1.5, part], colour)?;
        }
    }
    svg::line(svg, (left, base), (left + width, base), svg::AXIS)?;
    // One label of the axis per row.
    if number.is_multiple_of(FACETS.columns) {
        for (share, label) in [(0.0, "0"), (0.5, "50 %"), (1.0, "100 %")] {
            svg::text(svg, (left - 6.0, base - height * share + 4.0), "end", label)?;
        }
    }
    Ok(())
}

/// Sums the windows of all seeds.
fn windows(tally: &Tally) -> Vec<[u64; 4]> {
    let mut sums = vec![[0; 4]; WINDOWS];
    for outcome in &tally.outcomes {
        for (sum, counts) in sums.iter_mut().zip(&outcome.windows) {
            for (sum, count) in sum.iter_mut().zip(counts) {
                *sum += count;
            }
        }
    }
    sums
}
