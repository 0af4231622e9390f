//! Maps instance names to quota groups, and defines what their clients may do.

use std::{fmt, ops::RangeInclusive, str::FromStr};

use invariant::Present as _;
use model::{Group, ParseIdError, PoolName};

/// Rights of the clients whose instance names match a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceRule {
    /// Pattern of the instance names.
    pub pattern: InstancePattern,
    /// Group of a client that does not ask for one.
    pub group: Group,
    /// Further groups that a client may ask for.
    pub others: OtherGroups,
    /// Priorities that they may use; other values are limited to this range. Lower means sooner.
    pub priorities: RangeInclusive<i32>,
    /// Whether clients may write what others trust: action-cache entries and pushed assets.
    pub writable: bool,
    /// Pool of actions that do not name one.
    pub pool: Option<PoolName>,
}

/// Pattern for instance names: one name, or all names below one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InstancePattern {
    /// Exactly one instance name.
    Exactly(String),
    /// `NAME/*`: all names that begin with `NAME/`. `*` alone: all names.
    Below(String),
}

/// Groups that a client may ask for in addition to its default group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OtherGroups {
    /// Only the groups in this list.
    Listed(Vec<Group>),
    /// Any valid group name.
    Any,
}

/// Rules for instance names; the first rule that matches applies. Written as words separated by spaces:
///
/// `PATTERN=GROUP[,GROUP...][;priority=MIN..MAX][;pool=POOL][;readonly]`
///
/// The pattern is an instance name (nothing means the empty name), `NAME/*` for all names below it, or `*`. The first
/// group is the default of a client that does not ask for one; it may ask for the further groups (`*` means any).
/// `pool` is for clients that cannot name a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceRules {
    rules: Vec<InstanceRule>,
}

/// Rights of one client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admitted {
    /// Quota group of the client.
    pub group: Group,
    /// Priority after the limits of the rule.
    pub priority: i32,
    /// Pool of actions that do not name one.
    pub pool: Option<PoolName>,
}

/// Why a client is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InstanceRefusal {
    /// No rule matches the instance name.
    #[error("unknown instance name {name:?}; known: {known}")]
    Unknown {
        name: String,
        /// The known patterns, separated by commas.
        known: String,
    },
    /// The rule for this instance name does not allow the group.
    #[error("instance name {name:?} may not use group {group:?}; allowed: {open}")]
    Group {
        group: String,
        name: String,
        /// The allowed groups, separated by commas.
        open: String,
    },
}

/// An instance rule that cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid instance rule {rule:?}: {wanted}")]
pub struct ParseRuleError {
    rule: String,
    wanted: String,
}

impl InstanceRules {
    /// The rules of a farm that configures none: the empty name, `main` and all names below `main`
    /// belong to group `default`.
    pub const DEFAULT: &str = "=default main=default main/*=default";

    /// The rule for instance name `name`.
    pub fn rule(&self, name: &str) -> Result<&InstanceRule, InstanceRefusal> {
        self.rules
            .iter()
            .find(|rule| rule.pattern.matches(name))
            .ok_or_else(|| InstanceRefusal::Unknown { name: name.to_owned(), known: self.known() })
    }

    /// Rights of a client of `name` that asks for `group` (if any) and `priority`.
    pub fn admit(&self, name: &str, group: Option<&str>, priority: i32) -> Result<Admitted, InstanceRefusal> {
        let rule = self.rule(name)?;
        let priority = priority.clamp(*rule.priorities.start(), *rule.priorities.end());
        let group = match group {
            None => rule.group.clone(),
            Some(asked) => rule.open(asked).ok_or_else(|| InstanceRefusal::Group {
                group: asked.chars().take(80).collect(),
                name: name.to_owned(),
                open: rule.groups(),
            })?,
        };
        Ok(Admitted { group, priority, pool: rule.pool.clone() })
    }

    fn known(&self) -> String {
        let patterns: Vec<String> = self.rules.iter().map(|rule| rule.pattern.to_string()).collect();
        patterns.join(", ")
    }
}

impl InstanceRule {
    fn open(&self, asked: &str) -> Option<Group> {
        let group: Group = asked.parse().ok()?;
        let open = group == self.group
            || match &self.others {
                OtherGroups::Any => true,
                OtherGroups::Listed(groups) => groups.contains(&group),
            };
        open.then_some(group)
    }

    fn groups(&self) -> String {
        let mut names = vec![self.group.to_string()];
        match &self.others {
            OtherGroups::Any => names.push("any other".to_owned()),
            OtherGroups::Listed(groups) => names.extend(groups.iter().map(Group::to_string)),
        }
        names.join(", ")
    }
}

impl InstancePattern {
    fn matches(&self, name: &str) -> bool {
        match self {
            Self::Exactly(own) => own == name,
            Self::Below(own) if own.is_empty() => true,
            Self::Below(own) => {
                name.strip_prefix(own.as_str()).is_some_and(|rest| rest.len() > 1 && rest.starts_with('/'))
            }
        }
    }
}

impl fmt::Display for InstancePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(name) if name.is_empty() => f.write_str("\"\" (none)"),
            Self::Exactly(name) => f.write_str(name),
            Self::Below(name) if name.is_empty() => f.write_str("*"),
            Self::Below(name) => write!(f, "{name}/*"),
        }
    }
}

impl FromStr for InstanceRules {
    type Err = ParseRuleError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let rules: Vec<InstanceRule> = text.split_whitespace().map(parse_rule).collect::<Result<_, _>>()?;
        if rules.is_empty() {
            return Err(ParseRuleError {
                rule: text.to_owned(),
                wanted: "expected at least one rule".into(),
            });
        }
        Ok(Self { rules })
    }
}

fn parse_rule(text: &str) -> Result<InstanceRule, ParseRuleError> {
    let wrong = |wanted: String| ParseRuleError { rule: text.to_owned(), wanted };
    let mut parts = text.split(';');
    let head = parts.next().present("the first part of a divided text");
    let (pattern, groups) = head.split_once('=').ok_or_else(|| wrong("expected PATTERN=GROUP".to_owned()))?;
    let pattern = parse_pattern(pattern).map_err(wrong)?;
    let mut groups = groups.split(',');
    let group = groups
        .next()
        .present("the first part of a divided text")
        .parse::<Group>()
        .map_err(|error| wrong(error.to_string()))?;
    let mut others = OtherGroups::Listed(Vec::new());
    for further in groups {
        if further == "*" {
            others = OtherGroups::Any;
        } else {
            let named = further.parse::<Group>().map_err(|error| wrong(error.to_string()))?;
            if let OtherGroups::Listed(list) = &mut others {
                list.push(named);
            }
        }
    }
    let priorities = i32::MIN..=i32::MAX;
    let mut rule = InstanceRule { pattern, group, others, priorities, writable: true, pool: None };
    for word in parts {
        match word.split_once('=') {
            Some(("priority", range)) => {
                rule.priorities = parse_range(range)
                    .ok_or_else(|| wrong(format!("priority={range}: expected priority=MIN..MAX")))?;
            }
            Some(("pool", name)) => {
                rule.pool = Some(name.parse().map_err(|error: ParseIdError| wrong(error.to_string()))?);
            }
            None if word == "readonly" => rule.writable = false,
            Some(_) | None => {
                let wanted = "priority=MIN..MAX, pool=POOL or readonly";
                return Err(wrong(format!("{word:?}: expected {wanted}")));
            }
        }
    }
    Ok(rule)
}

fn parse_pattern(text: &str) -> Result<InstancePattern, String> {
    let (name, below) = match text.strip_suffix("/*") {
        Some(name) => (name, true),
        None if text == "*" => ("", true),
        None => (text, false),
    };
    if name.contains('*')
        || name.starts_with('/')
        || name.ends_with('/')
        || (below && name.is_empty() && text != "*")
    {
        return Err(format!("{text:?} is not an instance name, NAME/* or *"));
    }
    let make = if below { InstancePattern::Below } else { InstancePattern::Exactly };
    Ok(make(name.to_owned()))
}

fn parse_range(text: &str) -> Option<RangeInclusive<i32>> {
    let (low, high) = text.split_once("..")?;
    let (low, high) = (low.parse().ok()?, high.parse().ok()?);
    (low <= high).then_some(low..=high)
}

#[cfg(test)]
mod tests;
