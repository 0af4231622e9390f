//! Which traces are exported whatever their outcome.

use crate::trace_context::{SpanContext, TraceId};

/// The decision at the start of a trace, as `OTEL_TRACES_SAMPLER` names it. A trace that it does not select is still
/// exported if it turns out to be worth it: see [`keep`](crate::spans::keep).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sampler {
    /// Selects this share of traces, by their ids: every process decides the same.
    Ratio(f64),
    /// Selects what the publisher selected; of traces without a publisher's decision, this share.
    ParentBased(f64),
}

impl Sampler {
    /// Reads a sampler from its name and argument in the OpenTelemetry specification; none if it is unknown.
    pub(crate) fn parse(name: &str, argument: Option<&str>) -> Option<Self> {
        let ratio = || argument.and_then(|text| text.parse().ok()).filter(|it| (0.0..=1.0).contains(it));
        Some(match name {
            "always_on" => Self::Ratio(1.0),
            "traceidratio" => Self::Ratio(ratio().unwrap_or(1.0)),
            "parentbased_always_on" => Self::ParentBased(1.0),
            "parentbased_always_off" => Self::ParentBased(0.0),
            "parentbased_traceidratio" => Self::ParentBased(ratio().unwrap_or(1.0)),
            _ => return None,
        })
    }

    /// Whether the trace is selected at its start. `parent` is the publisher's context, if there is one.
    pub(crate) fn selects(self, trace: TraceId, parent: Option<SpanContext>) -> bool {
        match (self, parent) {
            (Self::ParentBased(_), Some(parent)) => parent.sampled,
            (Self::Ratio(ratio) | Self::ParentBased(ratio), _) => {
                // The low 63 bits, as the samplers of the OpenTelemetry SDKs use them.
                #[expect(clippy::cast_precision_loss, reason = "the share of traces needs no such precision")]
                let place = (trace.random_part() >> 1) as f64 / (1_u64 << 63) as f64;
                place < ratio
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Sampler, SpanContext, TraceId};

    fn trace(number: u64) -> TraceId {
        let mut bytes = [7; 16];
        bytes[8..].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
        TraceId::from_bytes(bytes)
    }

    #[test]
    fn a_ratio_selects_its_share() {
        for (ratio, range) in [(0.0, 0..=0), (0.25, 2_300..=2_700), (1.0, 10_000..=10_000)] {
            let selected = (0..10_000).filter(|it| Sampler::Ratio(ratio).selects(trace(*it), None)).count();
            assert!(range.contains(&selected), "{ratio}: {selected}");
        }
    }

    #[test]
    fn the_publisher_decides_if_it_is_asked() {
        let mut parent: SpanContext =
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00".parse().unwrap();
        assert!(!Sampler::ParentBased(1.0).selects(parent.trace, Some(parent)));
        assert!(Sampler::Ratio(1.0).selects(parent.trace, Some(parent)));
        parent.sampled = true;
        assert!(Sampler::ParentBased(0.0).selects(parent.trace, Some(parent)));
        assert!(!Sampler::Ratio(0.0).selects(parent.trace, Some(parent)));
    }

    #[test]
    fn names_are_those_of_the_specification() {
        assert_eq!(Sampler::parse("traceidratio", Some("0.1")), Some(Sampler::Ratio(0.1)));
        assert_eq!(Sampler::parse("parentbased_traceidratio", Some("7")), Some(Sampler::ParentBased(1.0)));
        assert_eq!(Sampler::parse("jaeger_remote", None), None);
    }
}
