//! Draws a run of the quota governor as an SVG picture.

use std::fmt;

use crate::{
    GroupSeries, QuotaRun,
    svg::{self, Stroke, round_step},
};

/// Width of the picture in pixels, like all lengths below.
const WIDTH: f64 = 960.0;
const PANEL: f64 = 240.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 60.0;
const BOTTOM: f64 = 44.0;
/// Space above the axes of a panel for its title, in pixels.
const TITLE: f64 = 50.0;
/// Colour of PV; colour-blind readers can distinguish all colours here (Okabe and Ito).
const PV: Stroke = Stroke::solid("#0072b2", 1.5);
const SP: Stroke = Stroke::solid("#d55e00", 1.5);
const MV: Stroke = Stroke::solid("#009e73", 1.0);
const QUOTA: Stroke = Stroke::dashed("#888888", "4 3");
/// Line that marks a change of the load.
const PHASE: Stroke = Stroke::dashed("#bbbbbb", "2 3");

/// Draws usage (PV), set point (SP) and builds to start (MV) of each group over time: one panel per group.
pub fn plot(run: &QuotaRun) -> String {
    let mut svg = String::new();
    let drawn = draw(&mut svg, run);
    assert!(drawn.is_ok(), "writing to a String failed");
    svg
}

fn draw(svg: &mut String, run: &QuotaRun) -> fmt::Result {
    let height = TOP + PANEL * run.groups.len() as f64 + BOTTOM;
    svg::open(svg, (WIDTH, height), "Quota governor: ESU of each group over time", LEFT)?;
    let meanings = [(PV, "in use (PV)"), (SP, "set point (SP)"), (MV, "to start (MV)"), (QUOTA, "own quota")];
    svg::line_legend(svg, (LEFT, 44.0), 150.0, &meanings)?;
    let seconds = f64::from(run.scenario.seconds().max(1));
    for (at, series) in run.groups.iter().enumerate() {
        let bottom = TOP + PANEL * (at + 1) as f64;
        let panel = Panel::of(series, bottom, seconds);
        panel.axes(svg, series)?;
        panel.phases(svg, run)?;
        panel.line(svg, &series.mv, MV)?;
        panel.line(svg, &series.pv, PV)?;
        panel.line(svg, &series.sp, SP)?;
    }
    let middle = f64::midpoint(LEFT, WIDTH - RIGHT);
    svg::text(svg, (middle, height - 8.0), "middle", "seconds")?;
    svg::close(svg)
}

/// Position and scale of a group's panel.
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
        let title = format!("{}, quota {} ESU", series.group, series.quota);
        svg::heading(svg, (LEFT, self.top - 8.0), &title)?;
        let mut esu = self.least;
        while esu <= self.most + self.step / 2.0 {
            let label = ((esu * 1000.0).round() / 1000.0).to_string();
            svg::across(svg, (LEFT, right), self.y(esu), &label)?;
            esu += self.step;
        }
        let step = round_step(self.seconds / 8.0);
        let mut second = 0.0;
        while second <= self.seconds {
            svg::tick(svg, self.x(second), self.bottom, &second.to_string())?;
            second += step;
        }
        svg::axes(svg, [LEFT, self.top, right, self.bottom])?;
        svg::stroke(svg, (LEFT, quota), (right, quota), QUOTA)
    }

    /// Draws a vertical line wherever the load changes.
    fn phases(&self, svg: &mut String, run: &QuotaRun) -> fmt::Result {
        let mut second = 0.0;
        for phase in run.scenario.phases.iter().skip(1).zip(&run.scenario.phases).map(|(_, before)| before) {
            second += f64::from(phase.seconds);
            let x = self.x(second);
            svg::stroke(svg, (x, self.top), (x, self.bottom), PHASE)?;
        }
        Ok(())
    }

    fn line(&self, svg: &mut String, values: &[f64], look: Stroke) -> fmt::Result {
        // Draw about as many points as the picture has pixels.
        let every = (values.len() / 900).max(1);
        let point = |(second, value): (usize, &f64)| (self.x(second as f64), self.y(*value));
        svg::path(svg, values.iter().enumerate().step_by(every).map(point), look)
    }
}
