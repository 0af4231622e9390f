use super::*;
use crate::facts::BuildFacts;
use crate::fit::{FitOptions, fit};
use crate::{Crosses, Dataset};

fn model() -> OccupancyModel {
    let mut data = Dataset::new();
    for key in 0..2_000 {
        let targets = vec![format!("//a:{}", key % 10)];
        let facts = BuildFacts { command: "test", flags: &[], targets: &targets, group: "g", priority: "p" };
        data.push(&facts, [("x86", (key % 10) as f64)], key);
    }
    fit(&data, &Crosses::default(), &FitOptions::new(1, 0))
}

#[test]
fn weights_and_errors_that_are_no_numbers_are_refused() {
    let refusal = |change: &dyn Fn(&mut OccupancyModel)| {
        let mut model = model();
        change(&mut model);
        OccupancyModel::decode(&model.encode()).err()
    };
    assert_eq!(refusal(&|_| ()), None);
    let not_finite = |what| Some(DecodeError::NotFinite { what });
    assert_eq!(refusal(&|model| model.types[0].weights[3] = f32::NAN), not_finite("weight"));
    assert_eq!(refusal(&|model| model.types[0].weights[3] = f32::INFINITY), not_finite("weight"));
    assert_eq!(refusal(&|model| model.types[0].scale = f32::NAN), not_finite("scale"));
    assert_eq!(refusal(&|model| model.types[0].ceiling = f32::INFINITY), not_finite("ceiling"));
    let error = refusal(&|model| {
        if let Some(test) = &mut model.report.types[0].test {
            test.mean_absolute = f64::NAN;
        }
    });
    assert_eq!(error, not_finite("test error"));
}

#[test]
fn contents_that_do_not_fit_together_are_refused() {
    let mut fewer = model();
    fewer.types.clear();
    let what = "number of executor types";
    assert_eq!(OccupancyModel::decode(&fewer.encode()).err(), Some(DecodeError::Wrong { what }));
    let mut more = model();
    more.types[0].weights.push(1.0);
    let what = "number of weights";
    assert_eq!(OccupancyModel::decode(&more.encode()).err(), Some(DecodeError::Wrong { what }));
    let mut larger = model();
    larger.types[0].layout.bits = 25;
    let what = "number of buckets";
    assert_eq!(OccupancyModel::decode(&larger.encode()).err(), Some(DecodeError::Wrong { what }));
}

#[test]
fn a_small_model_has_learned_what_its_targets_cost() {
    let model = model();
    for cost in 0..10 {
        let targets = vec![format!("//a:{cost}")];
        let facts = BuildFacts { command: "test", flags: &[], targets: &targets, group: "g", priority: "p" };
        let esu = model.predict(&facts, "x86").unwrap();
        assert!((esu - f64::from(cost)).abs() < 0.5, "{esu} instead of {cost}");
    }
}
