//! The size of a pool as a picture: SVG, written by hand.

use std::fmt::{self, Write};

use super::ScalingRun;
use crate::plot::round_step;

/// Pixels.
const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 64.0;
const BOTTOM: f64 = 48.0;
/// Colours that people who see few colours tell apart (Okabe and Ito).
const THERE: &str = "#0072b2";
const WANTED: &str = "#e69f00";
const BOUND: &str = "#888888";

/// How many processes took work over time, and how many would have been needed to run everything at once.
pub fn plot_scaling(run: &ScalingRun) -> String {
    let mut svg = String::new();
    // Writing to a string does not fail.
    draw(&mut svg, run).unwrap_or_default();
    svg
}

/// Where the numbers go.
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
    // What is needed may be far more than there may ever be: that part is cut off.
    let most = highest(&run.processes).max(highest(&run.wanted).min(1.5 * bound)).max(1.0);
    let axes = Axes { minutes: (run.processes.len().max(2) - 1) as f64, most: 1.05 * most };
    writeln!(
        svg,
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">"#
    )?;
    writeln!(svg, "<title>Size of an autoscaled pool</title>")?;
    writeln!(svg, r##"<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>"##)?;
    writeln!(
        svg,
        r#"<text x="{LEFT}" y="22" font-size="16" font-weight="bold">Size of an autoscaled pool over time</text>"#
    )?;
    grid(svg, &axes)?;
    line(svg, &axes, &run.wanted, WANTED, 1.0)?;
    line(svg, &axes, &run.processes, THERE, 2.0)?;
    if bound <= axes.most {
        let y = axes.y(bound);
        writeln!(
            svg,
            r#"<line x1="{LEFT}" y1="{y:.1}" x2="{:.0}" y2="{y:.1}" stroke="{BOUND}" stroke-dasharray="4 3"/>"#,
            WIDTH - RIGHT
        )?;
    }
    legend(svg)?;
    writeln!(svg, "</svg>")
}

fn legend(svg: &mut String) -> fmt::Result {
    let entries =
        [(THERE, "processes that take work"), (WANTED, "needed to run all at once"), (BOUND, "at most")];
    let mut x = LEFT;
    for (colour, text) in entries {
        let (end, label) = (x + 24.0, x + 30.0);
        writeln!(svg, r#"<line x1="{x}" y1="42" x2="{end}" y2="42" stroke="{colour}" stroke-width="2"/>"#)?;
        writeln!(svg, r#"<text x="{label}" y="46">{text}</text>"#)?;
        x += 210.0;
    }
    Ok(())
}

fn grid(svg: &mut String, axes: &Axes) -> fmt::Result {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    let step = round_step(axes.most / 6.0).max(1.0);
    let mut count = 0.0;
    while count <= axes.most {
        let y = axes.y(count);
        writeln!(
            svg,
            r##"<line x1="{LEFT}" y1="{y:.1}" x2="{right}" y2="{y:.1}" stroke="#e4e4e4"/><text x="{:.0}" y="{:.1}" text-anchor="end">{count}</text>"##,
            LEFT - 8.0,
            y + 4.0
        )?;
        count += step;
    }
    let step = round_step(axes.minutes / 60.0 / 12.0);
    let mut hour = 0.0;
    while hour * 60.0 <= axes.minutes * 1.001 {
        let x = axes.x(hour * 60.0);
        writeln!(
            svg,
            r##"<line x1="{x:.1}" y1="{bottom}" x2="{x:.1}" y2="{:.1}" stroke="#444444"/><text x="{x:.1}" y="{:.1}" text-anchor="middle">{}</text>"##,
            bottom + 4.0,
            bottom + 17.0,
            (hour * 100.0).round() / 100.0
        )?;
        hour += step;
    }
    writeln!(
        svg,
        r##"<path d="M{LEFT} {TOP} V{bottom} H{right}" fill="none" stroke="#444444"/><text x="{:.0}" y="{:.0}" text-anchor="middle">hours</text>"##,
        f64::midpoint(LEFT, right),
        HEIGHT - 10.0
    )
}

/// A line through the largest number of every few minutes: as many points as the picture has pixels, or nearly so.
fn line(svg: &mut String, axes: &Axes, counts: &[u64], colour: &str, width: f64) -> fmt::Result {
    write!(svg, r#"<polyline fill="none" stroke="{colour}" stroke-width="{width}" points=""#)?;
    let every = counts.len().div_ceil(900).max(1);
    for (at, some) in counts.chunks(every).enumerate() {
        let count = some.iter().copied().max().unwrap_or(0) as f64;
        write!(svg, "{:.1},{:.1} ", axes.x((at * every) as f64), axes.y(count))?;
    }
    writeln!(svg, r#""/>"#)
}
