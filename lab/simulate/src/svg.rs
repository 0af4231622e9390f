//! Shared parts of the SVG pictures.

use std::fmt::{self, Write};

/// Colours of the lateness classes, from good to bad: distinguishable for colour-blind readers, and in grey.
pub(crate) const LATENESS: [&str; 4] = ["#1b7837", "#a6dba0", "#f4a582", "#b2182b"];
pub(crate) const LATENESS_NAMES: [&str; 4] = ["on time", "delayed", "late", "extremely late"];
/// Colour of policies with one queue; `EACH` is that of policies with one queue per worker.
pub(crate) const ONE: &str = "#0072b2";
pub(crate) const EACH: &str = "#d55e00";
pub(crate) const GRID: &str = "#e4e4e4";
pub(crate) const AXIS: &str = "#444444";

/// A grid of equal small pictures.
pub(crate) struct Facets {
    pub(crate) columns: usize,
    /// Width of one picture with its title and axes, in pixels, like all lengths here.
    pub(crate) width: f64,
    pub(crate) height: f64,
    /// Space above the grid of pictures.
    pub(crate) top: f64,
    pub(crate) left: f64,
    /// Space below the grid of pictures.
    pub(crate) bottom: f64,
    pub(crate) right: f64,
}

impl Facets {
    /// Left and top edge of the picture with this number.
    pub(crate) fn corner(&self, number: usize) -> (f64, f64) {
        let (row, column) = (number / self.columns, number % self.columns);
        (self.left + self.width * column as f64, self.top + self.height * row as f64)
    }

    /// Size of the whole grid of `count` pictures.
    pub(crate) fn size(&self, count: usize) -> (f64, f64) {
        let rows = count.div_ceil(self.columns);
        let columns = self.columns.min(count.max(1));
        (
            self.left + self.width * columns as f64 + self.right,
            self.top + self.height * rows as f64 + self.bottom,
        )
    }
}

/// Writes the beginning of a picture.
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

/// Writes the end of a picture.
pub(crate) fn close(svg: &mut String) -> fmt::Result {
    writeln!(svg, "</svg>")
}

/// Writes a text. `anchor` is start, middle or end.
pub(crate) fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, text: &str) -> fmt::Result {
    writeln!(svg, r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{}</text>"#, escaped(text))
}

/// Writes the title of a small picture.
pub(crate) fn heading(svg: &mut String, (x, y): (f64, f64), text: &str) -> fmt::Result {
    writeln!(svg, r#"<text x="{x:.1}" y="{y:.1}" font-weight="bold">{}</text>"#, escaped(text))
}

/// Draws a filled rectangle: left, top, width, height. An empty rectangle is omitted.
pub(crate) fn bar(svg: &mut String, at: [f64; 4], colour: &str) -> fmt::Result {
    let [x, y, width, height] = at;
    if width <= 0.0 || height <= 0.0 {
        return Ok(());
    }
    writeln!(svg, r#"<rect x="{x:.2}" y="{y:.2}" width="{width:.2}" height="{height:.2}" fill="{colour}"/>"#)
}

/// Draws a line from one point to another.
pub(crate) fn line(svg: &mut String, from: (f64, f64), to: (f64, f64), colour: &str) -> fmt::Result {
    writeln!(
        svg,
        r#"<line x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}" stroke="{colour}"/>"#,
        from.0, from.1, to.0, to.1
    )
}

/// Colour, width and dashes of a line.
#[derive(Clone, Copy)]
pub(crate) struct Stroke {
    pub(crate) colour: &'static str,
    pub(crate) width: f64,
    /// Lengths of dashes and gaps in the notation of SVG; empty for a solid line.
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

/// Draws a line from one point to another with this stroke.
pub(crate) fn stroke(svg: &mut String, from: (f64, f64), to: (f64, f64), stroke: Stroke) -> fmt::Result {
    let (x1, y1, x2, y2) = (from.0, from.1, to.0, to.1);
    let look = stroke.attributes();
    writeln!(svg, r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" {look}/>"#)
}

/// Draws a line through points.
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

/// Draws the left and the lower axis of the area between left, top, right and bottom.
pub(crate) fn axes(svg: &mut String, [left, top, right, bottom]: [f64; 4]) -> fmt::Result {
    line(svg, (left, top), (left, bottom), AXIS)?;
    line(svg, (left, bottom), (right, bottom), AXIS)
}

/// Draws a horizontal line at `y`, with a label to the left of it.
pub(crate) fn across(svg: &mut String, (left, right): (f64, f64), y: f64, label: &str) -> fmt::Result {
    line(svg, (left, y), (right, y), GRID)?;
    text(svg, (left - 8.0, y + 4.0), "end", label)
}

/// Draws a short line below the axis at `bottom`, with a label below it.
pub(crate) fn tick(svg: &mut String, x: f64, bottom: f64, label: &str) -> fmt::Result {
    line(svg, (x, bottom), (x, bottom + 4.0), AXIS)?;
    text(svg, (x, bottom + 17.0), "middle", label)
}

/// Draws a row of line samples with their meanings, each in a column of the given width.
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

/// Smallest round number not below `rough`: 1, 2 or 5 times a power of ten.
pub(crate) fn round_step(rough: f64) -> f64 {
    let tens = 10_f64.powf(rough.max(1e-3).log10().floor());
    let fits = |factor: &f64| tens * factor >= rough * 0.999;
    [1.0, 2.0, 5.0].into_iter().find(fits).unwrap_or(10.0) * tens
}

/// Draws a row of coloured boxes with their meanings.
pub(crate) fn legend(svg: &mut String, (x, y): (f64, f64), entries: &[(&str, &str)]) -> fmt::Result {
    let mut x = x;
    for (colour, meaning) in entries {
        bar(svg, [x, y - 10.0, 12.0, 12.0], colour)?;
        text(svg, (x + 17.0, y), "start", meaning)?;
        x += 40.0 + 7.0 * meaning.len() as f64;
    }
    Ok(())
}

/// Escapes text for XML. A workload's name may come from a file name.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
