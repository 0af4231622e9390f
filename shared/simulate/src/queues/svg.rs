//! What the pictures of queues have in common: SVG, written by hand.

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
