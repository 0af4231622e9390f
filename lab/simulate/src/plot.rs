//! Plots of simulated runs as SVG pictures.

use std::{io, ops::Range};

use plotters::{
    coord::Shift,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};
use replay::{BINS, WINDOWS, bin_from};

use crate::{
    GroupSeries, QuotaRun, ScalingRun,
    queues::{QueuePolicy, Tally},
    statistics::mean,
};

/// Width of a picture in pixels, like all lengths here.
const WIDTH: u32 = 960;
pub(crate) const FONT: (&str, i32) = ("sans-serif", 15);
/// Number of small charts in a row.
const COLUMNS: usize = 3;
/// Number of points of a line: about as many as the picture has pixels.
const POINTS: usize = 900;

// Readers with colour blindness can distinguish these colours (Okabe and Ito).
pub(crate) const BLUE: RGBColor = RGBColor(0x00, 0x72, 0xb2);
const ORANGE: RGBColor = RGBColor(0xd5, 0x5e, 0x00);
const GREEN: RGBColor = RGBColor(0x00, 0x9e, 0x73);
const YELLOW: RGBColor = RGBColor(0xe6, 0x9f, 0x00);
pub(crate) const GREY: RGBColor = RGBColor(0x88, 0x88, 0x88);
const LIGHT_GREY: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);

/// Colours of the lateness classes, from good to bad.
const LATENESS: [(RGBColor, &str); 4] = [
    (RGBColor(0x1b, 0x78, 0x37), "on time"),
    (RGBColor(0xa6, 0xdb, 0xa0), "delayed"),
    (RGBColor(0xf4, 0xa5, 0x82), "late"),
    (RGBColor(0xb2, 0x18, 0x2b), "extremely late"),
];
const QUEUES: [(RGBColor, &str); 2] = [(BLUE, "one queue"), (ORANGE, "a queue for each worker")];

pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(crate) type PlotError = DrawingAreaErrorKind<io::Error>;

/// Draws usage (PV), set point (SP) and builds to start (MV) of each group over time: one chart per group.
pub fn plot_quota(run: &QuotaRun) -> String {
    let meanings =
        [(BLUE, "in use (PV)"), (ORANGE, "set point (SP)"), (GREEN, "to start (MV)"), (GREY, "own quota")];
    let rows = run.groups.len();
    picture("Quota governor: ESU of each group over time", &meanings, (rows, 240), |area| {
        let charts = area.split_evenly((rows, 1));
        charts.iter().zip(&run.groups).try_for_each(|(area, series)| group_chart(run, series).draw(area))
    })
}

fn group_chart(run: &QuotaRun, series: &GroupSeries) -> LineChart {
    let end = f64::from(run.scenario.seconds().max(1));
    let all = || series.pv.iter().chain(&series.sp).chain(&series.mv).copied();
    let (least, most) = (all().fold(0.0, f64::min), 1.05 * all().fold(series.quota.max(1.0), f64::max));
    let mut lines: Vec<Line> = Vec::new();
    let mut second = 0.0;
    for phase in &run.scenario.phases {
        // A vertical line at each change of the load.
        second += f64::from(phase.seconds);
        lines.push((ShapeStyle::from(LIGHT_GREY), vec![(second, least), (second, most)]));
    }
    lines.push((ShapeStyle::from(GREY), vec![(0.0, series.quota), (end, series.quota)]));
    for (colour, width, values) in [(GREEN, 1, &series.mv), (BLUE, 2, &series.pv), (ORANGE, 2, &series.sp)] {
        let every = (values.len() / POINTS).max(1);
        let points = values.iter().enumerate().step_by(every);
        let points = points.map(|(second, value)| (second as f64, *value)).collect();
        lines.push((colour.stroke_width(width), points));
    }
    let title = format!("{}, quota {} ESU", series.group, series.quota);
    LineChart { title, x: ("seconds", 0.0..end), y: least..most, lines }
}

/// Draws the number of processes that accepted work over time, and the number needed to run everything at once.
pub fn plot_scaling(run: &ScalingRun) -> String {
    let bound = run.scenario.autoscale.max as f64;
    let highest = |of: &[u64]| of.iter().copied().max().unwrap_or(0) as f64;
    // The need may far exceed the largest allowed size: cut that part off.
    let most = 1.05 * highest(&run.processes).max(highest(&run.wanted).min(1.5 * bound)).max(1.0);
    let end = (run.processes.len().max(2) - 1) as f64 / 60.0;
    let every = run.processes.len().div_ceil(POINTS).max(1);
    let mut lines: Vec<Line> = Vec::new();
    for (colour, width, counts) in [(YELLOW, 1, &run.wanted), (BLUE, 2, &run.processes)] {
        // The maximum of every few minutes.
        let points = counts.chunks(every).enumerate();
        let points = points.map(|(at, some)| ((at * every) as f64 / 60.0, highest(some).min(most))).collect();
        lines.push((colour.stroke_width(width), points));
    }
    if bound <= most {
        lines.push((ShapeStyle::from(GREY), vec![(0.0, bound), (end, bound)]));
    }
    let meanings = [(BLUE, "live processes"), (YELLOW, "needed to run all at once"), (GREY, "maximum")];
    let chart = LineChart { title: String::new(), x: ("hours", 0.0..end), y: 0.0..most, lines };
    picture("Size of an autoscaled pool over time", &meanings, (1, 360), |area| chart.draw(area))
}

/// Draws the share of jobs in each lateness class over windows of arrival: one chart per policy, all seeds together.
/// All of `tallies` belong to one workload.
pub fn plot_lateness(tallies: &[&Tally]) -> String {
    let title = format!("{}: lateness by order of arrival, in twentieths of the jobs", workload(tallies));
    picture(&title, &LATENESS, (rows(tallies.len()), 180), |area| {
        grid(area, tallies, |area, tally| lateness_chart(area, tally))
    })
}

fn lateness_chart(area: &Area<'_>, tally: &Tally) -> Result<(), PlotError> {
    let on_time: u64 = tally.outcomes.iter().filter_map(|outcome| outcome.classes.first()).sum();
    let jobs: u64 = tally.outcomes.iter().map(|outcome| outcome.jobs).sum();
    let share = 100.0 * on_time as f64 / (jobs as f64).max(1.0);
    let mut chart = ChartBuilder::on(area)
        .caption(format!("{}: {share:.0} % on time", tally.policy), FONT)
        .margin(6)
        .y_label_area_size(50)
        .build_cartesian_2d(0.0_f64..WINDOWS as f64, 0.0_f64..1.0)?;
    let percent = |share: &f64| format!("{:.0} %", 100.0 * share);
    chart.configure_mesh().disable_mesh().y_labels(3).y_label_formatter(&percent).draw()?;
    for window in 0..WINDOWS {
        let count = |class: usize| -> u64 {
            let windows = tally.outcomes.iter().filter_map(|outcome| outcome.windows.get(window));
            windows.filter_map(|counts| counts.get(class)).sum()
        };
        let all = (0..LATENESS.len()).map(count).sum::<u64>().max(1) as f64;
        let (left, mut bottom) = (window as f64, 0.0);
        for (class, (colour, _)) in LATENESS.iter().enumerate() {
            let top = bottom + count(class) as f64 / all;
            let bar = [(left + 0.05, bottom), (left + 0.95, top)];
            chart.plotting_area().draw(&Rectangle::new(bar, colour.filled()))?;
            bottom = top;
        }
    }
    Ok(())
}

/// Draws the number of jobs by relative wait on logarithmic scales: one chart per policy, mean of all seeds. All of
/// `tallies` belong to one workload.
pub fn plot_waits(tallies: &[&Tally]) -> String {
    let title = format!("{}: number of jobs by wait as a multiple of the duration", workload(tallies));
    let counts = tallies.iter().flat_map(|tally| (0..BINS).map(move |bin| jobs_in(tally, bin)));
    let most = 10_f64.powf(counts.fold(10.0, f64::max).log10().ceil());
    picture(&title, &QUEUES, (rows(tallies.len()), 190), |area| {
        grid(area, tallies, |area, tally| wait_chart(area, tally, most))
    })
}

fn wait_chart(area: &Area<'_>, tally: &Tally, most: f64) -> Result<(), PlotError> {
    let p99 = mean(tally.outcomes.iter().filter_map(|outcome| outcome.relative_wait.get(2)).copied());
    // Waits of less than 0.01 are in the first bin.
    let decade = |bin: usize| bin_from(bin).log10();
    let mut chart = ChartBuilder::on(area)
        .caption(format!("{}: p99 {p99:.1}", tally.policy), FONT)
        .margin(6)
        .x_label_area_size(22)
        .y_label_area_size(50)
        .build_cartesian_2d(decade(0)..decade(BINS), (1.0_f64..most).log_scale())?;
    let power = |decade: &f64| ((10_f64.powf(*decade) * 100.0).round() / 100.0).to_string();
    let whole = |count: &f64| format!("{count:.0}");
    let mut mesh = chart.configure_mesh();
    mesh.disable_x_mesh().light_line_style(TRANSPARENT).x_labels(7);
    mesh.x_label_formatter(&power).y_label_formatter(&whole).draw()?;
    for bin in 0..BINS {
        // A logarithmic scale cannot show a mean of less than one job per run.
        let bar = [(decade(bin), 1.0), (decade(bin + 1) - 0.02, jobs_in(tally, bin).max(1.0))];
        chart.plotting_area().draw(&Rectangle::new(bar, colour(tally.policy).filled()))?;
    }
    Ok(())
}

/// Number of jobs in a bin of relative waits, mean of all seeds.
fn jobs_in(tally: &Tally, bin: usize) -> f64 {
    mean(tally.outcomes.iter().filter_map(|outcome| outcome.wait_bins.get(bin)).map(|count| *count as f64))
}

/// Draws makespans in seconds, one chart per workload: the mean of all seeds, and a line from least to greatest.
pub fn plot_makespans(tallies: &[Tally]) -> String {
    let mut workloads: Vec<Vec<&Tally>> = Vec::new();
    for tally in tallies {
        match workloads.last_mut() {
            Some(last) if workload(last) == tally.workload => last.push(tally),
            Some(_) | None => workloads.push(vec![tally]),
        }
    }
    let title = "Makespans: seconds until the last job ended";
    picture(title, &QUEUES, (rows(workloads.len()), 350), |area| {
        grid(area, &workloads, |area, tallies| makespan_chart(area, tallies))
    })
}

fn makespan_chart(area: &Area<'_>, tallies: &[&Tally]) -> Result<(), PlotError> {
    let spans: Vec<[f64; 3]> = tallies.iter().map(|tally| spans(tally)).collect();
    let most = spans.iter().map(|[_, _, most]| *most).fold(1e-9, f64::max);
    let chart = ChartBuilder::on(area)
        .caption(workload(tallies), FONT)
        .margin(6)
        .margin_left(130)
        .build_cartesian_2d(0.0_f64..1.4 * most, 0.0_f64..tallies.len() as f64)?;
    let text = |side| TextStyle::from(FONT).pos(Pos::new(side, VPos::Center));
    let plot = chart.plotting_area();
    let rows = (0_u32..).zip(tallies.iter().zip(&spans).rev());
    for (row, (tally, [least, mean, greatest])) in rows {
        let middle = f64::from(row) + 0.5;
        let bar = [(0.0, middle - 0.35), (*mean, middle + 0.35)];
        plot.draw(&Rectangle::new(bar, colour(tally.policy).filled()))?;
        plot.draw(&PathElement::new(vec![(*least, middle), (*greatest, middle)], BLACK))?;
        plot.draw(&Text::new(format!("{} ", tally.policy), (0.0, middle), text(HPos::Right)))?;
        plot.draw(&Text::new(format!("{mean:.0}"), (*greatest + 0.02 * most, middle), text(HPos::Left)))?;
    }
    Ok(())
}

/// The least, mean and greatest makespan of all seeds, in seconds.
fn spans(tally: &Tally) -> [f64; 3] {
    let all = || tally.outcomes.iter().map(|outcome| outcome.makespan_ms as f64 / 1000.0);
    [all().fold(f64::INFINITY, f64::min), mean(all()), all().fold(0.0, f64::max)]
}

fn workload<'a>(tallies: &[&'a Tally]) -> &'a str {
    tallies.first().map_or("", |tally| tally.workload.as_str())
}

fn colour(policy: QueuePolicy) -> RGBColor {
    match policy {
        QueuePolicy::One(_, _) | QueuePolicy::Levels(_) => BLUE,
        QueuePolicy::Each(_, _) => ORANGE,
    }
}

/// Style and points of a line.
type Line = (ShapeStyle, Vec<(f64, f64)>);

struct LineChart {
    title: String,
    /// Name and range of the horizontal axis.
    x: (&'static str, Range<f64>),
    y: Range<f64>,
    lines: Vec<Line>,
}

impl LineChart {
    fn draw(self, area: &Area<'_>) -> Result<(), PlotError> {
        let Self { title, x: (name, x), y, lines } = self;
        let mut chart = ChartBuilder::on(area)
            .caption(title, FONT)
            .margin(8)
            .x_label_area_size(40)
            .y_label_area_size(56)
            .build_cartesian_2d(x, y)?;
        chart.configure_mesh().disable_x_mesh().light_line_style(TRANSPARENT).x_desc(name).draw()?;
        for (style, points) in lines {
            chart.plotting_area().draw(&PathElement::new(points, style))?;
        }
        Ok(())
    }
}

/// Number of rows for this many small charts.
pub(crate) fn rows(charts: usize) -> usize {
    charts.div_ceil(COLUMNS).max(1)
}

/// Draws small charts in rows.
pub(crate) fn grid<T>(
    area: &Area<'_>,
    charts: &[T],
    draw: impl Fn(&Area<'_>, &T) -> Result<(), PlotError>,
) -> Result<(), PlotError> {
    let areas = area.split_evenly((rows(charts.len()), COLUMNS));
    areas.iter().zip(charts).try_for_each(|(area, chart)| draw(area, chart))
}

/// Draws a picture: title, meanings of the colours, and charts in rows of this number and height.
pub(crate) fn picture(
    title: &str,
    meanings: &[(RGBColor, &str)],
    (rows, height): (usize, u32),
    draw: impl FnOnce(&Area<'_>) -> Result<(), PlotError>,
) -> String {
    let Ok(rows) = u32::try_from(rows) else {
        unreachable!("{rows} rows of charts");
    };
    let mut svg = String::new();
    let root = SVGBackend::with_string(&mut svg, (WIDTH, 60 + rows * height)).into_drawing_area();
    let drawn = header(&root, title, meanings).and_then(|charts| draw(&charts)).and_then(|()| root.present());
    drop(root);
    if let Err(error) = drawn {
        unreachable!("drawing into a String failed: {error}");
    }
    svg
}

/// Draws the title and the meanings of the colours, and returns the area below them.
fn header<'a>(root: &Area<'a>, title: &str, meanings: &[(RGBColor, &str)]) -> Result<Area<'a>, PlotError> {
    root.fill(&WHITE)?;
    let (legend, charts) = root.titled(title, ("sans-serif", 20))?.split_vertically(26);
    for (x, (colour, meaning)) in (60_i32..).step_by(200).zip(meanings) {
        legend.draw(&Rectangle::new([(x, 6), (x + 14, 18)], colour.filled()))?;
        legend.draw_text(meaning, &TextStyle::from(FONT), (x + 20, 5))?;
    }
    Ok(charts)
}
