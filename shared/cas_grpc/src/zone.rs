//! The store as the caller of a call sees it.

use callers::{Caller, denied};
use cas::Cas;
use model::{Group, Zone};
use policy::zones::{ZoneReach, Zones};
use reapi::metadata::{GROUP, ZONE};
use tonic::{Status, metadata::MetadataMap};

/// The store as a call sees it: in a farm with trust zones, what the zone of its caller has. A caller that reaches all zones
/// sees everything, and results of the zone of `group`; or it acts for the zone, or for the group, that its headers name, and
/// sees what that has.
///
/// # Errors
///
/// Fails if the header names a zone that the caller does not reach.
pub fn seen_by_call(
    cas: &Cas,
    zones: &Zones,
    (caller, headers): (&Caller, &MetadataMap),
    group: Option<&Group>,
) -> Result<Cas, Status> {
    if !zones.are_used() {
        return Ok(cas.clone());
    }
    let asked = headers.get(ZONE).map(|value| value.to_str().unwrap_or_default().parse::<Zone>());
    let asked = asked.transpose();
    let asked = asked.map_err(|error| Status::invalid_argument(format!("header {ZONE}: {error}")))?;
    let asked = asked.or_else(|| {
        let group: Option<Group> = headers.get(GROUP)?.to_str().ok()?.parse().ok();
        // The group of another caller does not change its zone.
        (caller.rights.zone == ZoneReach::All).then(|| zones.of_group(&group?)).flatten()
    });
    let sight = caller.sight(zones, asked.as_ref(), group);
    let sight = sight.map_err(|refusal| denied(&refusal))?;
    Ok(sight.map_or_else(|| cas.clone(), |sight| cas.seen_by(&sight)))
}
