//! What the pictures have in common: SVG, written by hand.

use std::fmt::{self, Write};

/// Colours of the classes of lateness, from good to bad: told apart by people who see few colours, and in grey.
pub(crate) const LATENESS: [&str; 4] = ["#1b7837", "#a6dba0", "#f4a582", "#b2182b"];
pub(crate) const LATENESS_NAMES: [&str; 4] = ["on time", "delayed", "late", "extremely late"];
/// Colours of policies with one queue, and with a queue for each worker.
pub(crate) const ONE: &str = "#0072b2";
pub(crate) const EACH: &str = "#d55e00";
pub(crate) const GRID: &str = "#e4e4e4";
pub(crate) const AXIS: &str = "#444444";

/// Small pictures of equal size, side by side in rows.
pub(crate) struct Facets {
    pub(crate) columns: usize,
    /// Of each, with its title and axes. Pixels.
    pub(crate) width: f64,
    pub(crate) height: f64,
    /// Above all of them.
    pub(crate) top: f64,
    pub(crate) left: f64,
    /// Below and right of all of them.
    pub(crate) bottom: f64,
    pub(crate) right: f64,
}

impl Facets {
    /// Where the `number`th begins: left, top.
    pub(crate) fn corner(&self, number: usize) -> (f64, f64) {
        let (row, column) = (number / self.columns, number % self.columns);
        (self.left + self.width * column as f64, self.top + self.height * row as f64)
    }

    /// The size of the whole picture of `count`.
    pub(crate) fn size(&self, count: usize) -> (f64, f64) {
        let rows = count.div_ceil(self.columns);
        let columns = self.columns.min(count.max(1));
        (
            self.left + self.width * columns as f64 + self.right,
            self.top + self.height * rows as f64 + self.bottom,
        )
    }
}

/// Begins a picture.
pub(crate) fn open(svg: &mut String, (width, height): (f64, f64), title: &str, left: f64) -> fmt::Result {
    let title = escaped(title);
    writeln!(
        svg,
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">"#
    )?;
    writeln!(svg, "<title>{title}</title>")?;
    writeln!(svg, r##"<rect width="{width}" height="{height}" fill="#ffffff"/>"##)?;
    writeln!(svg, r#"<text x="{left}" y="24" font-size="16" font-weight="bold">{title}</text>"#)
}

/// Ends a picture.
pub(crate) fn close(svg: &mut String) -> fmt::Result {
    writeln!(svg, "</svg>")
}

/// A text. `anchor`: start, middle or end.
pub(crate) fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, text: &str) -> fmt::Result {
    writeln!(svg, r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{}</text>"#, escaped(text))
}

/// The title of a small picture.
pub(crate) fn heading(svg: &mut String, (x, y): (f64, f64), text: &str) -> fmt::Result {
    writeln!(svg, r#"<text x="{x:.1}" y="{y:.1}" font-weight="bold">{}</text>"#, escaped(text))
}

/// A filled rectangle: left, top, width, height. Nothing where that is nothing.
pub(crate) fn bar(svg: &mut String, at: [f64; 4], colour: &str) -> fmt::Result {
    let [x, y, width, height] = at;
    if width <= 0.0 || height <= 0.0 {
        return Ok(());
    }
    writeln!(svg, r#"<rect x="{x:.2}" y="{y:.2}" width="{width:.2}" height="{height:.2}" fill="{colour}"/>"#)
}

/// A line from one point to another.
pub(crate) fn line(svg: &mut String, from: (f64, f64), to: (f64, f64), colour: &str) -> fmt::Result {
    writeln!(
        svg,
        r#"<line x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}" stroke="{colour}"/>"#,
        from.0, from.1, to.0, to.1
    )
}

/// How a line looks.
#[derive(Clone, Copy)]
pub(crate) struct Stroke {
    pub(crate) colour: &'static str,
    pub(crate) width: f64,
    /// As SVG has it: lengths of dashes and gaps; empty for none.
    pub(crate) dashes: &'static str,
}

impl Stroke {
    pub(crate) const fn solid(colour: &'static str, width: f64) -> Self {
        Self { colour, width, dashes: "" }
    }

    pub(crate) const fn dashed(colour: &'static str, dashes: &'static str) -> Self {
        Self { colour, width: 1.0, dashes }
    }

    fn attributes(self) -> String {
        let Self { colour, width, dashes } = self;
        let dashes =
            if dashes.is_empty() { String::new() } else { format!(r#" stroke-dasharray="{dashes}""#) };
        format!(r#"stroke="{colour}" stroke-width="{width}"{dashes}"#)
    }
}

/// A line from one point to another that looks so.
pub(crate) fn stroke(svg: &mut String, from: (f64, f64), to: (f64, f64), stroke: Stroke) -> fmt::Result {
    let (x1, y1, x2, y2) = (from.0, from.1, to.0, to.1);
    let look = stroke.attributes();
    writeln!(svg, r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" {look}/>"#)
}

/// A line through points.
pub(crate) fn path(
    svg: &mut String,
    points: impl Iterator<Item = (f64, f64)>,
    stroke: Stroke,
) -> fmt::Result {
    write!(svg, r#"<polyline fill="none" {} points=""#, stroke.attributes())?;
    for (x, y) in points {
        write!(svg, "{x:.1},{y:.1} ")?;
    }
    writeln!(svg, r#""/>"#)
}

/// The left and the lower axis of what lies between left, top, right and bottom.
pub(crate) fn axes(svg: &mut String, [left, top, right, bottom]: [f64; 4]) -> fmt::Result {
    line(svg, (left, top), (left, bottom), AXIS)?;
    line(svg, (left, bottom), (right, bottom), AXIS)
}

/// A line across at `y` with what it means, left of it.
pub(crate) fn across(svg: &mut String, (left, right): (f64, f64), y: f64, label: &str) -> fmt::Result {
    line(svg, (left, y), (right, y), GRID)?;
    text(svg, (left - 8.0, y + 4.0), "end", label)
}

/// A short line below the axis at `bottom` with what it means, below it.
pub(crate) fn tick(svg: &mut String, x: f64, bottom: f64, label: &str) -> fmt::Result {
    line(svg, (x, bottom), (x, bottom + 4.0), AXIS)?;
    text(svg, (x, bottom + 17.0), "middle", label)
}

/// Short lines with what they mean, in a row; each takes so much room.
pub(crate) fn line_legend(
    svg: &mut String,
    (x, y): (f64, f64),
    each: f64,
    entries: &[(Stroke, &str)],
) -> fmt::Result {
    for (number, (look, meaning)) in entries.iter().enumerate() {
        let x = x + each * number as f64;
        stroke(svg, (x, y - 4.0), (x + 24.0, y - 4.0), *look)?;
        text(svg, (x + 30.0, y), "start", meaning)?;
    }
    Ok(())
}

/// A round number not below `rough`: 1, 2 or 5 with zeros.
pub(crate) fn round_step(rough: f64) -> f64 {
    let tens = 10_f64.powf(rough.max(1e-3).log10().floor());
    let fits = |factor: &f64| tens * factor >= rough * 0.999;
    [1.0, 2.0, 5.0].into_iter().find(fits).unwrap_or(10.0) * tens
}

/// Little boxes of colours with what they mean, in a row.
pub(crate) fn legend(svg: &mut String, (x, y): (f64, f64), entries: &[(&str, &str)]) -> fmt::Result {
    let mut x = x;
    for (colour, meaning) in entries {
        bar(svg, [x, y - 10.0, 12.0, 12.0], colour)?;
        text(svg, (x + 17.0, y), "start", meaning)?;
        x += 40.0 + 7.0 * meaning.len() as f64;
    }
    Ok(())
}

/// Text that XML does not take for its own. A workload's name may come from a file's.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
