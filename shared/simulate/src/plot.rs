//! A run as a picture: SVG, written by hand.

use std::fmt::{self, Write};

use crate::{GroupSeries, QuotaRun};

/// Pixels.
const WIDTH: f64 = 960.0;
const PANEL: f64 = 240.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 60.0;
const BOTTOM: f64 = 44.0;
/// Of a panel, what is kept free above its axes for its title.
const TITLE: f64 = 50.0;
/// Colours that people who see few colours tell apart (Okabe and Ito).
const PV: &str = "#0072b2";
const SP: &str = "#d55e00";
const MV: &str = "#009e73";
const QUOTA: &str = "#888888";

/// What is in use (PV), what may be (SP) and what is to be started (MV) of each group over time: one panel a group.
pub fn plot(run: &QuotaRun) -> String {
    let mut svg = String::new();
    // Writing to a string does not fail.
    draw(&mut svg, run).unwrap_or_default();
    svg
}

fn draw(svg: &mut String, run: &QuotaRun) -> fmt::Result {
    let height = TOP + PANEL * run.groups.len() as f64 + BOTTOM;
    writeln!(
        svg,
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">"#
    )?;
    writeln!(svg, "<title>Quota governor: use and set point of each group</title>")?;
    writeln!(svg, r##"<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>"##)?;
    legend(svg)?;
    let seconds = f64::from(run.scenario.seconds().max(1));
    for (at, series) in run.groups.iter().enumerate() {
        let bottom = TOP + PANEL * (at + 1) as f64;
        let panel = Panel::of(series, bottom, seconds);
        panel.axes(svg, series)?;
        panel.phases(svg, run)?;
        panel.line(svg, &series.mv, MV, 1.0)?;
        panel.line(svg, &series.pv, PV, 1.5)?;
        panel.line(svg, &series.sp, SP, 1.5)?;
    }
    let middle = f64::midpoint(LEFT, WIDTH - RIGHT);
    writeln!(svg, r#"<text x="{middle}" y="{:.0}" text-anchor="middle">seconds</text>"#, height - 8.0)?;
    writeln!(svg, "</svg>")
}

fn legend(svg: &mut String) -> fmt::Result {
    let title = "Quota governor: ESU of each group over time";
    writeln!(svg, r#"<text x="{LEFT}" y="22" font-size="16" font-weight="bold">{title}</text>"#)?;
    let entries = [
        (PV, "in use (PV)", ""),
        (SP, "set point (SP)", ""),
        (MV, "to start (MV)", ""),
        (QUOTA, "own quota", r#" stroke-dasharray="4 3""#),
    ];
    let mut x = LEFT;
    for (colour, text, dashes) in entries {
        let (end, label) = (x + 24.0, x + 30.0);
        writeln!(
            svg,
            r#"<line x1="{x}" y1="40" x2="{end}" y2="40" stroke="{colour}" stroke-width="2"{dashes}/>"#
        )?;
        writeln!(svg, r#"<text x="{label}" y="44">{text}</text>"#)?;
        x += 150.0;
    }
    Ok(())
}

/// Where the numbers of a group go.
struct Panel {
    top: f64,
    bottom: f64,
    least: f64,
    most: f64,
    step: f64,
    seconds: f64,
}

impl Panel {
    fn of(series: &GroupSeries, bottom: f64, seconds: f64) -> Self {
        let all = || series.pv.iter().chain(&series.sp).chain(&series.mv).copied();
        let (low, high) = (all().fold(0.0, f64::min), all().fold(series.quota.max(1.0), f64::max));
        let step = round_step((high - low) / 5.0);
        let (least, most) = ((low / step).floor() * step, (high / step).ceil() * step);
        Self { top: bottom - PANEL + TITLE, bottom, least, most, step, seconds }
    }

    fn x(&self, second: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * second / self.seconds
    }

    fn y(&self, esu: f64) -> f64 {
        self.bottom - (self.bottom - self.top) * (esu - self.least) / (self.most - self.least).max(1e-9)
    }

    fn axes(&self, svg: &mut String, series: &GroupSeries) -> fmt::Result {
        let (right, quota) = (WIDTH - RIGHT, self.y(series.quota));
        let title = self.top - 8.0;
        // A group's name has no characters that XML would take for its own.
        writeln!(
            svg,
            r#"<text x="{LEFT}" y="{title}" font-weight="bold">{}, quota {} ESU</text>"#,
            series.group, series.quota
        )?;
        let mut esu = self.least;
        while esu <= self.most + self.step / 2.0 {
            let y = self.y(esu);
            writeln!(
                svg,
                r##"<line x1="{LEFT}" y1="{y:.1}" x2="{right}" y2="{y:.1}" stroke="#e4e4e4"/><text x="{:.0}" y="{:.1}" text-anchor="end">{}</text>"##,
                LEFT - 8.0,
                y + 4.0,
                (esu * 1000.0).round() / 1000.0
            )?;
            esu += self.step;
        }
        let step = round_step(self.seconds / 8.0);
        let mut second = 0.0;
        while second <= self.seconds {
            let (x, y) = (self.x(second), self.bottom);
            writeln!(
                svg,
                r##"<line x1="{x:.1}" y1="{y}" x2="{x:.1}" y2="{:.1}" stroke="#444444"/><text x="{x:.1}" y="{:.1}" text-anchor="middle">{second}</text>"##,
                y + 4.0,
                y + 17.0
            )?;
            second += step;
        }
        writeln!(
            svg,
            r##"<path d="M{LEFT} {} V{} H{right}" fill="none" stroke="#444444"/>"##,
            self.top, self.bottom
        )?;
        writeln!(
            svg,
            r#"<line x1="{LEFT}" y1="{quota:.1}" x2="{right}" y2="{quota:.1}" stroke="{QUOTA}" stroke-dasharray="4 3"/>"#
        )
    }

    /// A line where the load changes.
    fn phases(&self, svg: &mut String, run: &QuotaRun) -> fmt::Result {
        let mut second = 0.0;
        for phase in run.scenario.phases.iter().skip(1).zip(&run.scenario.phases).map(|(_, before)| before) {
            second += f64::from(phase.seconds);
            let x = self.x(second);
            writeln!(
                svg,
                r##"<line x1="{x:.1}" y1="{}" x2="{x:.1}" y2="{}" stroke="#bbbbbb" stroke-dasharray="2 3"/>"##,
                self.top, self.bottom
            )?;
        }
        Ok(())
    }

    fn line(&self, svg: &mut String, values: &[f64], colour: &str, width: f64) -> fmt::Result {
        write!(svg, r#"<polyline fill="none" stroke="{colour}" stroke-width="{width}" points=""#)?;
        // As many points as the picture has pixels, or nearly so.
        let every = (values.len() / 900).max(1);
        for (second, value) in values.iter().enumerate().step_by(every) {
            write!(svg, "{:.1},{:.1} ", self.x(second as f64), self.y(*value))?;
        }
        writeln!(svg, r#""/>"#)
    }
}

/// A round number not below `rough`: 1, 2 or 5 with zeros.
pub(crate) fn round_step(rough: f64) -> f64 {
    let tens = 10_f64.powf(rough.max(1e-3).log10().floor());
    let fits = |factor: &f64| tens * factor >= rough * 0.999;
    [1.0, 2.0, 5.0].into_iter().find(fits).unwrap_or(10.0) * tens
}
