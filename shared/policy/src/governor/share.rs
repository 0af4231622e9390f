//! Set points of one executor type: each group's own quota, and what it borrows of others' unused quota.

use invariant::{Present as _, impossible};

use super::ControlSettings;

/// What a group has and needs, in ESU.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim {
    /// Quota of the group itself.
    pub(super) quota: f64,
    /// Its use plus its waiting builds.
    pub(super) need: f64,
    /// ESU that it could use soon: more than `need`, because only the head of its queue is known.
    pub(super) wish: f64,
    /// ESU that it had borrowed before.
    pub(super) borrowed: f64,
    /// Estimate of its next build.
    pub(super) head: f64,
}

/// What a group gets, in ESU.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Share {
    /// Its quota, or its part of the capacity.
    pub(super) own: f64,
    /// ESU borrowed from other groups.
    pub(super) borrowed: f64,
    /// Maximum of the sum of the two.
    pub(super) limit: f64,
}

/// The shares of `claims`, in their order. The total lent never exceeds `borrow_share` of the unused quota.
pub(super) fn share(
    claims: &[Claim],
    capacity: Option<f64>,
    settings: &ControlSettings,
    seconds: f64,
) -> Vec<Share> {
    let quotas: f64 = claims.iter().map(|claim| claim.quota).sum();
    let scale = match capacity {
        Some(capacity) if quotas > capacity => capacity.max(0.0) / quotas,
        Some(_) | None => 1.0,
    };
    let most = settings.borrow_max * quotas * scale;
    let own = |claim: &Claim| claim.quota * scale;
    let pool: f64 =
        claims.iter().map(|claim| settings.borrow_share * (own(claim) - claim.need).max(0.0)).sum();
    let wants: Vec<(f64, f64)> = claims
        .iter()
        .map(|claim| {
            let wanted = if claim.need > own(claim) { claim.wish - own(claim) } else { 0.0 };
            // A group without a quota takes part as if it had a quota of one ESU.
            (claim.quota.max(1.0), wanted.clamp(0.0, most))
        })
        .collect();
    let step = 1.0 - (1.0 - settings.sp_smoothing).powf(seconds / settings.tick_seconds);
    let lend = |(claim, granted): (&Claim, f64)| {
        let more = granted - claim.borrowed;
        // A reduction is immediate, since the owner needs its quota; an increase is gradual, but enough
        // for the next build.
        let borrowed =
            if more <= 0.0 { granted } else { claim.borrowed + (step * more).max(more.min(claim.head)) };
        Share { own: own(claim), borrowed, limit: own(claim) + most }
    };
    claims.iter().zip(divide(pool, &wants)).map(lend).collect()
}

/// Divides `pool` by weight among `(weight, want)`. No entry gets more than it wants: the others share the rest.
fn divide(pool: f64, wants: &[(f64, f64)]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wants.len()).collect();
    let want_at =
        |place: &usize| wants.get(*place).copied().present_or((1.0, 0.0), "a want below their number");
    // The smallest want relative to its weight is satisfied first; the rest is then divided by weight.
    order.sort_by(|a, b| {
        let ((weight_a, want_a), (weight_b, want_b)) = (want_at(a), want_at(b));
        (want_a / weight_a).total_cmp(&(want_b / weight_b))
    });
    let mut weights: f64 = wants.iter().map(|(weight, _)| weight).sum();
    let mut left = pool.max(0.0);
    let mut granted = vec![0.0; wants.len()];
    for place in order {
        let (weight, want) = want_at(&place);
        let part = if weights > 0.0 { (left * weight / weights).min(want) } else { 0.0 };
        left = (left - part).max(0.0);
        weights -= weight;
        if let Some(grant) = granted.get_mut(place) {
            *grant = part;
        } else {
            impossible!("want {place} of {} has no grant", wants.len());
        }
    }
    granted
}
