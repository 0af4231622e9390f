//! Changes of the description and of the files of seeds.

use std::{
    num::NonZeroU32,
    path::{Path, PathBuf},
};

use access::{
    Access, AccountName, Change, ChangeError, Days, Instance, Role, Rotation, SeedFolder, ServiceName,
    SigningFault, SigningStep, Slot, Who,
};
use command_line::{
    failure::{FAILED, Failure, USAGE, say},
    stdout,
};
use credentials::SeedFault;
use serde_json::json;
use time::OffsetDateTime;

use super::{
    Grant, InitArgs, Place,
    store::{File, Locked},
};

/// Adds a user for each role that has none, and with `--jwt` an operator.
pub(super) fn init(file: &File, args: InitArgs, place: &Place, as_json: bool) -> Result<(), Failure> {
    let InitArgs { seeds, jwt, user_days, service_days } = args;
    let seeds = SeedFolder::new(&place.seeds(seeds)?);
    if jwt && place.farm.is_some() {
        let reason = "users of `forebay up --secure` have no JWTs: name another description with --file";
        return Err(Failure::usage(reason));
    }
    let locked = file.lock()?;
    let mut access = locked.read()?.unwrap_or_default();
    let mut made = Vec::new();
    if access.jwt().is_some() && (user_days.is_some() || service_days.is_some()) {
        let reason =
            "this description has an operator already: change `user_days` and `service_days` in its file";
        return Err(Failure::usage(reason));
    }
    for role in Role::ALL {
        if access.services().keys().any(|service| service.role() == role) {
            continue;
        }
        let change = Change::Service(ServiceName::new(role, Instance::first()));
        let (changed, paths) = make(&access, &change, &seeds)?;
        // One by one: each seed on the disk belongs to the description, also after a kill.
        locked.write(&changed)?;
        access = changed;
        made.extend(paths);
    }
    if jwt || access.jwt().is_some() {
        let days = Days {
            users: NonZeroU32::new(user_days.unwrap_or(USER_DAYS)),
            services: NonZeroU32::new(service_days.unwrap_or(0)),
        };
        let signed = seeds.with_operator(&access, days, now());
        let (signed, paths) = signed.map_err(|error| Failure::of(FAILED, &error))?;
        if signed != access {
            locked.write(&signed)?;
            made.extend(paths);
            return report(true, &made, as_json);
        }
    }
    report(!made.is_empty(), &made, as_json)
}

/// Validity in days of JWTs of users of tenants, if no other is chosen.
const USER_DAYS: u32 = 365;

/// The time, in seconds since 1970.
pub(super) fn now() -> i64 {
    OffsetDateTime::now_utc().unix_timestamp()
}

/// Adds a tenant, a user or a service, or changes what it may do.
pub(super) fn grant(file: &File, grant: Grant, place: &Place, as_json: bool) -> Result<bool, Failure> {
    let (change, seeds) = match grant {
        Grant::Tenant { name, groups, priorities, watches, seeds } => {
            let (groups, watches) = (groups.into_iter().collect(), watches.into_iter().collect());
            let priorities = priorities.into_iter().collect();
            (Change::Tenant { name, groups, priorities, watches }, seeds)
        }
        Grant::Publisher { name, groups, priorities, seeds } => {
            let (groups, priorities) = (groups.into_iter().collect(), priorities.into_iter().collect());
            (Change::Publisher { user: name, groups, priorities }, seeds)
        }
        Grant::Watcher { name, groups, seeds } => {
            (Change::Watcher { user: name, groups: groups.into_iter().collect() }, seeds)
        }
        Grant::Service { name, seeds } => (Change::Service(name), seeds),
    };
    let locked = file.lock()?;
    if let Change::Tenant { name, priorities, .. } = &change
        && priorities.is_empty()
        && locked.read()?.is_some_and(|access| !access.tenants().contains_key(name))
        && !as_json
    {
        say(&format!(
            "{name} may use all priorities: EMERGENCY passes quotas; --priority names those that it may use"
        ));
    }
    let seeds = match (place.seeds(seeds), &change) {
        (Ok(seeds), _) => seeds,
        // Without JWTs a tenant has no key of its own.
        (Err(_), Change::Tenant { .. }) if existing(&locked)?.jwt().is_none() => PathBuf::new(),
        (Err(missing), _) => return Err(missing),
    };
    apply(&locked, &change, &SeedFolder::new(&seeds), as_json)
}

/// Removes a tenant, a user or a service, and its seeds.
pub(super) fn revoke(file: &File, who: Who, seeds: &Path, as_json: bool) -> Result<bool, Failure> {
    let (seeds, locked) = (SeedFolder::new(seeds), file.lock()?);
    let access = existing(&locked)?;
    if !access.has(&who) && !as_json {
        // It may be a name that is written in another way than it was granted: that one keeps its access.
        say(&format!("{who} does not exist; `forebay access list` shows what does"));
    }
    let of_tenant =
        |owner: &Who| matches!((owner, &who), (Who::User(user), Who::Tenant(name)) if user.tenant == *name);
    let gone = access
        .key_owners()
        .into_iter()
        .map(|(owner, _)| owner)
        .filter(|owner| *owner == who || of_tenant(owner));
    let gone: Vec<Who> = gone.chain([who.clone()]).collect();
    // First, so that a later user of the same name never gets an old key.
    gone.iter().try_for_each(|owner| seeds.remove(owner)).map_err(|error| seed_failure(&error))?;
    apply(&locked, &Change::Revoke(who), &seeds, as_json)
}

/// Begins or finishes the replacement of a key.
pub(super) fn rotate(
    file: &File,
    who: &Who,
    finish: bool,
    seeds: &Path,
    as_json: bool,
) -> Result<bool, Failure> {
    let (seeds, locked) = (existing_folder(seeds)?, file.lock()?);
    let step = if finish { Rotation::Finish } else { Rotation::Begin };
    let change = Change::Rotate(who.clone(), step);
    if finish {
        // Both keys are valid until the description changes.
        let access = existing(&locked)?;
        let (changed, _) = make(&access, &change, &seeds)?;
        let has_new = seeds.read(who, Slot::Next).map_err(|error| seed_failure(&error))?.is_some();
        if changed != access && !has_new && !as_json {
            say(&format!("the new key of {who} is not in the folder: its client must have it already"));
        }
        seeds.replace(who).map_err(|error| seed_failure(&error))?;
    }
    apply(&locked, &change, &seeds, as_json)
}

/// Makes a step of the replacement of the key with which an account signs its users.
pub(super) fn rotate_signing(
    file: &File,
    account: &AccountName,
    step: SigningStep,
    seeds: &Path,
    as_json: bool,
) -> Result<bool, Failure> {
    let (seeds, locked) = (existing_folder(seeds)?, file.lock()?);
    let access = existing(&locked)?;
    let (changed, made) = seeds.rotate_signing(&access, account, step).map_err(|error| match &error {
        SigningFault::NoJwt | SigningFault::NoAccount(_) | SigningFault::NotUsed(_) => {
            Failure::of(USAGE, &error)
        }
        SigningFault::New(_)
        | SigningFault::Sign(_)
        | SigningFault::Unusable { .. }
        | SigningFault::Missing { .. }
        | SigningFault::Other { .. }
        | SigningFault::File(_)
        | SigningFault::Seed(_) => Failure::of(FAILED, &error),
    })?;
    let is_new = changed != access;
    if is_new {
        locked.write(&changed)?;
        seeds.settle_signing(&changed, account).map_err(|error| Failure::of(FAILED, &error))?;
    }
    report(is_new, &made, as_json)?;
    Ok(is_new)
}

/// The folder of keys that are replaced. A mistyped one would get new keys, of which no client learns.
fn existing_folder(seeds: &Path) -> Result<SeedFolder, Failure> {
    if seeds.is_dir() {
        return Ok(SeedFolder::new(seeds));
    }
    Err(Failure::usage(format!("{} is not a folder: name that of the keys with --seeds", seeds.display())))
}

fn existing(locked: &Locked) -> Result<Access, Failure> {
    let missing = || Failure::usage("the description does not exist: run `forebay access init`");
    locked.read()?.ok_or_else(missing)
}

/// Changes the description; whether it was different before.
fn apply(locked: &Locked, change: &Change, seeds: &SeedFolder, as_json: bool) -> Result<bool, Failure> {
    let access = existing(locked)?;
    let (changed, made) = make(&access, change, seeds)?;
    let is_new = changed != access;
    if is_new {
        locked.write(&changed)?;
    }
    report(is_new, &made, as_json)?;
    Ok(is_new)
}

fn make(access: &Access, change: &Change, seeds: &SeedFolder) -> Result<(Access, Vec<PathBuf>), Failure> {
    seeds.change(access, change).map_err(|error| match &error {
        ChangeError::Seed(fault) => seed_failure(fault),
        ChangeError::Signing(_) => Failure::of(FAILED, &error),
        ChangeError::Unknown(_)
        | ChangeError::NoTenant(_)
        | ChangeError::NoGroups
        | ChangeError::Tenant(_)
        | ChangeError::InRotation(_)
        | ChangeError::Content(_) => Failure::of(USAGE, &error),
    })
}

fn seed_failure(error: &SeedFault) -> Failure {
    Failure::of(FAILED, error)
}

fn report<'a>(
    is_changed: bool,
    made: impl IntoIterator<Item = &'a PathBuf>,
    as_json: bool,
) -> Result<(), Failure> {
    let made: Vec<String> = made.into_iter().map(|path| path.display().to_string()).collect();
    if as_json {
        return stdout::json(&json!({ "changed": is_changed, "seeds": made }));
    }
    for path in &made {
        say(&format!("new secret key: {path}"));
    }
    if is_changed {
        say("changed; `forebay access apply` makes it effective");
    } else {
        say("nothing to change");
    }
    Ok(())
}
