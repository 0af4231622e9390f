//! The JWTs of accounts and users that follow from a description.
//!
//! Permissions are in the JWT of the account and not in those of users: each user is signed by a key of its account that is
//! limited to the rights of its role or of its tenant's user. So a change of rights, or of a role, needs no new JWTs of users.

use std::collections::{BTreeMap, BTreeSet};

use bus::{Crossing, Rights};
use credentials::{BusUser, PublicKey, Seed, UserKey, UserToken};
use serde::Serialize;

use crate::{
    Access, AccountName, Instance, Role, ServiceName, Signer, SigningFault, TenantName, Who, rights_of,
    signing::{Claims, SigningKey},
};

/// Signs which part of an export an account may import. No user has it.
const EXPORTS: &str = "exports";
/// Signs the user that changes accounts on servers, while it does so. No file has it.
const PUSH: &str = "push";
/// Validity in seconds of the JWT of the user that changes accounts.
const PUSH_SECONDS: i64 = 600;
/// 9999-12-31, the last time that nats-server accepts: a key that is revoked until then is never valid again.
const LAST_TIME: i64 = 253_402_300_799;
/// Connections and subscriptions of all users of a tenant together.
const TENANT_CONNECTIONS: i64 = 256;
const TENANT_SUBSCRIPTIONS: i64 = 10_000;
const UNLIMITED: i64 = -1;
/// Time for an answer to a message, as nats-server has it without a number: two minutes, in nanoseconds.
const ANSWER_TIME: i64 = 120_000_000_000;

#[derive(Serialize)]
struct AccountPart {
    default_permissions: Permissions,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    exports: Vec<Export>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    imports: Vec<Import>,
    limits: Limits,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    revocations: BTreeMap<String, i64>,
    signing_keys: Vec<Scope>,
    r#type: &'static str,
    version: u8,
}

#[derive(Serialize, Clone)]
struct Permissions {
    r#pub: Filter,
    sub: Filter,
    #[serde(skip_serializing_if = "Option::is_none")]
    resp: Option<Answers>,
}

#[derive(Serialize, Clone, Default)]
struct Filter {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    allow: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    deny: Vec<String>,
}

#[derive(Serialize, Clone)]
struct Answers {
    max: u32,
    ttl: i64,
}

/// What users of one signing key may do. Limits that are left out would be zero.
#[derive(Serialize, Clone)]
struct Scope {
    key: String,
    kind: &'static str,
    role: String,
    template: Template,
}

#[derive(Serialize, Clone)]
struct Template {
    data: i64,
    payload: i64,
    #[serde(flatten)]
    permissions: Permissions,
    subs: i64,
}

#[derive(Serialize)]
struct Export {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_type: Option<&'static str>,
    subject: String,
    token_req: bool,
    r#type: &'static str,
}

#[derive(Serialize)]
struct Import {
    account: String,
    name: String,
    subject: String,
    token: String,
    r#type: &'static str,
}

#[derive(Serialize)]
struct Limits {
    conn: i64,
    data: i64,
    exports: i64,
    imports: i64,
    /// No server may be attached to an account as a leaf node.
    leaf: i64,
    payload: i64,
    subs: i64,
    wildcards: bool,
    #[serde(flatten)]
    storage: Option<JetStreamLimits>,
}

/// Limits of JetStream, which an account without them does not have.
#[derive(Serialize)]
struct JetStreamLimits {
    consumer: i64,
    disk_storage: i64,
    mem_storage: i64,
    streams: i64,
}

#[derive(Serialize)]
struct UserPart<'a> {
    issuer_account: &'a str,
    r#type: &'static str,
    version: u8,
}

#[derive(Serialize)]
struct ActivationPart<'a> {
    issuer_account: &'a str,
    kind: &'static str,
    subject: &'a str,
    r#type: &'static str,
    version: u8,
}

/// How many messages an answer of the farm has.
fn answers(crossing: &Crossing) -> &'static str {
    if crossing.has_answers_of_several() { "Stream" } else { "Singleton" }
}

impl Access {
    /// The JWT of an account, which the operator signs.
    ///
    /// # Errors
    ///
    /// Fails if a key is missing.
    pub(crate) fn account_token(
        &self,
        name: &AccountName,
        signer: &Signer,
        now: i64,
    ) -> Result<String, SigningFault> {
        let part = AccountPart {
            default_permissions: nothing(),
            exports: if *name == AccountName::Farm { self.exports() } else { Vec::new() },
            imports: match name {
                AccountName::Tenant(tenant) => self.imports(tenant, signer)?,
                AccountName::Farm | AccountName::System => Vec::new(),
            },
            limits: limits(name),
            revocations: self.revoked(name).into_iter().map(|key| (key.to_string(), LAST_TIME)).collect(),
            signing_keys: self.scopes(name, signer)?,
            r#type: "account",
            version: 2,
        };
        let (label, key) = (name.to_string(), signer.account(name)?);
        signer.operator.sign(&Claims {
            exp: None,
            iat: Some(now),
            name: &label,
            nats: part,
            sub: key.as_str(),
        })
    }

    /// Public keys that have had a JWT of the account and are no longer those of a user.
    fn revoked(&self, account: &AccountName) -> BTreeSet<PublicKey> {
        let issued = self.jwt().and_then(|jwt| jwt.accounts.get(account)).map(|account| &account.issued);
        let current = self.keys_of_account(account);
        issued.into_iter().flatten().filter(|key| !current.contains(key)).cloned().collect()
    }

    /// The public keys of the users of an account.
    pub(crate) fn keys_of_account(&self, account: &AccountName) -> BTreeSet<PublicKey> {
        let owners = self.key_owners().into_iter().filter(|(who, _)| account_of(who) == *account);
        owners.flat_map(|(_, keys)| keys).collect()
    }

    fn scopes(&self, account: &AccountName, signer: &Signer) -> Result<Vec<Scope>, SigningFault> {
        let scope = |label: &str, permissions: Permissions| -> Result<Vec<Scope>, SigningFault> {
            let (data, payload, subs) = (UNLIMITED, UNLIMITED, UNLIMITED);
            let template = Template { data, payload, permissions, subs };
            let one = |key: SigningKey| {
                let (role, template) = (label.to_owned(), template.clone());
                Scope { key: key.public(), kind: "user_scope", role, template }
            };
            Ok(signer.all_of(account, label)?.into_iter().map(one).collect())
        };
        let of_roles = self.roles().into_iter().filter(|role| account_of_role(*role) == *account);
        let of_roles = of_roles.map(|role| {
            let each = ServiceName::new(role, Instance::each());
            scope(role.as_str(), permissions(&rights_of(&each)))
        });
        let users = self.users();
        let of_users = users.iter().filter(|user| account_of(&Who::User(user.name.clone())) == *account);
        let of_users = of_users.map(|user| scope(user.name.user.as_str(), permissions(&user.rights())));
        let own = match account {
            AccountName::Farm => Some(scope(EXPORTS, nothing())),
            AccountName::System => Some(scope(PUSH, permissions(&Rights::of_resolver(&push_user().inbox())))),
            AccountName::Tenant(_) => None,
        };
        let scopes: Result<Vec<Vec<Scope>>, _> = of_roles.chain(of_users).chain(own).collect();
        Ok(scopes?.concat())
    }

    fn roles(&self) -> BTreeSet<Role> {
        self.services().keys().map(ServiceName::role).collect()
    }

    /// What the farm exports. The same subjects serve all tenants, so that most new tenants do not change the farm's account.
    fn exports(&self) -> Vec<Export> {
        let all = self.tenants().values().flat_map(crate::Tenant::crossings);
        let subjects: BTreeMap<String, Crossing> =
            all.map(|crossing| (crossing.of_all_groups(), crossing)).collect();
        let export = |(subject, crossing): (String, Crossing)| Export {
            name: subject.clone(),
            response_type: (!crossing.is_to_the_tenant()).then_some(answers(&crossing)),
            subject,
            token_req: true,
            r#type: kind(&crossing),
        };
        subjects.into_iter().map(export).collect()
    }

    /// What the account of a tenant imports, each with a token of the farm for this account and subject only.
    fn imports(&self, tenant: &TenantName, signer: &Signer) -> Result<Vec<Import>, SigningFault> {
        // By the new key as soon as there is one: the end of the old one then changes nothing for tenants.
        let (farm, key) = signer.newest_of(&AccountName::Farm, EXPORTS)?;
        let own = signer.account(&AccountName::Tenant(tenant.clone()))?;
        let import = |crossing: Crossing| -> Result<Import, SigningFault> {
            let (subject, kind) = (crossing.to_string(), kind(&crossing));
            let (issuer_account, r#type) = (farm.as_str(), "activation");
            let nats = ActivationPart { issuer_account, kind, subject: &subject, r#type, version: 2 };
            let sub = own.as_str();
            // Without a time, so that it is the same whenever it is made.
            let token = key.sign(&Claims { exp: None, iat: None, name: &subject, nats, sub })?;
            Ok(Import { account: farm.to_string(), name: subject.clone(), subject, token, r#type: kind })
        };
        let crossings = self.tenants().get(tenant).map(crate::Tenant::crossings).unwrap_or_default();
        crossings.into_iter().map(import).collect()
    }
}

impl Signer {
    /// The JWT of a user with this key. `expires` is in seconds since 1970.
    pub(crate) fn user_token(
        &self,
        who: &Who,
        key: &PublicKey,
        now: i64,
        expires: Option<i64>,
    ) -> Result<UserToken, SigningFault> {
        let (account, signing) = self.of(&account_of(who), label_of(who))?;
        let nats = UserPart { issuer_account: account.as_str(), r#type: "user", version: 2 };
        let (iat, sub) = (Some(now), key.as_str());
        signing.sign(&Claims { exp: expires, iat, name: name_of(who), nats, sub }).map(UserToken::new)
    }

    /// The public keys that may be in the JWT of a user: that of its account, and those of keys that sign it.
    pub(crate) fn issuers(&self, who: &Who) -> Result<(String, Vec<String>), SigningFault> {
        let account = account_of(who);
        let signing = self.accepted(&account, label_of(who))?;
        Ok((self.account(&account)?.to_string(), signing.iter().map(SigningKey::public).collect()))
    }

    /// A user for some minutes that changes accounts on servers.
    pub(crate) fn push_key(&self, now: i64) -> Result<(BusUser, UserKey), SigningFault> {
        let seed = Seed::generate()?;
        let (account, signing) = self.of(&AccountName::System, PUSH)?;
        let nats = UserPart { issuer_account: account.as_str(), r#type: "user", version: 2 };
        let (exp, iat, sub) = (Some(now + PUSH_SECONDS), Some(now), seed.public().as_str());
        let token = signing.sign(&Claims { exp, iat, name: PUSH, nats, sub }).map(UserToken::new)?;
        Ok((push_user(), UserKey { seed, token: Some(token) }))
    }

    /// The JWT of an account that the description does not have: it admits no user. A server that deleted the account would get it
    /// back from another one that was stopped meanwhile.
    pub(crate) fn closed_account(&self, key: &str, now: i64) -> Result<String, SigningFault> {
        let limits = Limits { conn: 0, ..limits(&AccountName::System) };
        let nats = AccountPart {
            default_permissions: nothing(),
            exports: Vec::new(),
            imports: Vec::new(),
            limits,
            revocations: BTreeMap::from([("*".to_owned(), LAST_TIME)]),
            signing_keys: Vec::new(),
            r#type: "account",
            version: 2,
        };
        self.operator.sign(&Claims { exp: None, iat: Some(now), name: "closed", nats, sub: key })
    }
}

fn push_user() -> BusUser {
    BusUser::new(PUSH, "1")
}

/// The account of a user or of a service.
pub(crate) fn account_of(who: &Who) -> AccountName {
    match who {
        Who::Service(service) => account_of_role(service.role()),
        Who::Tenant(tenant) => AccountName::Tenant(tenant.clone()),
        Who::User(user) => AccountName::Tenant(user.tenant.clone()),
    }
}

fn account_of_role(role: Role) -> AccountName {
    if role.is_of_the_system() { AccountName::System } else { AccountName::Farm }
}

/// Which key of the account signs the user.
fn label_of(who: &Who) -> &str {
    match who {
        Who::Service(service) => service.role().as_str(),
        Who::Tenant(tenant) => tenant.as_str(),
        Who::User(user) => user.user.as_str(),
    }
}

/// The name in its JWT, which takes the place of [`Instance::each`] in the rights of its role.
pub(crate) fn name_of(who: &Who) -> &str {
    match who {
        Who::Service(service) => service.instance(),
        Who::Tenant(_) | Who::User(_) => label_of(who),
    }
}

fn kind(crossing: &Crossing) -> &'static str {
    if crossing.is_to_the_tenant() { "stream" } else { "service" }
}

fn permissions(rights: &Rights) -> Permissions {
    let allow = |subjects: &BTreeSet<String>| Filter {
        allow: subjects.iter().cloned().collect(),
        ..Filter::default()
    };
    let resp = (rights.answers() > 0).then_some(Answers { max: rights.answers(), ttl: ANSWER_TIME });
    Permissions { r#pub: allow(rights.publish()), sub: allow(rights.subscribe()), resp }
}

fn nothing() -> Permissions {
    let all = || Filter { deny: vec![">".to_owned()], ..Filter::default() };
    Permissions { r#pub: all(), sub: all(), resp: None }
}

fn limits(account: &AccountName) -> Limits {
    let storage = || JetStreamLimits {
        consumer: UNLIMITED,
        disk_storage: UNLIMITED,
        mem_storage: UNLIMITED,
        streams: UNLIMITED,
    };
    let (conn, subs, storage) = match account {
        AccountName::Farm => (UNLIMITED, UNLIMITED, Some(storage())),
        AccountName::System => (UNLIMITED, UNLIMITED, None),
        AccountName::Tenant(_) => (TENANT_CONNECTIONS, TENANT_SUBSCRIPTIONS, None),
    };
    let (data, exports, imports, payload) = (UNLIMITED, UNLIMITED, UNLIMITED, UNLIMITED);
    Limits { conn, data, exports, imports, leaf: 0, payload, subs, wildcards: true, storage }
}
