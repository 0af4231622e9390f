//! Draws the size of a pool as an SVG picture.

use std::fmt;

use super::ScalingRun;
use crate::svg::{self, Stroke, round_step};

/// Width of the picture in pixels, like all lengths below.
const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 64.0;
const BOTTOM: f64 = 48.0;
/// Colour of live processes; colour-blind readers can distinguish all colours here (Okabe and Ito).
const THERE: Stroke = Stroke::solid("#0072b2", 2.0);
const WANTED: Stroke = Stroke::solid("#e69f00", 1.0);
const BOUND: Stroke = Stroke::dashed("#888888", "4 3");

/// Draws the number of processes that accepted work over time, and the number needed to run everything at once.
pub fn plot_scaling(run: &ScalingRun) -> String {
    let mut svg = String::new();
    let drawn = draw(&mut svg, run);
    assert!(drawn.is_ok(), "writing to a String failed");
    svg
}

/// Scale of both axes.
struct Axes {
    minutes: f64,
    most: f64,
}

impl Axes {
    fn x(&self, minute: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * minute / self.minutes
    }

    fn y(&self, count: f64) -> f64 {
        HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * count.min(self.most) / self.most
    }
}

fn draw(svg: &mut String, run: &ScalingRun) -> fmt::Result {
    let bound = run.scenario.autoscale.max as f64;
    let highest = |of: &[u64]| of.iter().copied().max().unwrap_or(0) as f64;
    // The need may far exceed the largest allowed size: cut that part off.
    let most = highest(&run.processes).max(highest(&run.wanted).min(1.5 * bound)).max(1.0);
    let axes = Axes { minutes: (run.processes.len().max(2) - 1) as f64, most: 1.05 * most };
    svg::open(svg, (WIDTH, HEIGHT), "Size of an autoscaled pool over time", LEFT)?;
    grid(svg, &axes)?;
    line(svg, &axes, &run.wanted, WANTED)?;
    line(svg, &axes, &run.processes, THERE)?;
    if bound <= axes.most {
        let y = axes.y(bound);
        svg::stroke(svg, (LEFT, y), (WIDTH - RIGHT, y), BOUND)?;
    }
    let meanings = [(THERE, "live processes"), (WANTED, "needed to run all at once"), (BOUND, "maximum")];
    svg::line_legend(svg, (LEFT, 46.0), 210.0, &meanings)?;
    svg::close(svg)
}

fn grid(svg: &mut String, axes: &Axes) -> fmt::Result {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    let step = round_step(axes.most / 6.0).max(1.0);
    let mut count = 0.0;
    while count <= axes.most {
        svg::across(svg, (LEFT, right), axes.y(count), &count.to_string())?;
        count += step;
    }
    let step = round_step(axes.minutes / 60.0 / 12.0);
    let mut hour = 0.0;
    while hour * 60.0 <= axes.minutes * 1.001 {
        let label = ((hour * 100.0).round() / 100.0).to_string();
        svg::tick(svg, axes.x(hour * 60.0), bottom, &label)?;
        hour += step;
    }
    svg::axes(svg, [LEFT, TOP, right, bottom])?;
    svg::text(svg, (f64::midpoint(LEFT, right), HEIGHT - 10.0), "middle", "hours")
}

/// Draws a line through the maximum of every few minutes, with about as many points as the picture has pixels.
fn line(svg: &mut String, axes: &Axes, counts: &[u64], look: Stroke) -> fmt::Result {
    let every = counts.len().div_ceil(900).max(1);
    let largest = |(at, some): (usize, &[u64])| {
        let count = some.iter().copied().max().unwrap_or(0) as f64;
        (axes.x((at * every) as f64), axes.y(count))
    };
    svg::path(svg, counts.chunks(every).enumerate().map(largest), look)
}
