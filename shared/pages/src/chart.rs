//! Line charts as SVG, each with a table of the same values.

use std::fmt::Write as _;

use client::text::date;
use maud::{Markup, html};
use model::Millis;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 220.0;
const LEFT: f64 = 48.0;
const BOTTOM: f64 = 22.0;
/// Maximum number of rows of the table.
const ROWS: usize = 60;

/// A line of a chart.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    pub(crate) name: &'static str,
    /// Class of its colour and pattern.
    pub(crate) class: &'static str,
    /// Values in the order of the times; none where there is none.
    pub(crate) values: Vec<Option<f64>>,
}

/// A chart of values over time. `id` is unique on the page.
pub(crate) fn over_time(id: &str, title: &str, unit: &str, times: &[Millis], lines: &[Line]) -> Markup {
    let (Some(first), Some(last)) = (times.first(), times.last()) else { return html! {} };
    let most = lines.iter().flat_map(|line| &line.values).flatten().copied().fold(0.0, f64::max);
    let top = nice(most);
    let whole = (last.0.saturating_sub(first.0)).max(1) as f64;
    let x = |at: Millis| LEFT + (WIDTH - LEFT - 8.0) * (at.0.saturating_sub(first.0) as f64 / whole);
    let y = |value: f64| 8.0 + (HEIGHT - BOTTOM - 8.0) * (1.0 - (value / top).clamp(0.0, 1.0));
    html! {
        figure.chart {
            figcaption { (title) ", in " (unit) }
            svg role="img" aria-label={ (title) ", " (unit) " over time; the table below has the values" } viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } {
                @for part in 0..=4 {
                    @let value = top * f64::from(part) / 4.0;
                    line.grid x1=(LEFT) x2=(WIDTH - 8.0) y1=(round(y(value))) y2=(round(y(value))) {}
                    text.axis x=(LEFT - 6.0) y=(round(y(value) + 4.0)) text-anchor="end" { (number(value)) }
                }
                text.axis x=(LEFT) y=(HEIGHT - 6.0) { (clock(*first)) }
                text.axis x=(WIDTH - 8.0) y=(HEIGHT - 6.0) text-anchor="end" { (clock(*last)) }
                @for line in lines { path class={ "line-" (line.class) } d=(path(times, &line.values, x, y)) { title { (line.name) } } }
            }
            ul.legend { @for line in lines { li { span.sample.(line.class) {} " " (line.name) @if let Some(last) = line.values.iter().rev().flatten().next() { " " b { (number(*last)) } } } } }
            details id={ (id) "-values" } {
                summary { "The values as a table" }
                (values(title, times, lines))
            }
        }
    }
}

fn values(title: &str, times: &[Millis], lines: &[Line]) -> Markup {
    let step = times.len().div_ceil(ROWS).max(1);
    html! {
        div.wide tabindex="0" role="region" aria-label={ "Values of " (title) } {
            table {
                thead { tr { th scope="col" { "Time" } @for line in lines { th scope="col" { (line.name) } } } }
                tbody {
                    @for (at, time) in times.iter().enumerate().step_by(step) {
                        tr { td { (date(*time)) } @for line in lines { td.number { (line.values.get(at).copied().flatten().map(number).unwrap_or_default()) } } }
                    }
                }
            }
        }
    }
}

fn path(
    times: &[Millis],
    values: &[Option<f64>],
    x: impl Fn(Millis) -> f64,
    y: impl Fn(f64) -> f64,
) -> String {
    let (mut path, mut is_drawn) = (String::new(), false);
    for (time, value) in times.iter().zip(values) {
        if let Some(value) = value {
            // Writing to a String cannot fail.
            let _ = write!(path, "{}{:.1} {:.1}", if is_drawn { 'L' } else { 'M' }, x(*time), y(*value));
        }
        if value.is_some() && !is_drawn {
            // A single point is a dot.
            path.push_str("h0");
        }
        is_drawn = value.is_some();
    }
    path
}

/// A bar for each name, with its value.
pub(crate) fn bars(title: &str, unit: &str, all: &[(String, f64)]) -> Markup {
    let most = all.iter().map(|(_, value)| *value).fold(f64::MIN_POSITIVE, f64::max);
    html! {
        figure.chart {
            figcaption { (title) ", in " (unit) }
            div.wide tabindex="0" role="region" aria-label=(title) {
                table.timeline { tbody { @for (name, value) in all { (bar(name, *value, most)) } } }
            }
        }
    }
}

fn bar(name: &str, value: f64, most: f64) -> Markup {
    let width = (value / most * 1000.0).max(0.0).round();
    html! {
        tr {
            th scope="row" { (name) }
            td.number { (number(value)) }
            td.bars {
                svg viewBox="0 0 1000 14" preserveAspectRatio="none" aria-hidden="true" {
                    rect.run x="0" y="1" height="12" width=(width) {}
                }
            }
        }
    }
}

/// The smallest number of one digit and zeros that is at least `value`.
fn nice(value: f64) -> f64 {
    if value <= 0.0 || !value.is_finite() {
        return 1.0;
    }
    let unit = 10_f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 4.0, 6.0, 8.0, 10.0];
    steps.into_iter().map(|step| step * unit).find(|top| *top >= value * (1.0 - 1e-9)).unwrap_or(value)
}

fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// A number with at most two decimals.
pub(crate) fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Hour and minute, in UTC.
fn clock(at: Millis) -> String {
    let date = date(at);
    format!("{} {} UTC", date.get(5..10).unwrap_or_default(), date.get(11..16).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Line, Millis, nice, number, over_time};

    proptest! {
        #[test]
        fn the_top_of_an_axis_is_above_all_values_and_near(value in 1e-6..1e12_f64) {
            let top = nice(value);
            prop_assert!(top >= value * 0.999_999 && top <= value * 2.1, "{}", top);
        }
    }

    #[test]
    fn gaps_are_not_drawn_and_numbers_are_short() {
        let line = Line { name: "PV", class: "pv", values: vec![Some(1.0), None, Some(2.0)] };
        let shown = over_time("c", "x", "ESU", &[Millis(0), Millis(5), Millis(10)], &[line]).into_string();
        assert!(shown.contains("d=\"M48.0 "), "{shown}");
        let path = shown.split(" d=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
        assert_eq!((path.matches('M').count(), path.contains('L')), (2, false), "{path}");
        assert_eq!([number(2.0), number(0.126), number(-1.5)], ["2", "0.13", "-1.5"].map(str::to_owned));
    }
}
