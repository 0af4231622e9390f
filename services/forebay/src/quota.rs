//! `forebay quota`

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use bus::QuotaOf;
use clap::{Args, Subcommand};
use comfy_table::Table;
use model::{Esu, ExecutorType, Group, GroupStanding, Occupancy, Quota, QuotaReply};
use settings::Settings;

use crate::{
    failure::{Failure, say},
    farm::Farm,
    globals::Globals,
    request::amount,
    stdout, style,
};

const EXAMPLES: &str = "\
Examples:
  forebay quota set ci x86=500 gpu=20
      group ci has 500 ESU of x86 and 20 of gpu of its own; at once, nothing is restarted
  forebay quota set --default x86=10
      so much has each group without a quota of its own
  forebay quota
      shows what each group uses and may use, and why the head of its queue waits

As long as no quota is set, no group is limited.";

/// Options of `forebay quota`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct QuotaArgs {
    #[command(subcommand)]
    command: Option<QuotaCommand>,
    /// Show it again after each decision of the governor
    #[arg(long)]
    watch: bool,
}

#[derive(Debug, Subcommand)]
enum QuotaCommand {
    /// Set the quota of a group
    Set {
        /// Of all groups without a quota of their own, in the place of GROUP
        #[arg(long)]
        default: bool,
        /// The group, then its ESU by executor type; a type that is not named is removed from its quota
        #[arg(required = true, value_names = ["GROUP", "TYPE=ESU"], num_args = 1..)]
        words: Vec<String>,
    },
    /// Take the quota of a group away
    Unset {
        /// The group
        #[arg(required_unless_present = "default", conflicts_with = "default")]
        group: Option<Group>,
        /// Of all groups without a quota of their own
        #[arg(long)]
        default: bool,
    },
    /// Set all quotas as a file says: {"GROUP": {"TYPE": ESU}}, in JSON or YAML; the name `*` is that of all others
    Load {
        /// The file; - is standard input
        file: PathBuf,
    },
}

/// Shows or sets quotas.
pub(crate) async fn run(
    args: QuotaArgs,
    globals: &Globals,
    settings: &Settings,
) -> Result<ExitCode, Failure> {
    // What is wrong is told before a farm is looked for.
    let change = match &args.command {
        None => None,
        Some(QuotaCommand::Set { default, words }) => Some(set(*default, words, settings)?),
        Some(QuotaCommand::Unset { group, .. }) => {
            Some(Changes { quotas: vec![(whose(group.clone()), None)], all: false })
        }
        Some(QuotaCommand::Load { file }) => Some(load(settings, file)?),
    };
    let farm = Farm::connect(globals, settings).await?;
    match change {
        None => show(&farm, globals, args.watch).await?,
        Some(change) => {
            make(&farm, change).await?;
            warn_of_sum(&farm, settings).await?;
            if globals.json {
                show(&farm, globals, false).await?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Quotas to set, or to take away.
struct Changes {
    quotas: Vec<(QuotaOf, Option<Quota>)>,
    /// Whether they are all that there are to be.
    all: bool,
}

fn whose(group: Option<Group>) -> QuotaOf {
    group.map_or(QuotaOf::Others, QuotaOf::Group)
}

fn name(of: &QuotaOf) -> String {
    match of {
        QuotaOf::Group(group) => format!("group {group}"),
        QuotaOf::Others => "each group without a quota of its own".to_owned(),
    }
}

/// `GROUP TYPE=ESU...`, without the group for the default.
fn set(default: bool, words: &[String], settings: &Settings) -> Result<Changes, Failure> {
    let (group, amounts) = match words.split_first() {
        Some((group, amounts)) if !default => {
            let group =
                group.parse().map_err(|error: model::ParseIdError| Failure::usage(error.to_string()))?;
            (Some(group), amounts)
        }
        Some(_) | None => (None, words),
    };
    if amounts.is_empty() {
        return Err(Failure::usage("which quota? TYPE=ESU is expected, as x86=4"));
    }
    let mut quota = Quota::default();
    for text in amounts {
        let (kind, units) = amount(text).map_err(Failure::usage)?;
        if quota.esu.0.insert(kind.clone(), units).is_some() {
            return Err(Failure::usage(format!("executor type {kind} is named twice")));
        }
    }
    let whose = whose(group);
    check(&name(&whose), &quota, settings)?;
    Ok(Changes { quotas: vec![(whose, Some(quota))], all: false })
}

/// Sets them; says what it did.
async fn make(farm: &Farm, changes: Changes) -> Result<(), Failure> {
    let bus = farm.client().bus();
    let known = bus.quotas(|_| ()).await?;
    let mut quotas = changes.quotas;
    if changes.all {
        let named = |of: &QuotaOf| quotas.iter().any(|(named, _)| named == of);
        let others = known.default.as_ref().map(|_| QuotaOf::Others);
        let gone = known.groups.keys().cloned().map(QuotaOf::Group).chain(others).filter(|of| !named(of));
        let gone: Vec<_> = gone.map(|of| (of, None)).collect();
        quotas.extend(gone);
    }
    for (of, quota) in &quotas {
        let had = match of {
            QuotaOf::Group(group) => known.groups.get(group),
            QuotaOf::Others => known.default.as_ref(),
        };
        if had == quota.as_ref() {
            if quota.is_none() {
                say(&format!("{} had no quota", name(of)));
            }
            continue;
        }
        bus.set_quota(of, quota.as_ref()).await?;
        match quota {
            Some(quota) => say(&format!("{}: {} ESU", name(of), quota.esu)),
            None => say(&format!("{}: no quota any more", name(of))),
        }
    }
    Ok(())
}

fn check(name: &str, quota: &Quota, settings: &Settings) -> Result<(), Failure> {
    for (kind, amount) in quota.esu.iter() {
        if !settings.executor_types.contains_key(kind) {
            let known: Vec<&str> = settings.executor_types.keys().map(ExecutorType::as_str).collect();
            let known = known.join(", ");
            return Err(Failure::usage(format!(
                "{name}: executor type {kind} is unknown here; known are {known}"
            )));
        }
        if amount < Esu::ZERO {
            return Err(Failure::usage(format!(
                "{name}: {amount} ESU of {kind} is no quota: 0 ESU or more is expected"
            )));
        }
    }
    Ok(())
}

/// All quotas of a file; nothing is set unless everything can be.
fn load(settings: &Settings, file: &Path) -> Result<Changes, Failure> {
    let unreadable = |error: &dyn std::error::Error| {
        Failure::new(crate::failure::USAGE, format!("cannot read {}", file.display()), error)
    };
    let text = if file.as_os_str() == "-" {
        std::io::read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(file)
    };
    let text = text.map_err(|error| unreadable(&error))?;
    let Unique(wanted) = if text.trim_start().starts_with('{') {
        serde_json::from_str::<Unique>(&text).map_err(|error| unreadable(&error))?
    } else {
        serde_norway::from_str(&text).map_err(|error| unreadable(&error))?
    };
    if wanted.is_empty() {
        return Err(Failure::usage(format!(
            "{} names no quota: `forebay quota unset` takes one away",
            file.display()
        )));
    }
    let mut quotas = Vec::with_capacity(wanted.len());
    for (group, esu) in wanted {
        let of = if group == OTHERS {
            QuotaOf::Others
        } else {
            QuotaOf::Group(
                group.parse().map_err(|error: model::ParseIdError| Failure::usage(error.to_string()))?,
            )
        };
        let quota = Quota { esu };
        check(&name(&of), &quota, settings)?;
        quotas.push((of, Some(quota)));
    }
    Ok(Changes { quotas, all: true })
}

/// The name of all groups without a quota of their own, in a file; no group can have it.
const OTHERS: &str = "*";

/// Amounts by group, none named twice.
struct Unique(Vec<(String, Occupancy)>);

impl<'de> serde::Deserialize<'de> for Unique {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Unique;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("groups with their ESU by executor type, as ci: {x86: 4}")
            }

            // An empty file, to one reader or the other.
            fn visit_unit<E: serde::de::Error>(self) -> Result<Unique, E> {
                Ok(Unique(Vec::new()))
            }

            fn visit_none<E: serde::de::Error>(self) -> Result<Unique, E> {
                Ok(Unique(Vec::new()))
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Unique, A::Error> {
                let mut all: Vec<(String, Occupancy)> = Vec::new();
                while let Some((group, amounts)) = map.next_entry()? {
                    if all.iter().any(|(named, _)| *named == group) {
                        return Err(serde::de::Error::custom(format!("group {group:?} is named twice")));
                    }
                    all.push((group, amounts));
                }
                Ok(Unique(all))
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

/// More than the farm has is no error: the quotas then say how what there is is shared.
async fn warn_of_sum(farm: &Farm, settings: &Settings) -> Result<(), Failure> {
    let quotas = farm.client().bus().quotas(|_| ()).await?;
    for (kind, capacity) in settings.capacity.iter() {
        let sum: Esu = quotas.groups.values().map(|quota| quota.esu.get(kind)).sum();
        if sum > capacity {
            say(&format!(
                "quotas of {kind} add up to {sum} ESU, the farm has {capacity}: each counts as its part of that"
            ));
        }
    }
    Ok(())
}

async fn show(farm: &Farm, globals: &Globals, watch: bool) -> Result<(), Failure> {
    let mut changes = farm.client().bus().quota_changes().await?;
    loop {
        let reply = farm.call(async |client| client.quota().await).await?;
        if globals.json {
            stdout::json(&reply)?;
        } else {
            stdout::line(&text(&reply))?;
        }
        if !watch {
            return Ok(());
        }
        // Again after the next decision, and at last once a while: while nothing runs none is made.
        let _ = tokio::time::timeout(Duration::from_secs(10), changes.next()).await;
        if !globals.json {
            stdout::line("")?;
        }
    }
}

fn text(reply: &QuotaReply) -> String {
    if reply.default.is_none() && reply.groups.iter().all(|group| group.quota.is_none()) {
        return "no quota is set: no group is limited".to_owned();
    }
    let mut table = style::table();
    let header = [
        "GROUP",
        "TYPE",
        "QUOTA",
        "PV",
        "SP",
        "BORROWED",
        "MV",
        "TARGET",
        "IN PROGRESS",
        "QUEUED",
        "WAITS FOR",
    ];
    table.set_header(header);
    for group in &reply.groups {
        rows(&mut table, group);
    }
    let mut lines = vec![table.trim_fmt()];
    if let Some(default) = &reply.default {
        lines.push(format!("each group without a quota: {} ESU", default.esu));
    }
    lines.join("\n")
}

fn rows(table: &mut Table, group: &GroupStanding) {
    let empty = Occupancy::default();
    let quota = group.quota.as_ref().map_or(&empty, |quota| &quota.esu);
    let kinds: std::collections::BTreeSet<&ExecutorType> =
        quota.0.keys().chain(group.governed.keys()).chain(group.in_progress.0.keys()).collect();
    for (at, kind) in kinds.into_iter().enumerate() {
        let governed = group.governed.get(kind).copied();
        let of = |amount: fn(&model::Governed) -> Esu| {
            governed.as_ref().map_or_else(|| "-".to_owned(), |governed| amount(governed).to_string())
        };
        let first = |text: String| if at == 0 { text } else { String::new() };
        table.add_row([
            first(group.group.to_string()),
            kind.to_string(),
            governed.map_or_else(|| quota.get(kind), |governed| governed.quota).to_string(),
            of(|governed| governed.pv),
            of(|governed| governed.sp),
            of(|governed| governed.borrowed),
            of(|governed| governed.mv),
            of(|governed| governed.target),
            group.in_progress.get(kind).to_string(),
            first(group.queued.to_string()),
            first(group.throttled.clone().unwrap_or_default()),
        ]);
    }
}
