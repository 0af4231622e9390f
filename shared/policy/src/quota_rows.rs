//! The governor's decision in a bounded number of rows, for metrics.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use model::{Esu, ExecutorType, Governed, GovernorRecord, Group, Quota, Quotas};

/// Stands for all groups that have no row of their own.
pub const OTHER_GROUPS: &str = "other";

/// The decision about one group, or the sum of those about several, for one executor type.
#[derive(Debug, Clone, PartialEq)]
pub struct QuotaRow<'a> {
    /// Name of the group, or [`OTHER_GROUPS`].
    pub group: &'a str,
    pub kind: &'a ExecutorType,
    /// Of several groups, only the amounts of the metrics are added up.
    pub governed: Governed,
}

/// The decision by group and executor type. Of the groups with a quota of their own, the `most` with the largest quotas
/// have their own rows.
pub fn quota_rows<'a>(quotas: &Quotas, record: &'a GovernorRecord, most: usize) -> Vec<QuotaRow<'a>> {
    let own = largest(quotas, most);
    let mut rows: BTreeMap<(&str, &ExecutorType), Governed> = BTreeMap::new();
    for (group, kinds) in &record.groups {
        let name = if own.contains(group) { group.as_str() } else { OTHER_GROUPS };
        for (kind, governed) in kinds {
            add(rows.entry((name, kind)).or_default(), governed);
        }
    }
    rows.into_iter().map(|((group, kind), governed)| QuotaRow { group, kind, governed }).collect()
}

/// The groups with the largest quotas; of equal ones the first by name.
fn largest(quotas: &Quotas, most: usize) -> BTreeSet<&Group> {
    let total = |quota: &Quota| quota.esu.iter().map(|(_, amount)| amount).sum::<Esu>();
    let mut groups: Vec<(&Group, Esu)> =
        quotas.groups.iter().map(|(group, quota)| (group, total(quota))).collect();
    groups.sort_by_key(|(_, total)| Reverse(*total));
    groups.into_iter().take(most).map(|(group, _)| group).collect()
}

fn add(sum: &mut Governed, governed: &Governed) {
    let Governed { quota, pv, sp, mv, in_progress, target, waiting, .. } = *governed;
    sum.quota = sum.quota + quota;
    sum.pv = sum.pv + pv;
    sum.sp = sum.sp + sp;
    sum.mv = sum.mv + mv;
    sum.in_progress = sum.in_progress + in_progress;
    sum.target = sum.target + target;
    sum.waiting = sum.waiting + waiting;
}

#[cfg(test)]
mod tests {
    use model::Occupancy;

    use super::*;

    fn quota(units: f64) -> Quota {
        Quota { esu: Occupancy::of_each([ExecutorType::x86()], Esu::new(units).unwrap()) }
    }

    fn governed(units: f64) -> BTreeMap<ExecutorType, Governed> {
        let amount = Esu::new(units).unwrap();
        [(ExecutorType::x86(), Governed { quota: amount, mv: -amount, ..Governed::default() })].into()
    }

    #[test]
    fn the_largest_quotas_have_their_own_rows_and_all_others_are_added_up() {
        let group = |name: &str| name.parse::<Group>().unwrap();
        let quotas = Quotas {
            groups: [("a", 1.0), ("b", 3.0), ("c", 2.0)]
                .map(|(name, units)| (group(name), quota(units)))
                .into(),
            default: Some(quota(9.0)),
        };
        let decided = [("a", 1.0), ("b", 3.0), ("c", 2.0), ("without", 0.5)];
        let record = GovernorRecord {
            groups: decided.map(|(name, units)| (group(name), governed(units))).into(),
            ..GovernorRecord::default()
        };
        let rows = |most| {
            let rows = quota_rows(&quotas, &record, most);
            let row = |row: &QuotaRow<'_>| {
                (row.group.to_owned(), row.governed.quota.units(), row.governed.mv.units())
            };
            rows.iter().map(row).collect::<Vec<_>>()
        };
        let named = |name: &str, units: f64| (name.to_owned(), units, -units);
        assert_eq!(rows(2), [named("b", 3.0), named("c", 2.0), named("other", 1.5)]);
        assert_eq!(rows(50).len(), 4);
    }
}
