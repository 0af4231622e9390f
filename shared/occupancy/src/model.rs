use crate::example::Example;
use crate::expand::{Layout, Resolved, Term, expand};
use crate::facts::{BuildFacts, Hashed};
use crate::number::to_index;
use crate::report::Report;
use crate::vocabulary::Vocabulary;

/// A fitted occupancy model: one linear model per executor type (section 4.3 of the paper).
#[derive(Debug, Clone, PartialEq)]
pub struct OccupancyModel {
    pub(crate) report: Report,
    pub(crate) vocabulary: Vocabulary,
    /// Models in the order of the report's types.
    pub(crate) types: Vec<TypeModel>,
}

/// The linear model of one executor type.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TypeModel {
    pub(crate) crosses: Vec<Resolved>,
    pub(crate) layout: Layout,
    /// Weights as fractions of `scale`.
    pub(crate) weights: Vec<f32>,
    /// Mean ESU of the builds learned from.
    pub(crate) scale: f32,
    /// Largest prediction in ESU: twice the largest value seen.
    pub(crate) ceiling: f32,
}

impl TypeModel {
    /// The ESU predicted for these terms: finite and not negative.
    pub(crate) fn predict(&self, terms: &[Term]) -> f64 {
        let sum: f64 = terms
            .iter()
            .filter_map(|term| {
                self.weights
                    .get(to_index(term.slot))
                    .map(|weight| f64::from(*weight) * f64::from(term.factor))
            })
            .sum();
        // NaN counts as 0.
        (sum * f64::from(self.scale)).max(0.0).min(f64::from(self.ceiling))
    }
}

/// Initial capacity for terms; enough for most builds.
const TERMS: usize = 1_024;

impl OccupancyModel {
    /// Predicts the ESU of `executor_type` that the build will occupy: finite and not negative. `None` if the model has
    /// too little data on that type; the default is then 1 ESU (section 5.3 of the paper).
    #[must_use]
    pub fn predict(&self, facts: &BuildFacts<'_>, executor_type: &str) -> Option<f64> {
        let place = self.report.types.iter().position(|part| part.executor_type == executor_type)?;
        let model = self.types.get(place)?;
        let (mut hashed, mut example, mut terms) =
            (Hashed::default(), Example::default(), Vec::with_capacity(TERMS));
        hashed.read(facts);
        example.look_up(&hashed, &self.vocabulary);
        expand(&example, &model.crosses, model.layout, &mut terms);
        Some(model.predict(&terms))
    }

    /// The report on how the model was trained and tested.
    #[must_use]
    pub const fn report(&self) -> &Report {
        &self.report
    }
}
