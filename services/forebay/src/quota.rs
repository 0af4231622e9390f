//! `forebay quota`: shows and sets the quotas of groups.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use bus::{QuotaChange, QuotaOf};
use clap::{Args, Subcommand};
use comfy_table::Table;
use command_line::{
    failure::{Failure, say},
    globals::Globals,
    stdout,
};
use model::{AuditKind, Esu, ExecutorType, Group, GroupStanding, Occupancy, Quota, QuotaReply, parse_amount};
use settings::Settings;

use crate::{farm::Farm, file_argument, style};

const EXAMPLES: &str = "\
Examples:
  forebay quota set ci x86=500 gpu=20
      group ci gets a quota of 500 ESU of x86 and 20 ESU of gpu; it takes effect without a restart
  forebay quota set --default x86=10
      default quota for groups without their own
  forebay quota
      shows the usage and quota of each group, and why the head of its queue is waiting

The columns of `forebay quota`, in ESU; 1 ESU (executor service unit) is one executor or 2.5 GB of memory, whichever a
build uses more of:
  QUOTA        share of the group, scaled down if all quotas add up to more than the farm has
  PV           in use, averaged since the governor's previous decision
  SP           what the group may use: its quota plus what it borrows
  BORROWED     part of SP that is unused quota of other groups
  MV           builds to start until the next decision
  TARGET       level up to which builds start
  IN PROGRESS  estimate for the running builds

Actions that are sent directly, for example by a Bazel outside of the farm, count in PV of their group. The rows
`executors` are all builds that run actions, and what the live executors carry: it limits these builds where no quota
does. Below the table: the mean error (estimate minus use), the mean absolute error and the mean square error of the
latest 1000 estimates.

If no quota is set, no group is limited. Once one is set, a group without a quota has the default quota; without a
default quota it only borrows part of what others leave unused, even on an idle farm.";

/// Options of `forebay quota`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct QuotaArgs {
    #[command(subcommand)]
    command: Option<QuotaCommand>,
    /// Show the quotas again after each decision of the governor
    #[arg(long)]
    watch: bool,
}

#[derive(Debug, Subcommand)]
enum QuotaCommand {
    /// Set the quota of a group
    Set {
        /// Set the default quota instead of a group's
        #[arg(long)]
        default: bool,
        /// The group, then its ESU by executor type; types not listed are removed
        #[arg(required = true, value_names = ["GROUP", "TYPE=ESU"], num_args = 1..)]
        words: Vec<String>,
    },
    /// Remove the quota of a group
    Unset {
        /// Group whose quota to remove
        #[arg(required_unless_present = "default", conflicts_with = "default")]
        group: Option<Group>,
        /// Remove the default quota instead of a group's
        #[arg(long)]
        default: bool,
    },
    /// Replace all quotas with those in a file: {"GROUP": {"TYPE": ESU}}, in JSON or YAML; group `*` is the default quota
    Load {
        /// File to read; - for standard input
        file: PathBuf,
    },
}

/// Shows or sets quotas.
pub(crate) async fn run(
    args: QuotaArgs,
    globals: &Globals,
    settings: &Settings,
) -> Result<ExitCode, Failure> {
    // Report invalid arguments before connecting to a farm.
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

/// Quotas to set, or to remove where `None`.
struct Changes {
    quotas: Vec<(QuotaOf, Option<Quota>)>,
    /// Whether all other quotas are removed.
    all: bool,
}

fn whose(group: Option<Group>) -> QuotaOf {
    group.map_or(QuotaOf::Others, QuotaOf::Group)
}

fn name(of: &QuotaOf) -> String {
    match of {
        QuotaOf::Group(group) => format!("group {group}"),
        QuotaOf::Others => "default quota".to_owned(),
    }
}

/// The group, as other audit events name it.
fn target(of: &QuotaOf) -> String {
    match of {
        QuotaOf::Group(group) => group.to_string(),
        QuotaOf::Others => "default quota".to_owned(),
    }
}

/// Parses `GROUP TYPE=ESU...`, or `TYPE=ESU...` for the default quota.
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
        return Err(Failure::usage("missing quota: expected TYPE=ESU, e.g. x86=4"));
    }
    let mut quota = Quota::default();
    for text in amounts {
        let (kind, units) = parse_amount(text).map_err(|error| Failure::usage(error.to_string()))?;
        if quota.esu.0.insert(kind.clone(), units).is_some() {
            return Err(Failure::usage(format!("executor type {kind} is given twice")));
        }
    }
    let whose = whose(group);
    check(&name(&whose), &quota, settings)?;
    Ok(Changes { quotas: vec![(whose, Some(quota))], all: false })
}

/// Applies the changes and reports them on stderr.
async fn make(farm: &Farm, changes: Changes) -> Result<(), Failure> {
    let bus = farm.client().bus();
    let known = bus.buckets().quotas().await?;
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
        bus.buckets().put(of, quota.as_ref()).await?;
        let text = |quota: Option<&Quota>| quota.map_or_else(|| "none".to_owned(), |it| it.esu.to_string());
        let change = format!("from {} to {}", text(had), text(quota.as_ref()));
        farm.record(AuditKind::Quota, "forebay quota", &target(of), Some(&change)).await;
        match quota {
            Some(quota) => say(&format!("{}: {} ESU", name(of), quota.esu)),
            None => say(&format!("{}: quota removed", name(of))),
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
                "{name}: unknown executor type {kind}; known types: {known}"
            )));
        }
        if amount < Esu::ZERO {
            return Err(Failure::usage(format!(
                "{name}: invalid quota {amount} ESU for {kind}: must be at least 0"
            )));
        }
    }
    Ok(())
}

/// Reads all quotas of a file. An error in one of them rejects the whole file.
fn load(settings: &Settings, file: &Path) -> Result<Changes, Failure> {
    let unreadable = |error: &dyn std::error::Error| {
        Failure::new(command_line::failure::USAGE, format!("cannot read {}", file.display()), error)
    };
    let text = file_argument::text(file).map_err(|error| unreadable(&error))?;
    // YAML includes JSON, except for tabs as indentation.
    let Unique(wanted) = match serde_json::from_str::<Unique>(&text) {
        Ok(quotas) => quotas,
        Err(error) if text.contains('\t') => return Err(unreadable(&error)),
        Err(_) => serde_norway::from_str(&text).map_err(|error| unreadable(&error))?,
    };
    if wanted.is_empty() {
        return Err(Failure::usage(format!(
            "{} contains no quota; to remove one, use `forebay quota unset`",
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

/// Name of the default quota in a file; it is not a valid group name.
const OTHERS: &str = "*";

/// Amounts by group; a duplicate group is an error.
struct Unique(Vec<(String, Occupancy)>);

impl<'de> serde::Deserialize<'de> for Unique {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Unique;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("groups with their ESU by executor type, e.g. ci: {x86: 4}")
            }

            // An empty file is reported as a unit or as none, depending on the parser.
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
                        return Err(serde::de::Error::custom(format!("group {group:?} is given twice")));
                    }
                    all.push((group, amounts));
                }
                Ok(Unique(all))
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

/// Warns if the quotas exceed the capacity of the farm. This is valid: the governor scales them down.
async fn warn_of_sum(farm: &Farm, settings: &Settings) -> Result<(), Failure> {
    let quotas = farm.client().bus().buckets().quotas().await?;
    for (kind, capacity) in settings.capacity.iter() {
        let sum: Esu = quotas.groups.values().map(|quota| quota.esu.get(kind)).sum();
        if sum > capacity {
            say(&format!(
                "quotas for {kind} total {sum} ESU but the farm has {capacity}; they are scaled down proportionally"
            ));
        }
    }
    Ok(())
}

async fn show(farm: &Farm, globals: &Globals, watch: bool) -> Result<(), Failure> {
    let mut changes = farm.client().bus().buckets().changes::<QuotaChange>().await?;
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
        // Wait for the next decision, but not for long: an idle farm makes none.
        let _ = tokio::time::timeout(Duration::from_secs(10), changes.next()).await;
        if !globals.json {
            stdout::line("")?;
        }
    }
}

fn text(reply: &QuotaReply) -> String {
    let is_governed = reply.default.is_some() || reply.groups.iter().any(|group| group.quota.is_some());
    let has_rows = is_governed || !reply.groups.is_empty() || !reply.executors.is_empty();
    let mut lines = Vec::new();
    if has_rows {
        lines.push(table(reply, is_governed));
    }
    if let Some(default) = &reply.default {
        lines.push(format!("default quota: {} ESU", default.esu));
    }
    if !is_governed {
        lines.push("no quota is set: no group is limited".to_owned());
    }
    for (kind, error) in &reply.estimates {
        lines.push(format!(
            "estimates of {kind}: mean error {:+.2} ESU, mean absolute error {:.2} ESU, mean square error {:.2} \
             ESU\u{b2}, over {} builds",
            error.mean, error.mean_absolute, error.mean_square, error.builds
        ));
    }
    lines.join("\n")
}

/// The rows of the groups, then those of the executors.
fn table(reply: &QuotaReply, is_governed: bool) -> String {
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
        rows(&mut table, group, is_governed);
    }
    for (kind, governed) in &reply.executors {
        table.add_row([
            "executors".to_owned(),
            kind.to_string(),
            governed.quota.to_string(),
            governed.pv.to_string(),
            governed.sp.to_string(),
            governed.borrowed.to_string(),
            governed.mv.to_string(),
            governed.target.to_string(),
            governed.in_progress.to_string(),
            String::new(),
            String::new(),
        ]);
    }
    table.trim_fmt()
}

fn rows(table: &mut Table, group: &GroupStanding, is_governed: bool) {
    let empty = Occupancy::default();
    let quota = group.quota.as_ref().map_or(&empty, |quota| &quota.esu);
    // A decision of the governor may be older than the quota that is set now.
    let governed = group.governed.iter().filter(|(kind, governed)| {
        group.quota.is_none() || quota.0.contains_key(*kind) || governed.borrowed > Esu::ZERO
    });
    let kinds: std::collections::BTreeSet<&ExecutorType> =
        quota.0.keys().chain(governed.map(|(kind, _)| kind)).chain(group.in_progress.0.keys()).collect();
    for (at, kind) in kinds.into_iter().enumerate() {
        let governed = group.governed.get(kind).copied();
        let show = |amount: fn(&model::Governed) -> Esu, applies: bool| {
            let amount = governed.as_ref().filter(|_| applies).map(amount);
            amount.map_or_else(|| "-".to_owned(), |amount| amount.to_string())
        };
        // Without quotas, only the use of a group is measured.
        let of = |amount| show(amount, is_governed);
        let first = |text: String| if at == 0 { text } else { String::new() };
        table.add_row([
            first(group.group.to_string()),
            kind.to_string(),
            shown_quota(group.quota.as_ref(), kind, governed).to_string(),
            show(|governed| governed.pv, true),
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

/// The quota that is set for the group now, else the default quota in the governor's last decision.
fn shown_quota(own: Option<&Quota>, kind: &ExecutorType, governed: Option<model::Governed>) -> Esu {
    own.map(|quota| quota.esu.get(kind)).or(governed.map(|governed| governed.quota)).unwrap_or_default()
}
