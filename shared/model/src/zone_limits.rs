//! How much of the store each trust zone may have.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{ParseIdError, Zone};

/// File systems store a file in blocks of this many bytes.
const BLOCK: u64 = 4096;

/// The most that a zone may have in the store; 0: no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ZoneLimit {
    /// The bytes of its blobs, each rounded up to 4 KiB.
    pub bytes_max: u64,
    pub blobs_max: u64,
}

/// Blobs that a zone has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ZoneUse {
    pub blobs: u64,
    /// Each blob is rounded up to 4 KiB.
    pub bytes: u64,
}

impl ZoneUse {
    pub const NOTHING: Self = Self { blobs: 0, bytes: 0 };

    /// What a blob of `size` bytes counts.
    pub fn of_blob(size: u64) -> Self {
        Self { blobs: 1, bytes: size.max(1).checked_next_multiple_of(BLOCK).unwrap_or(u64::MAX) }
    }

    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { blobs: self.blobs.saturating_add(other.blobs), bytes: self.bytes.saturating_add(other.bytes) }
    }

    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self { blobs: self.blobs.saturating_sub(other.blobs), bytes: self.bytes.saturating_sub(other.bytes) }
    }
}

impl ZoneLimit {
    /// What `used` has above this percentage of the limit.
    pub fn excess(self, used: ZoneUse, percent: u64) -> ZoneUse {
        let above = |used: u64, max: u64| if max == 0 { 0 } else { used.saturating_sub(share(max, percent)) };
        ZoneUse { blobs: above(used.blobs, self.blobs_max), bytes: above(used.bytes, self.bytes_max) }
    }

    /// Whether `used` has reached the limit of bytes or that of blobs.
    pub fn is_reached(self, used: ZoneUse) -> bool {
        let reaches = |used: u64, max: u64| max > 0 && used >= max;
        reaches(used.blobs, self.blobs_max) || reaches(used.bytes, self.bytes_max)
    }

    /// The larger part of the limit that is used, in percent.
    pub fn percent(self, used: ZoneUse) -> u64 {
        let part = |used: u64, max: u64| used.saturating_mul(100).checked_div(max).unwrap_or(0);
        part(used.blobs, self.blobs_max).max(part(used.bytes, self.bytes_max))
    }
}

fn share(max: u64, percent: u64) -> u64 {
    u64::try_from(u128::from(max) * u128::from(percent) / 100).unwrap_or(u64::MAX)
}

/// The limits of all zones, as the setting `zone_limits` has them: by the name of the zone, or `*` for all that it does not name.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, ZoneLimit>", into = "BTreeMap<String, ZoneLimit>")]
pub struct ZoneLimits {
    named: BTreeMap<Zone, ZoneLimit>,
    others: Option<ZoneLimit>,
}

const OTHERS: &str = "*";

impl ZoneLimits {
    /// The limit of a zone, if it has one.
    pub fn of(&self, zone: &Zone) -> Option<ZoneLimit> {
        let limit = self.named.get(zone).copied().or(self.others);
        limit.filter(|limit| *limit != ZoneLimit::default())
    }

    pub fn is_empty(&self) -> bool {
        self.named.is_empty() && self.others.is_none()
    }

    /// The zones that are named.
    pub fn named(&self) -> impl Iterator<Item = &Zone> {
        self.named.keys()
    }
}

impl TryFrom<BTreeMap<String, ZoneLimit>> for ZoneLimits {
    type Error = ParseIdError;

    fn try_from(mut limits: BTreeMap<String, ZoneLimit>) -> Result<Self, ParseIdError> {
        let others = limits.remove(OTHERS);
        let named = limits.into_iter().map(|(name, limit)| Ok((name.parse()?, limit)));
        Ok(Self { named: named.collect::<Result<_, ParseIdError>>()?, others })
    }
}

impl From<ZoneLimits> for BTreeMap<String, ZoneLimit> {
    fn from(limits: ZoneLimits) -> Self {
        let named = limits.named.into_iter().map(|(zone, limit)| (zone.to_string(), limit));
        named.chain(limits.others.map(|limit| (OTHERS.to_owned(), limit))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blob_counts_with_the_blocks_of_its_file() {
        let bytes = |size| ZoneUse::of_blob(size).bytes;
        assert_eq!([bytes(0), bytes(1), bytes(4096), bytes(4097)], [4096, 4096, 4096, 8192]);
        assert_eq!(bytes(u64::MAX), u64::MAX);
    }

    #[test]
    fn both_limits_hold_and_0_is_none() {
        let limit = ZoneLimit { bytes_max: 100_000, blobs_max: 10 };
        let used = ZoneUse { blobs: 9, bytes: 99_000 };
        assert!(!limit.is_reached(used));
        assert_eq!(limit.excess(used, 80), ZoneUse { blobs: 1, bytes: 19_000 });
        assert_eq!(limit.percent(used), 99);
        assert!(limit.is_reached(ZoneUse { blobs: 10, bytes: 0 }));
        assert!(limit.is_reached(ZoneUse { blobs: 0, bytes: 100_000 }));
        let none = ZoneLimit::default();
        let most = ZoneUse { blobs: u64::MAX, bytes: u64::MAX };
        assert!(
            !none.is_reached(most) && none.excess(most, 80) == ZoneUse::NOTHING && none.percent(most) == 0
        );
    }

    #[test]
    fn a_zone_without_a_limit_of_its_own_has_that_of_the_others() {
        let text = r#"{"pulls":{"blobs_max":7},"free":{},"*":{"bytes_max":9}}"#;
        let limits: ZoneLimits = serde_json::from_str(text).unwrap();
        let of = |name: &str| limits.of(&name.parse().unwrap());
        assert_eq!(of("pulls"), Some(ZoneLimit { bytes_max: 0, blobs_max: 7 }));
        assert_eq!((of("free"), of("default").unwrap().bytes_max), (None, 9));
        assert_eq!(
            serde_json::from_str::<ZoneLimits>(&serde_json::to_string(&limits).unwrap()).unwrap(),
            limits
        );
        assert!(serde_json::from_str::<ZoneLimits>(r#"{"a b":{}}"#).is_err());
        assert!(serde_json::from_str::<ZoneLimits>(r#"{"a":{"bytes":1}}"#).is_err());
        assert_eq!(ZoneLimits::default().of(&Zone::default()), None);
    }
}
