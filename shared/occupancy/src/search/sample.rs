use crate::dataset::{Dataset, Label, TypeLabels};
use crate::example::Example;
use crate::fit::usual_targets;
use crate::hash::mix;
use crate::vocabulary::SlotTables;

/// One in this number of builds of a sample is held out.
const HELD_OUT: usize = 4;

/// A sample of the builds of one executor type, in random order, of which the last are held out.
pub(super) struct Sample<'a> {
    data: &'a Dataset,
    slots: &'a SlotTables,
    labels: Vec<Label>,
    /// Mean ESU of the sample.
    scale: f32,
    /// Mean number of targets, at least 1.
    pub(super) usual: f32,
}

impl<'a> Sample<'a> {
    /// Draws at most `most` of the builds to learn from.
    pub(super) fn draw(
        data: &'a Dataset,
        slots: &'a SlotTables,
        labels: &TypeLabels,
        most: usize,
        seed: u64,
    ) -> Self {
        let mut drawn = labels.train.clone();
        let seed = mix(seed);
        drawn.sort_by_cached_key(|label| mix(seed ^ u64::from(data.draw(label.row))));
        drawn.truncate(most);
        drawn.shrink_to_fit();
        let sum: f32 = drawn.iter().map(|label| label.esu).sum();
        let scale = (sum / drawn.len().max(1) as f32).max(1e-6);
        let usual = usual_targets(data, &drawn);
        Self { data, slots, labels: drawn, scale, usual }
    }

    pub(super) fn len(&self) -> usize {
        self.labels.len()
    }

    /// Number of builds learned from; the rest is held out.
    pub(super) fn learned(&self) -> usize {
        self.labels.len() - self.labels.len() / HELD_OUT
    }

    /// Calls `visit` with each build, its ESU as a fraction of the mean, and whether it is held out.
    pub(super) fn for_each(&self, mut visit: impl FnMut(usize, &Example, f32, bool)) {
        let mut example = Example::default();
        let learned = self.learned();
        for (place, label) in self.labels.iter().enumerate() {
            example.read(self.data.row(label.row), self.slots);
            visit(place, &example, label.esu / self.scale, place >= learned);
        }
    }
}
