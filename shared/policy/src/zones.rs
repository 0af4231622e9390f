//! Trust zones: whose results of actions and whose blobs a caller sees.

use std::{collections::BTreeMap, fmt, str::FromStr};

use model::{Group, ParseIdError, Sight, Zone, ZoneLimits};

/// The zones of a farm and their groups. Empty in a farm without zones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Zones {
    /// The zone whose results and blobs a zone also sees.
    parents: BTreeMap<Zone, Option<Zone>>,
    groups: BTreeMap<Group, Zone>,
}

/// A text that describes no zones.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid zone {zone:?}: {wanted}")]
pub struct ParseZoneError {
    zone: String,
    wanted: String,
}

/// The zones that a caller reaches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ZoneReach {
    /// All blobs, and the results of any zone.
    All,
    Only(Zone),
}

impl fmt::Display for ZoneReach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Only(zone) => zone.fmt(f),
        }
    }
}

/// A caller asked for a zone that is not its own.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoZone {
    #[error("the caller has no right to zone {asked}; its zone: {own}")]
    Foreign { asked: Zone, own: Zone },
    #[error("the farm has no zone {asked}")]
    Unknown { asked: Zone },
}

impl Zones {
    /// Whether the farm has zones.
    pub fn are_used(&self) -> bool {
        !self.parents.is_empty()
    }

    /// The zone of a group; `None` in a farm without zones.
    pub fn of_group(&self, group: &Group) -> Option<Zone> {
        self.are_used().then(|| self.groups.get(group).cloned().unwrap_or_default())
    }

    /// Whether the farm has this zone.
    pub fn has(&self, zone: &Zone) -> bool {
        self.are_used()
            && (zone.is_default() || *zone == Zone::of_images() || self.parents.contains_key(zone))
    }

    /// Fails if a limit is for a zone that the farm does not have.
    pub fn check_limits(&self, limits: &ZoneLimits) -> Result<(), ParseZoneError> {
        match limits.named().find(|zone| !self.has(zone)) {
            Some(zone) => {
                let wanted = "zone_limits names it, and the setting zones does not have it".to_owned();
                Err(ParseZoneError { zone: zone.to_string(), wanted })
            }
            None => Ok(()),
        }
    }

    /// What a zone sees by itself: its own results and blobs, and those of its parent.
    pub fn sight(&self, zone: Zone) -> Sight {
        let parent = self.parents.get(&zone).cloned().flatten();
        Sight { zone, parent, is_bounded: true }
    }

    /// What builds and actions of a group see; `None` in a farm without zones.
    pub fn sight_of_group(&self, group: &Group) -> Option<Sight> {
        self.of_group(group).map(|zone| self.sight(zone))
    }

    /// What images see, of which anyone may name the blobs: those that came from a registry, or are in an environment. Otherwise an
    /// image whose author names the blob of another zone as a layer would let an action read it.
    pub fn sight_of_images(&self) -> Option<Sight> {
        self.are_used().then(|| self.sight(Zone::of_images()))
    }

    /// What a call sees; `None` in a farm without zones. Callers that reach all zones may choose one, for which they act;
    /// else their call is for `group`, and sees all blobs.
    ///
    /// # Errors
    ///
    /// Fails if the call asks for a zone that its caller does not reach.
    pub fn sight_of_call(
        &self,
        reach: &ZoneReach,
        asked: Option<&Zone>,
        group: Option<&Group>,
    ) -> Result<Option<Sight>, NoZone> {
        if !self.are_used() {
            return Ok(None);
        }
        if let Some(asked) = asked.filter(|asked| !self.has(asked)) {
            return Err(NoZone::Unknown { asked: asked.clone() });
        }
        match (reach, asked) {
            (ZoneReach::Only(own), Some(asked)) if own != asked => {
                Err(NoZone::Foreign { asked: asked.clone(), own: own.clone() })
            }
            (ZoneReach::Only(zone), _) | (ZoneReach::All, Some(zone)) => Ok(Some(self.sight(zone.clone()))),
            (ZoneReach::All, None) => {
                let zone = group.and_then(|group| self.of_group(group)).unwrap_or_default();
                Ok(Some(Sight { is_bounded: false, ..self.sight(zone) }))
            }
        }
    }

    /// The zone that follows from the groups of a caller.
    ///
    /// # Errors
    ///
    /// Fails if they are in several zones, or not in the zone that was chosen for it: what it runs in one zone would
    /// read from and write to another.
    pub fn reach_of(
        &self,
        chosen: Option<&Zone>,
        groups: &std::collections::BTreeSet<Group>,
    ) -> Result<ZoneReach, String> {
        if let Some(chosen) = chosen.filter(|chosen| !self.has(chosen)) {
            return Err(format!("zone {chosen:?} is not in the setting zones", chosen = chosen.as_str()));
        }
        let mut zone = chosen.cloned();
        for group in groups {
            let of_group = self.of_group(group).unwrap_or_default();
            match &zone {
                Some(zone) if *zone != of_group => {
                    return Err(format!(
                        "group {group} is in zone {of_group}, not in {zone}: make a rule for each zone"
                    ));
                }
                Some(_) => {}
                None => zone = Some(of_group),
            }
        }
        Ok(ZoneReach::Only(zone.unwrap_or_default()))
    }
}

impl FromStr for Zones {
    type Err = ParseZoneError;

    /// Reads `ZONE[<PARENT]=GROUP[,GROUP...]`, several separated by spaces.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut zones = Self::default();
        for word in text.split_whitespace() {
            let wrong = |wanted: String| ParseZoneError { zone: word.to_owned(), wanted };
            zones.add(word).map_err(wrong)?;
        }
        for (zone, parent) in &zones.parents {
            let wrong = |wanted: String| ParseZoneError { zone: zone.to_string(), wanted };
            match parent {
                Some(parent) if parent == zone => return Err(wrong("it reads from itself".to_owned())),
                Some(parent) if !zones.has(parent) => {
                    return Err(wrong(format!("it reads from {parent}, which is not among the zones")));
                }
                Some(_) | None => {}
            }
        }
        Ok(zones)
    }
}

impl Zones {
    fn add(&mut self, word: &str) -> Result<(), String> {
        let id = |error: ParseIdError| error.to_string();
        let (name, groups) =
            word.split_once('=').ok_or("expected ZONE=GROUP[,GROUP...] or ZONE<PARENT=GROUP[,GROUP...]")?;
        let (name, parent) = match name.split_once('<') {
            Some((name, parent)) => (name, Some(parent.parse().map_err(id)?)),
            None => (name, None),
        };
        let zone: Zone = name.parse().map_err(id)?;
        if zone.is_default() {
            return Err("zone default has the groups that no other zone has".to_owned());
        }
        if zone == Zone::of_images() {
            return Err("zone images has the blobs of container images".to_owned());
        }
        for group in groups.split(',') {
            let group: Group = group.parse().map_err(id)?;
            if let Some(other) = self.groups.insert(group.clone(), zone.clone()) {
                return Err(format!("group {group} is already in zone {other}"));
            }
        }
        if self.parents.insert(zone, parent).is_some() {
            return Err("this zone is described twice".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn zone(name: &str) -> Zone {
        name.parse().unwrap()
    }

    fn group(name: &str) -> Group {
        name.parse().unwrap()
    }

    fn zones() -> Zones {
        "main=web,app pulls<main=web-pulls trial<default=trial".parse().unwrap()
    }

    #[test]
    fn a_farm_without_zones_bounds_nothing() {
        let none: Zones = " ".parse().unwrap();
        assert!(!none.are_used());
        assert_eq!(none.of_group(&group("web")), None);
        let asked = zone("main");
        assert_eq!(none.sight_of_call(&ZoneReach::Only(zone("x")), Some(&asked), None), Ok(None));
    }

    #[test]
    fn a_zone_sees_its_parent_and_no_other() {
        let zones = zones();
        let pulls = zones.sight_of_group(&group("web-pulls")).unwrap();
        assert_eq!(pulls, Sight { zone: zone("pulls"), parent: Some(zone("main")), is_bounded: true });
        assert_eq!(zones.sight_of_group(&group("web")).unwrap().parent, None);
        assert_eq!(zones.of_group(&group("other")), Some(Zone::default()));
        assert_eq!(zones.sight(zone("trial")).parent, Some(Zone::default()));
    }

    #[test]
    fn only_callers_of_all_zones_choose_one() {
        let zones = zones();
        let (own, foreign) = (ZoneReach::Only(zone("pulls")), zone("main"));
        let seen = |reach: &ZoneReach, asked: Option<&Zone>, group: Option<&Group>| {
            zones.sight_of_call(reach, asked, group).map(Option::unwrap)
        };
        assert_eq!(seen(&own, None, Some(&group("web"))).unwrap().zone, zone("pulls"));
        assert_eq!(seen(&own, Some(&zone("pulls")), None).unwrap().zone, zone("pulls"));
        assert!(matches!(seen(&own, Some(&foreign), None), Err(NoZone::Foreign { .. })));
        assert!(matches!(seen(&ZoneReach::All, Some(&zone("none")), None), Err(NoZone::Unknown { .. })));
        assert!(seen(&ZoneReach::All, Some(&foreign), None).unwrap().is_bounded);
        let of_farm = seen(&ZoneReach::All, None, Some(&group("web-pulls"))).unwrap();
        assert_eq!((of_farm.zone, of_farm.is_bounded), (zone("pulls"), false));
    }

    #[test]
    fn the_zone_of_a_rule_has_all_its_groups() {
        let zones = zones();
        let reach = |chosen: Option<&str>, groups: &[&str]| {
            let groups: BTreeSet<Group> = groups.iter().map(|name| group(name)).collect();
            zones.reach_of(chosen.map(zone).as_ref(), &groups)
        };
        assert_eq!(reach(None, &["web", "app"]), Ok(ZoneReach::Only(zone("main"))));
        assert_eq!(reach(None, &[]), Ok(ZoneReach::Only(Zone::default())));
        assert_eq!(reach(Some("pulls"), &[]), Ok(ZoneReach::Only(zone("pulls"))));
        assert!(reach(Some("pulls"), &["web"]).unwrap_err().contains("group web is in zone main"));
        assert!(reach(None, &["web", "web-pulls"]).is_err());
        assert!(reach(Some("nowhere"), &[]).unwrap_err().contains("setting zones"));
    }

    #[test]
    fn a_limit_is_for_a_zone_of_the_farm() {
        let check = |name: &str| {
            let limits = BTreeMap::from([(name.to_owned(), model::ZoneLimit { bytes_max: 9, blobs_max: 0 })]);
            zones().check_limits(&ZoneLimits::try_from(limits).unwrap())
        };
        for name in ["*", "main", "default", "images"] {
            assert_eq!(check(name), Ok(()), "{name}");
        }
        assert!(check("mian").unwrap_err().to_string().contains("the setting zones does not have it"));
    }

    #[test]
    fn texts_that_describe_no_zones_are_refused() {
        for (text, wanted) in [
            ("main", "expected ZONE="),
            ("main=", "group"),
            ("a b=c", "expected ZONE="),
            ("a!=c", "zone"),
            ("default=web", "no other zone"),
            ("images=web", "container images"),
            ("a=web b=web", "already in zone a"),
            ("a=web a=app", "twice"),
            ("a<a=web", "itself"),
            ("a<b=web", "not among the zones"),
        ] {
            let error = text.parse::<Zones>().unwrap_err().to_string();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn no_call_of_a_bounded_caller_leaves_its_zone(own in 0..4_usize, asked in proptest::option::of(0..4_usize), of in 0..4_usize) {
            let zones = zones();
            let names = ["main", "pulls", "trial", "default"].map(zone);
            let groups = ["web", "web-pulls", "trial", "other"].map(group);
            let reach = ZoneReach::Only(names[own].clone());
            let asked = asked.map(|at| names[at].clone());
            if let Ok(sight) = zones.sight_of_call(&reach, asked.as_ref(), Some(&groups[of])) {
                let sight = sight.unwrap();
                prop_assert!(sight.is_bounded);
                prop_assert_eq!(sight, zones.sight(names[own].clone()));
            } else {
                prop_assert_ne!(asked, Some(names[own].clone()));
            }
        }
    }
}
