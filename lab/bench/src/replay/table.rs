//! The table of a replay: the farm beside the simulator.

use replay::Stream;
use serde_json::{Value, json};

use super::outcome::Outcome;
use crate::{
    figures::Figures,
    statistics::{Percentiles, mean},
};

const MS_PER_S: f64 = 1000.0;

/// One figure of all outcomes in seconds of the stream: of the farm, of the simulator, and of the simulator
/// without alternatives for any job.
struct Row {
    name: String,
    live: f64,
    simulated: f64,
    apart: f64,
}

impl Row {
    fn of(name: impl Into<String>, outcomes: [&Outcome; 3], value: impl Fn(&Outcome) -> f64) -> Self {
        let [live, simulated, apart] = outcomes.map(|outcome| value(outcome) / MS_PER_S);
        Self { name: name.into(), live, simulated, apart }
    }

    /// The farm relative to the simulator; `None` if there is nothing to compare.
    fn ratio(&self) -> Option<f64> {
        (self.simulated > 0.0).then(|| self.live / self.simulated)
    }

    fn line(&self) -> String {
        let Self { name, live, simulated, apart } = self;
        let ratio = self.ratio().map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}"));
        format!("{name:<70} {live:>9.2} {simulated:>9.2} {ratio:>7} {apart:>12.2}")
    }

    fn json(&self) -> Value {
        let Self { live, simulated, apart, .. } = self;
        json!({ "farm": live, "simulator": simulated, "ratio": self.ratio(), "one_kind_each": apart })
    }
}

/// Compares the farm with the simulator. `apart` is the outcome of the simulator if each job can run
/// on one kind of worker only.
pub(super) fn compare(stream: &Stream, live: &Outcome, simulated: &Outcome, apart: &Outcome) -> Figures {
    let outcomes = [live, simulated, apart];
    let of_waits = |outcome: &Outcome| Percentiles::of(&mut outcome.waits_ms.clone());
    let rows = [
        ("mean_wait_s", Row::of("mean wait", outcomes, |it| mean(it.waits_ms.iter().copied()))),
        ("wait_p50_s", Row::of("wait, p50", outcomes, |it| of_waits(it).p50)),
        ("wait_p99_s", Row::of("wait, p99", outcomes, |it| of_waits(it).p99)),
        ("makespan_s", Row::of("makespan", outcomes, |it| it.makespan_ms)),
    ];
    let mut figures = Figures::default();
    let (name, live, simulated, ratio, apart) =
        ("seconds of the stream", "farm", "simulator", "ratio", "one kind each");
    figures.lines.push(format!("{name:<70} {live:>9} {simulated:>9} {ratio:>7} {apart:>12}"));
    for (key, row) in rows {
        figures.lines.push(row.line());
        figures.field(key, row.json());
    }
    let mut sets = serde_json::Map::new();
    for (set, asked) in (0_u32..).zip(&stream.requirements) {
        let pairs: Vec<String> = asked.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let asked = if pairs.is_empty() { "no requirements".to_owned() } else { pairs.join(" ") };
        let of_set = |outcome: &Outcome| {
            let all = stream.jobs.iter().zip(&outcome.waits_ms);
            mean(all.filter(|(job, _)| job.requirements == set).map(|(_, wait)| *wait))
        };
        let row = Row::of(format!("mean wait, {asked}"), outcomes, of_set);
        figures.lines.push(row.line());
        sets.insert(asked, row.json());
    }
    figures.field("mean_wait_s_by_requirements", sets);
    figures
}

#[cfg(test)]
mod tests {
    use simulate::queues::{Reading, read_trace};

    use super::*;

    #[test]
    fn waits_are_compared_by_requirements_and_in_total() {
        let lines = "{\"arrival_ms\": 0, \"duration_ms\": 1, \"requirements\": {\"env\": \"c\"}}\n{\"arrival_ms\": 1, \"duration_ms\": 1}";
        let stream = read_trace("two", lines, 1, Reading::Text).unwrap();
        let outcome = |waits_ms: [f64; 2]| Outcome { waits_ms: waits_ms.to_vec(), makespan_ms: 9000.0 };
        let (live, simulated) = (outcome([3000.0, 0.0]), outcome([2000.0, 0.0]));
        let figures = compare(&stream, &live, &simulated, &outcome([4000.0, 0.0]));
        let of = |set: &str| figures.fields["mean_wait_s_by_requirements"][set].clone();
        assert_eq!(of("env=c"), json!({"farm": 3.0, "simulator": 2.0, "ratio": 1.5, "one_kind_each": 4.0}));
        assert_eq!(of("no requirements")["ratio"], Value::Null);
        assert_eq!(figures.fields["mean_wait_s"]["farm"], 1.5);
        assert_eq!(figures.fields["makespan_s"]["ratio"], 1.0);
    }
}
