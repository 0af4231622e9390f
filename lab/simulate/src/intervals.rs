//! Charts of measured values with their intervals.

use plotters::{
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

use crate::plot::{Area, BLUE, FONT, GREY, PlotError, grid, picture, rows};

/// Height of a row of a chart, and of its title and axis.
const ROW: usize = 26;
const REST: usize = 70;

/// A measured value with its interval.
#[derive(Debug, Clone)]
pub struct IntervalRow {
    /// What was measured, in a word or two.
    pub name: String,
    /// Lower end of the interval.
    pub low: f64,
    /// The value itself, such as a median.
    pub value: f64,
    /// Upper end of the interval.
    pub high: f64,
}

/// Values that are compared with each other.
#[derive(Debug, Clone)]
pub struct IntervalChart {
    /// What the values are compared for.
    pub title: String,
    /// Name and unit of the values.
    pub axis: String,
    /// The values from top to bottom.
    pub rows: Vec<IntervalRow>,
}

/// Draws a point for each value and a line for its interval: one chart for each comparison. `interval` says what the lines are.
pub fn plot_intervals(title: &str, interval: &str, charts: &[IntervalChart]) -> String {
    let most = charts.iter().map(|chart| chart.rows.len()).max().unwrap_or_default();
    let height = u32::try_from(REST + ROW * most).unwrap_or(u32::MAX / 1000);
    picture(title, &[(BLUE, interval)], (rows(charts.len()), height), |area| {
        grid(area, charts, |area, chart| chart.draw(area))
    })
}

impl IntervalChart {
    /// The range of the axis: from 0, or around values that are close to each other.
    fn range(&self) -> (f64, f64) {
        let most = self.rows.iter().map(|row| row.high).fold(1e-9, f64::max);
        let least = self.rows.iter().map(|row| row.low).fold(most, f64::min);
        let room = 0.1 * (most - least);
        if least > most / 2.0 { (least - room, most + room.max(1e-3 * most)) } else { (0.0, 1.1 * most) }
    }

    fn draw(&self, area: &Area<'_>) -> Result<(), PlotError> {
        let (least, most) = self.range();
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, FONT)
            .margin(6)
            .margin_left(130)
            .margin_right(16)
            .x_label_area_size(40)
            .build_cartesian_2d(least..most, 0.0_f64..self.rows.len().max(1) as f64)?;
        chart.configure_mesh().disable_y_mesh().disable_y_axis().x_labels(4).x_desc(&self.axis).draw()?;
        let plot = chart.plotting_area();
        let style = TextStyle::from(FONT).pos(Pos::new(HPos::Right, VPos::Center));
        for (number, row) in (0_u32..).zip(self.rows.iter().rev()) {
            let middle = f64::from(number) + 0.5;
            plot.draw(&PathElement::new(vec![(least, middle), (most, middle)], GREY.mix(0.3)))?;
            let interval = vec![(row.low, middle), (row.high, middle)];
            plot.draw(&PathElement::new(interval, BLUE.stroke_width(4)))?;
            plot.draw(&Circle::new((row.value, middle), 5, BLUE.filled()))?;
            plot.draw(&Text::new(format!("{} ", row.name), (least, middle), style.clone()))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(values: &[(f64, f64, f64)]) -> IntervalChart {
        let row = |(number, (low, value, high)): (usize, &(f64, f64, f64))| IntervalRow {
            name: format!("row {number}"),
            low: *low,
            value: *value,
            high: *high,
        };
        let rows = values.iter().enumerate().map(row).collect();
        IntervalChart { title: "a comparison".to_owned(), axis: "ms".to_owned(), rows }
    }

    #[test]
    fn every_value_has_a_point_a_line_and_its_name() {
        let charts = [chart(&[(60.0, 61.0, 62.0), (63.0, 64.0, 66.0)]), chart(&[(1.0, 2.0, 500.0)])];
        let svg = plot_intervals("Times", "95 % interval", &charts);
        assert!(svg.starts_with("<svg") && svg.contains("Times") && svg.contains("95 % interval"), "{svg}");
        assert_eq!(svg.matches("<circle").count(), 3, "{svg}");
        assert_eq!((svg.matches("row 0").count(), svg.matches("row 1").count()), (2, 1));
    }

    #[test]
    fn the_axis_shows_what_differs() {
        let (least, most) = chart(&[(60.0, 61.0, 62.0), (63.0, 64.0, 66.0)]).range();
        assert!(least > 50.0 && least < 60.0 && most > 66.0 && most < 70.0, "{least} {most}");
        assert!(chart(&[(1.0, 2.0, 100.0)]).range().0 < 1e-9);
        for odd in [&[][..], &[(0.0, 0.0, 0.0)], &[(5.0, 5.0, 5.0)]] {
            let (least, most) = chart(odd).range();
            assert!(least < most && least.is_finite() && most.is_finite(), "{odd:?}: {least} {most}");
        }
    }
}
