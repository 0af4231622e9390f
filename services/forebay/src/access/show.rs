//! What a description has, as text and as JSON.

use access::{Access, Keys, Tenant, Who, rights_of};
use bus::Rights;
use comfy_table::Table;
use command_line::{
    failure::{Failure, USAGE},
    stdout,
};
use credentials::PublicKey;
use serde_json::{Value, json};

use crate::style;

/// Lists all services, tenants and users.
pub(super) fn list(access: &Access, as_json: bool) -> Result<(), Failure> {
    if as_json {
        let services: Vec<Value> = access
            .services()
            .iter()
            .map(|(name, keys)| json!({ "name": name.to_string(), "keys": texts(keys.iter().map(|key| &key.public)) }))
            .collect();
        let tenants: Vec<Value> =
            access.tenants().keys().map(|name| tenant(access, &Who::Tenant(name.clone()))).collect();
        return stdout::json(&json!({ "services": services, "tenants": tenants }));
    }
    let mut table = style::table();
    table.set_header(["NAME", "KIND", "GROUPS", "PRIORITIES", "KEYS"]);
    for (name, content) in access.tenants() {
        row(&mut table, &name.to_string(), "tenant", &groups(content), &priorities(content), "");
        for user in access.users().iter().filter(|user| user.name.tenant == *name) {
            let groups: std::collections::BTreeSet<String> =
                user.crossings.iter().map(|crossing| crossing.group().to_string()).collect();
            let groups = groups.into_iter().collect::<Vec<_>>().join(" ");
            row(&mut table, &user.name.to_string(), user.kind.as_str(), &groups, "", &state(user.keys));
        }
    }
    for (name, keys) in access.services() {
        row(&mut table, &name.to_string(), "service", "", "", &state(keys));
    }
    stdout::line(&table.to_string())
}

fn row(table: &mut Table, name: &str, kind: &str, groups: &str, priorities: &str, keys: &str) {
    table.add_row([name, kind, groups, priorities, keys]);
}

fn groups(tenant: &Tenant) -> String {
    let own = tenant.groups.iter().map(ToString::to_string);
    let watched = tenant.watches.iter().map(|group| format!("{group} (watched)"));
    own.chain(watched).collect::<Vec<_>>().join(" ")
}

fn priorities(tenant: &Tenant) -> String {
    let names: Vec<&str> = tenant.priorities.iter().map(|priority| priority.as_str()).collect();
    names.join(" ")
}

fn state<K>(keys: &Keys<K>) -> String {
    if keys.next.is_some() { "2, in rotation".to_owned() } else { "1".to_owned() }
}

fn texts<'a>(keys: impl Iterator<Item = &'a PublicKey>) -> Vec<String> {
    keys.map(ToString::to_string).collect()
}

/// Shows a tenant, a user or a service.
pub(super) fn one(access: &Access, who: &Who, as_json: bool) -> Result<(), Failure> {
    let found = match who {
        Who::Tenant(name) => access.tenants().contains_key(name).then(|| tenant(access, who)),
        Who::User(name) => {
            let user = access.users().into_iter().find(|user| user.name == *name);
            user.map(|user| {
                rights(&user.name.to_string(), &user.inbox(), &texts(user.keys.iter()), &user.rights())
            })
        }
        Who::Service(name) => access.services().get(name).map(|keys| {
            let keys = texts(keys.iter().map(|key| &key.public));
            rights(&name.to_string(), &name.bus_user().inbox(), &keys, &rights_of(name))
        }),
    };
    let unknown =
        || Failure::plain(USAGE, format!("{who} does not exist; `forebay access list` shows what does"));
    let found = found.ok_or_else(unknown)?;
    if as_json {
        return stdout::json(&found);
    }
    let text = serde_norway::to_string(&found).map_err(|error| {
        Failure::new(command_line::failure::FAILED, "cannot print the description", &error)
    })?;
    stdout::bytes(text.as_bytes())
}

fn tenant(access: &Access, who: &Who) -> Value {
    let Who::Tenant(name) = who else { return Value::Null };
    let Some(content) = access.tenants().get(name) else { return Value::Null };
    let users: Vec<Value> = access
        .users()
        .iter()
        .filter(|user| user.name.tenant == *name)
        .map(|user| json!({ "name": user.name.to_string(), "kind": user.kind.as_str(), "keys": texts(user.keys.iter()) }))
        .collect();
    let crossings: Vec<String> = content.crossings().iter().map(ToString::to_string).collect();
    json!({
        "name": name.as_str(),
        "groups": content.groups,
        "priorities": content.priorities,
        "watches": content.watches,
        "users": users,
        "subjects": crossings,
    })
}

fn rights(name: &str, inbox: &str, keys: &[String], rights: &Rights) -> Value {
    json!({
        "name": name,
        "inbox": inbox,
        "keys": keys,
        "publish": rights.publish(),
        "subscribe": rights.subscribe(),
        "answers": rights.answers(),
    })
}
