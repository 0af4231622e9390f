//! Which rights a caller of a gateway has, and whether they allow a call.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    str::FromStr,
};

use model::{Group, Priority};

use crate::{
    limits::CallerLimits,
    zones::{NoZone, ZoneReach},
};

/// Something that a caller may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Right {
    /// See builds, their logs and their results.
    Read,
    /// Queue builds, and cancel those that the same caller queued.
    Submit,
    /// Cancel builds of any caller.
    Cancel,
    /// Run actions by the Remote Execution API, and cancel them.
    Execute,
    /// Read blobs and the action cache.
    CacheRead,
    /// Upload blobs to the store.
    BlobWrite,
    /// Write results into the action cache.
    CacheWrite,
    /// Change quotas, drain workers, approve environments, read metrics.
    Operate,
}

impl Right {
    pub const ALL: [Self; 8] = [
        Self::Read,
        Self::Submit,
        Self::Cancel,
        Self::Execute,
        Self::CacheRead,
        Self::BlobWrite,
        Self::CacheWrite,
        Self::Operate,
    ];

    /// The name in access rules and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Submit => "submit",
            Self::Cancel => "cancel",
            Self::Execute => "execute",
            Self::CacheRead => "cache-read",
            Self::BlobWrite => "blob-write",
            Self::CacheWrite => "cache-write",
            Self::Operate => "operate",
        }
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Right {
    type Err = UnknownRight;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|right| right.as_str() == text);
        found.ok_or_else(|| UnknownRight(text.chars().take(40).collect()))
    }
}

/// The text names no right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown right {0:?}; known: {known}", known = names(Right::ALL))]
pub struct UnknownRight(String);

fn names<T: fmt::Display>(all: impl IntoIterator<Item = T>) -> String {
    let all: Vec<String> = all.into_iter().map(|one| one.to_string()).collect();
    all.join(", ")
}

/// The quota groups to which the rights of a caller extend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reach {
    All,
    Listed(BTreeSet<Group>),
}

impl Reach {
    /// Whether a group is within it.
    pub fn has(&self, group: &Group) -> bool {
        match self {
            Self::All => true,
            Self::Listed(groups) => groups.contains(group),
        }
    }

    /// The group, if there is exactly one.
    pub fn only(&self) -> Option<&Group> {
        match self {
            Self::Listed(groups) if groups.len() == 1 => groups.first(),
            Self::Listed(_) | Self::All => None,
        }
    }
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Listed(groups) => f.write_str(&names(groups)),
        }
    }
}

/// What a caller may do, and in which groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rights {
    pub rights: BTreeSet<Right>,
    pub groups: Reach,
    /// Priorities of the builds that it may queue.
    pub priorities: BTreeSet<Priority>,
    /// Whose results of actions and blobs it sees. Has no meaning in a farm without zones.
    pub zone: ZoneReach,
    /// How much it may use of each gateway.
    pub limits: CallerLimits,
}

/// What a call needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need<'a> {
    /// Any caller that the farm knows may do it.
    Known,
    /// A right, whatever the group.
    Right(Right),
    /// A right in one group.
    In(Right, &'a Group),
    /// A right in all groups.
    InAll(Right),
    /// Figures of the whole farm: the right to read in all groups, or the right to operate.
    Farm,
}

/// Why a known caller may not do something.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    #[error("this needs the right {needed}; the caller has: {held}")]
    Right { needed: Right, held: String },
    /// The answer does not say whether there is such a group.
    #[error("the caller has no right to group {group}; its groups: {held}")]
    Group { group: Group, held: String },
    #[error("this needs the right {needed} in all groups; the groups of the caller: {held}")]
    AllGroups { needed: Right, held: String },
    #[error("the caller may not queue builds of priority {priority}; allowed: {held}")]
    Priority { priority: Priority, held: String },
    #[error(transparent)]
    Zone(#[from] NoZone),
}

impl Rights {
    /// The rights of everyone in a farm without access rules.
    pub fn all() -> Self {
        Self {
            rights: Right::ALL.into(),
            groups: Reach::All,
            priorities: Priority::ALL.into_iter().collect(),
            zone: ZoneReach::All,
            limits: CallerLimits::default(),
        }
    }

    /// Whether they suffice for a call.
    ///
    /// # Errors
    ///
    /// Returns what is missing.
    pub fn check(&self, need: Need<'_>) -> Result<(), Denied> {
        match need {
            Need::Known => Ok(()),
            Need::Right(right) => self.has(right),
            Need::In(right, group) => {
                self.has(right)?;
                if self.groups.has(group) {
                    return Ok(());
                }
                Err(Denied::Group { group: group.clone(), held: self.groups.to_string() })
            }
            Need::InAll(right) => {
                self.has(right)?;
                match &self.groups {
                    Reach::All => Ok(()),
                    listed @ Reach::Listed(_) => {
                        Err(Denied::AllGroups { needed: right, held: listed.to_string() })
                    }
                }
            }
            Need::Farm => {
                self.check(Need::Right(Right::Operate)).or_else(|_| self.check(Need::InAll(Right::Read)))
            }
        }
    }

    /// Whether they extend to executions of actions of a group.
    pub fn see_actions_of(&self, group: &Group) -> bool {
        [Right::Read, Right::Execute].into_iter().any(|right| self.check(Need::In(right, group)).is_ok())
    }

    /// Whether a build of this priority may be queued in the group.
    ///
    /// # Errors
    ///
    /// Returns what is missing.
    pub fn check_submit(&self, group: &Group, priority: Priority) -> Result<(), Denied> {
        self.check(Need::In(Right::Submit, group))?;
        self.check_priority(priority)
    }

    /// Whether they extend to builds of this priority.
    ///
    /// # Errors
    ///
    /// Returns what is missing.
    pub fn check_priority(&self, priority: Priority) -> Result<(), Denied> {
        if self.priorities.contains(&priority) {
            return Ok(());
        }
        Err(Denied::Priority { priority, held: names(&self.priorities) })
    }

    fn has(&self, right: Right) -> Result<(), Denied> {
        if self.rights.contains(&right) {
            return Ok(());
        }
        Err(Denied::Right { needed: right, held: names(&self.rights) })
    }
}

/// What a caller has proved about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proof {
    /// It has the API key of this name.
    Key { name: String },
    /// It has a token of this issuer, with these claims.
    Token { issuer: String, claims: BTreeMap<String, Vec<String>> },
    /// It has the private key of a certificate with these names.
    Certificate { names: Vec<String> },
    /// It has proved nothing.
    Nothing,
}

/// A value that a rule expects: exactly this text, or with `*` as its last character all texts that begin so.
///
/// A `*` elsewhere has no meaning: who may choose a part of a claim, for example the name of a branch, could then choose
/// it so that a rule for something else matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected(pub String);

impl Expected {
    fn matches(&self, value: &str) -> bool {
        match self.0.strip_suffix('*') {
            Some(beginning) => value.starts_with(beginning),
            None => value == self.0,
        }
    }
}

/// The callers that a rule is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Who {
    Key(Expected),
    /// Of this issuer, with a value for each of these claims.
    Token {
        issuer: String,
        claims: BTreeMap<String, Expected>,
    },
    Certificate(Expected),
    /// Also a caller that proves nothing.
    Anyone,
}

impl Who {
    /// The claims that it asks of tokens of an issuer.
    fn claims_of(&self, of: &str) -> impl Iterator<Item = (&String, &Expected)> {
        let claims = match self {
            Self::Token { issuer, claims } if issuer == of => Some(claims),
            Self::Token { .. } | Self::Key(_) | Self::Certificate(_) | Self::Anyone => None,
        };
        claims.into_iter().flatten()
    }

    fn matches(&self, proof: &Proof) -> bool {
        match (self, proof) {
            (Self::Anyone, _) => true,
            (Self::Key(expected), Proof::Key { name }) => expected.matches(name),
            (Self::Certificate(expected), Proof::Certificate { names }) => {
                names.iter().any(|name| expected.matches(name))
            }
            (Self::Token { issuer, claims }, Proof::Token { issuer: actual, claims: values }) => {
                issuer == actual
                    && claims.iter().all(|(name, expected)| {
                        values
                            .get(name)
                            .is_some_and(|values| values.iter().any(|value| expected.matches(value)))
                    })
            }
            (Self::Key(_) | Self::Certificate(_) | Self::Token { .. }, _) => false,
        }
    }
}

/// Rules from callers to rights. The first rule that matches applies.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AccessRules(pub Vec<(Who, Rights)>);

impl AccessRules {
    /// The rights of a caller; none if no rule is for it.
    pub fn rights(&self, proof: &Proof) -> Option<&Rights> {
        self.0.iter().find(|(who, _)| who.matches(proof)).map(|(_, rights)| rights)
    }

    /// Of the claims of a person, the values that some rule for this issuer matches: all that decides about their rights.
    pub fn relevant(
        &self,
        issuer: &str,
        claims: BTreeMap<String, Vec<String>>,
    ) -> BTreeMap<String, Vec<String>> {
        let expected: Vec<(&String, &Expected)> =
            self.0.iter().flat_map(|(who, _)| who.claims_of(issuer)).collect();
        let mut relevant = claims;
        relevant.retain(|name, values| {
            values.retain(|value| expected.iter().any(|(of, wanted)| *of == name && wanted.matches(value)));
            !values.is_empty()
        });
        relevant
    }
}

/// The group of an action whose client asks for `asked`, on an instance whose group is `of_instance`.
///
/// # Errors
///
/// Fails if the caller may run actions in none of them.
pub fn group_of_action(rights: &Rights, asked: Option<&Group>, of_instance: &Group) -> Result<Group, Denied> {
    let chosen = match (asked, rights.groups.only()) {
        (Some(asked), _) => asked,
        (None, Some(only)) => only,
        (None, None) => of_instance,
    };
    rights.check(Need::In(Right::Execute, chosen))?;
    Ok(chosen.clone())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn relevant_claims_give_the_same_rights(
            rules in prop::collection::vec((prop::bool::ANY, prop::collection::btree_map("[ab]", "[xy]{0,2}[*x]", 0..3)), 0..5),
            claims in prop::collection::btree_map("[abc]", prop::collection::vec("[xyz]{0,3}", 0..4), 0..4),
        ) {
            let rules = rules.into_iter().enumerate().map(|(number, (is_other, claims))| {
                let issuer = if is_other { "other" } else { "own" }.to_owned();
                let claims = claims.into_iter().map(|(name, value)| (name, Expected(value))).collect();
                let groups = Reach::Listed([group(&format!("g{number}"))].into());
                (Who::Token { issuer, claims }, Rights { groups, ..Rights::all() })
            });
            let rules = AccessRules(rules.collect());
            let proof = |claims| Proof::Token { issuer: "own".into(), claims };
            let relevant = rules.relevant("own", claims.clone());
            prop_assert!(relevant.iter().all(|(name, values)| values.iter().all(|it| claims[name].contains(it))));
            prop_assert!(!relevant.contains_key("c"));
            prop_assert_eq!(rules.rights(&proof(relevant)), rules.rights(&proof(claims)));
        }
    }

    fn group(name: &str) -> Group {
        name.parse().unwrap()
    }

    fn rights(of: &[Right], groups: &[&str], priorities: &[Priority]) -> Rights {
        Rights {
            rights: of.iter().copied().collect(),
            groups: Reach::Listed(groups.iter().map(|name| group(name)).collect()),
            priorities: priorities.iter().copied().collect(),
            zone: ZoneReach::All,
            limits: CallerLimits::default(),
        }
    }

    fn token(issuer: &str, claims: &[(&str, &str)]) -> Proof {
        let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (name, value) in claims {
            all.entry((*name).to_owned()).or_default().push((*value).to_owned());
        }
        Proof::Token { issuer: issuer.to_owned(), claims: all }
    }

    #[test]
    fn rights_end_at_the_groups_of_the_caller() {
        let held = rights(&[Right::Read, Right::Submit], &["web"], &[Priority::Batch]);
        let (web, ci) = (group("web"), group("ci"));
        assert_eq!(held.check(Need::In(Right::Read, &web)), Ok(()));
        assert!(held.check(Need::In(Right::Read, &ci)).is_err());
        assert!(held.check(Need::In(Right::Cancel, &web)).is_err());
        assert!(held.check(Need::InAll(Right::Read)).is_err());
        assert!(held.check(Need::Farm).is_err());
        assert_eq!(held.check_submit(&web, Priority::Batch), Ok(()));
        assert!(held.check_submit(&web, Priority::Emergency).is_err());
        assert!(held.check_submit(&ci, Priority::Batch).is_err());
    }

    #[test]
    fn the_first_rule_that_matches_applies() {
        let claims = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), Expected((*value).to_owned()))).collect()
        };
        let main = Who::Token {
            issuer: "github".into(),
            claims: claims(&[("repository", "acme/web"), ("ref", "refs/heads/main")]),
        };
        let any = Who::Token { issuer: "github".into(), claims: claims(&[("repository", "acme/*")]) };
        let (strong, weak) = (rights(&Right::ALL, &["web"], &[]), rights(&[Right::Read], &["web"], &[]));
        let rules = AccessRules(vec![(main, strong.clone()), (any, weak.clone())]);
        let of = |repository, branch| token("github", &[("repository", repository), ("ref", branch)]);
        assert_eq!(rules.rights(&of("acme/web", "refs/heads/main")), Some(&strong));
        assert_eq!(rules.rights(&of("acme/web", "refs/heads/main2")), Some(&weak));
        assert_eq!(rules.rights(&of("acme/app", "refs/heads/main")), Some(&weak));
        assert_eq!(rules.rights(&of("acmeevil/web", "refs/heads/main")), None);
        assert_eq!(rules.rights(&token("gitlab", &[("repository", "acme/web")])), None);
        assert_eq!(rules.rights(&token("github", &[])), None);
        assert_eq!(rules.rights(&Proof::Nothing), None);
    }

    #[test]
    fn only_anyone_is_for_those_who_prove_nothing() {
        for who in [Who::Key(Expected("*".into())), Who::Certificate(Expected("*".into()))] {
            assert_eq!(AccessRules(vec![(who, Rights::all())]).rights(&Proof::Nothing), None);
        }
        let rules = AccessRules(vec![(Who::Anyone, Rights::all())]);
        assert_eq!(rules.rights(&Proof::Nothing), Some(&Rights::all()));
    }

    #[test]
    fn an_action_runs_in_a_group_of_its_caller() {
        let execute = |groups: &[&str]| rights(&[Right::Execute], groups, &[]);
        let default = group("default");
        let chosen = |rights: &Rights, asked: Option<&str>| {
            group_of_action(rights, asked.map(group).as_ref(), &default).ok().map(|group| group.to_string())
        };
        assert_eq!(chosen(&execute(&["web"]), None).as_deref(), Some("web"));
        assert_eq!(chosen(&execute(&["web", "default"]), None).as_deref(), Some("default"));
        assert_eq!(chosen(&execute(&["web", "ci"]), None), None);
        assert_eq!(chosen(&execute(&["web", "ci"]), Some("ci")).as_deref(), Some("ci"));
        assert_eq!(chosen(&execute(&["web"]), Some("default")), None);
        assert_eq!(chosen(&rights(&[Right::Read], &["web"], &[]), Some("web")), None);
        assert_eq!(chosen(&Rights::all(), None).as_deref(), Some("default"));
    }

    proptest! {
        #[test]
        fn an_expected_value_without_a_star_matches_only_itself(value in "[a-z*/:]{0,12}", other in "[a-z*/:]{0,12}") {
            let has_star = value.ends_with('*');
            prop_assume!(!has_star);
            prop_assert_eq!(Expected(value.clone()).matches(&other), value == other);
            let (beginning, longer) = (format!("{value}*"), format!("{value}{other}"));
            let matches = Expected(beginning).matches(&longer);
            prop_assert!(matches);
        }

        #[test]
        fn fewer_rights_never_allow_more(held in proptest::collection::btree_set(0..8_usize, 0..8), drop in 0..8_usize, right in 0..8_usize) {
            let of = |chosen: &BTreeSet<usize>| rights(&chosen.iter().map(|at| Right::ALL[*at]).collect::<Vec<_>>(), &["web"], &[]);
            let mut less = held.clone();
            less.remove(&drop);
            let web = group("web");
            for need in [Need::Known, Need::Right(Right::ALL[right]), Need::In(Right::ALL[right], &web), Need::InAll(Right::ALL[right]), Need::Farm] {
                prop_assert!(of(&less).check(need).is_err() || of(&held).check(need).is_ok());
            }
        }
    }
}
