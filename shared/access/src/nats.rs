//! Accounts and users in the configuration of nats-server.

use std::{collections::BTreeMap, fmt::Write as _, path::Path};

use bus::{Crossing, Rights};
use credentials::PublicKey;

use crate::{Access, AccountName, ServiceName, Signer, SigningFault, TenantName, rights_of};

/// The account that has JetStream, and all services.
const FARM: &str = "FARM";
const SYSTEM: &str = "SYS";

/// The part of nats-server's configuration that names its accounts and users. Its configuration file includes it.
///
/// Each tenant has an account. Permissions on subjects inside one account do not separate tenants: a user may name any subject
/// of its account as the place for an answer. What a tenant may reach of the farm is exported to its account, by name.
pub fn nats_config(access: &Access) -> String {
    let mut text = String::from(HEAD);
    let _ = writeln!(text, "system_account: {SYSTEM}\naccounts {{");
    let (system, farm): (Vec<_>, Vec<_>) =
        access.services().iter().partition(|(name, _)| name.role().is_of_the_system());
    let services = |services: Vec<(&ServiceName, &crate::Keys<crate::ServiceKey>)>| {
        let user = |(name, keys): (&ServiceName, &crate::Keys<crate::ServiceKey>)| {
            let rights = rights_of(name);
            keys.iter().map(|key| user(&name.to_string(), &key.public, &rights)).collect::<String>()
        };
        services.into_iter().map(user).collect::<String>()
    };
    account(&mut text, SYSTEM, "", &services(system), "");
    let exports = block("exports", exports(access));
    account(&mut text, FARM, "    jetstream: enabled\n", &services(farm), &exports);
    let users = access.users();
    for (name, tenant) in access.tenants() {
        let of_tenant = users.iter().filter(|user| user.name.tenant == *name);
        let of_tenant = of_tenant.flat_map(|one| {
            let (label, rights) = (one.name.to_string(), one.rights());
            one.keys.iter().map(move |key| user(&label, key, &rights)).collect::<Vec<_>>()
        });
        let imports = block("imports", tenant.crossings().iter().map(import));
        account(&mut text, &account_of(name), TENANT_LIMITS, &of_tenant.collect::<String>(), &imports);
    }
    text.push_str("}\n");
    text
}

/// What the users of a tenant may have together on one server.
const TENANT_LIMITS: &str = "    limits { max_connections: 256, max_subscriptions: 10000 }\n";
const HEAD: &str = "# Written by `forebay access apply`, which replaces it: do not change it here.\n";

/// The part of nats-server's configuration that makes it accept the JWTs of a description's operator. It keeps accounts in
/// `accounts`, a folder of its own, and asks the others of its cluster for those that it lacks.
///
/// Only the accounts of the servers and of the farm are in it: those of tenants are given to running servers. An account of
/// this configuration that is older than what the server has changes nothing.
///
/// # Errors
///
/// Fails if a key is missing.
pub fn nats_config_with_jwts(
    access: &Access,
    signer: &Signer,
    accounts: &Path,
    now: i64,
) -> Result<String, SigningFault> {
    let jwt = access.jwt().ok_or(SigningFault::NoJwt)?;
    let (operator, folder) = (jwt.operator.as_str(), accounts.display());
    let system = signer.account(&AccountName::System)?;
    let mut text = format!("{HEAD}operator: {operator}\nsystem_account: {system}\n");
    let _ = writeln!(
        text,
        "resolver {{ type: full, dir: \"{folder}\", interval: \"{EXCHANGE}\" }}\nresolver_preload {{"
    );
    for name in [AccountName::System, AccountName::Farm] {
        let token = access.account_token(&name, signer, now)?;
        let _ = writeln!(text, "  # {name}\n  {}: {token}", signer.account(&name)?);
    }
    text.push_str("}\n");
    Ok(text)
}

/// How often servers of a cluster compare their accounts, for those that were stopped; changes reach all that run at once.
const EXCHANGE: &str = "10s";

fn account_of(tenant: &TenantName) -> String {
    AccountName::Tenant(tenant.clone()).to_string()
}

fn account(text: &mut String, name: &str, more: &str, users: &str, links: &str) {
    // Writing to a String cannot fail.
    let _ = write!(text, "  \"{name}\" {{\n{more}");
    // A user without permissions of its own would be allowed everything.
    text.push_str("    default_permissions { publish { deny: \">\" }, subscribe { deny: \">\" } }\n");
    let _ = write!(text, "    users [\n{users}    ]\n{links}  }}\n");
}

fn user(name: &str, key: &PublicKey, rights: &Rights) -> String {
    let list = |subjects: &std::collections::BTreeSet<String>| {
        let quoted: Vec<String> = subjects.iter().map(|subject| format!("\"{subject}\"")).collect();
        quoted.join(", ")
    };
    let (publish, subscribe) = (list(rights.publish()), list(rights.subscribe()));
    let answers = match rights.answers() {
        0 => String::new(),
        most => format!("\n        allow_responses: {{ max: {most}, expires: \"1m\" }}"),
    };
    format!(
        "      # {name}\n      {{ nkey: {key}, permissions {{\n        publish {{ allow: [{publish}] }}\n        \
         subscribe {{ allow: [{subscribe}] }}{answers}\n      }} }}\n"
    )
}

fn block(name: &str, lines: impl IntoIterator<Item = String>) -> String {
    let lines: Vec<String> = lines.into_iter().map(|line| format!("      {line}\n")).collect();
    if lines.is_empty() { String::new() } else { format!("    {name} [\n{}    ]\n", lines.concat()) }
}

/// What the farm exports, each subject to those tenants only that have it.
fn exports(access: &Access) -> Vec<String> {
    let mut tenants: BTreeMap<Crossing, Vec<String>> = BTreeMap::new();
    for (name, tenant) in access.tenants() {
        for crossing in tenant.crossings() {
            tenants.entry(crossing).or_default().push(format!("\"{}\"", account_of(name)));
        }
    }
    let line = |(crossing, accounts): (Crossing, Vec<String>)| {
        let several = if crossing.has_answers_of_several() { ", response_type: stream" } else { "" };
        format!("{{ {}: \"{crossing}\", accounts: [{}]{several} }}", kind(&crossing), accounts.join(", "))
    };
    tenants.into_iter().map(line).collect()
}

fn import(crossing: &Crossing) -> String {
    format!("{{ {}: {{ account: {FARM}, subject: \"{crossing}\" }} }}", kind(crossing))
}

fn kind(crossing: &Crossing) -> &'static str {
    if crossing.is_to_the_tenant() { "stream" } else { "service" }
}
