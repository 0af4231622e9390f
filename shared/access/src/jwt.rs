//! The mode of nats-server in which an operator signs accounts, and these sign users: what the description has of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Write as _},
    num::NonZeroU32,
    str::FromStr,
};

use credentials::{PublicKey, claims};
use serde::Deserialize;

use crate::{AccountKey, Keys, NameError, TenantName, signing::is_signed_by};

/// An account of nats-server.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "String")]
pub enum AccountName {
    /// The account that has JetStream, and all services.
    Farm,
    /// That of the servers themselves.
    System,
    /// That of the users of a tenant.
    Tenant(TenantName),
}

impl fmt::Display for AccountName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Farm => f.write_str("FARM"),
            Self::System => f.write_str("SYS"),
            Self::Tenant(tenant) => write!(f, "TENANT_{tenant}"),
        }
    }
}

impl FromStr for AccountName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.strip_prefix("TENANT_")) {
            ("FARM", _) => Ok(Self::Farm),
            ("SYS", _) => Ok(Self::System),
            (_, Some(tenant)) => {
                tenant.parse().map(Self::Tenant).map_err(|error: NameError| error.to_string())
            }
            (_, None) => Err("invalid name of an account: expected FARM, SYS or TENANT_NAME".to_owned()),
        }
    }
}

impl TryFrom<String> for AccountName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// That users have signed JWTs: the public keys that sign, and what they have signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Jwt {
    pub(crate) operator: OperatorToken,
    /// How long JWTs of users are valid.
    pub days: Days,
    pub(crate) accounts: BTreeMap<AccountName, Account>,
}

/// For how many days JWTs of users are valid; none: they do not expire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Days {
    pub users: Option<NonZeroU32>,
    pub services: Option<NonZeroU32>,
}

/// The public keys of an account, and all users to whom it gave JWTs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) key: AccountKey,
    /// From each follow keys that sign users.
    pub(crate) signing: Keys<AccountKey>,
    /// Whether servers have the next signing key, and users JWTs that it has signed.
    pub(crate) next_is_used: bool,
    /// Public keys of all users that have had a JWT of this account. A key that is not in the description any more is revoked.
    pub(crate) issued: BTreeSet<PublicKey>,
}

/// The JWT of the operator, which the operator has signed itself.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct OperatorToken {
    text: String,
    signing: String,
}

#[derive(Deserialize)]
struct OperatorClaims {
    sub: String,
    nats: OperatorPart,
}

#[derive(Deserialize)]
struct OperatorPart {
    signing_keys: Vec<String>,
}

impl OperatorToken {
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// The public key that signs accounts.
    pub(crate) fn signing(&self) -> &str {
        &self.signing
    }
}

impl FromStr for OperatorToken {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wanted =
            || "invalid JWT of an operator: expected one that `forebay access init --jwt` made".to_owned();
        let OperatorClaims { sub, nats } = claims(text).ok_or_else(wanted)?;
        let signing = nats.signing_keys.into_iter().next().ok_or_else(wanted)?;
        if is_signed_by(text, &sub) { Ok(Self { text: text.to_owned(), signing }) } else { Err(wanted()) }
    }
}

impl TryFrom<String> for OperatorToken {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// The table `jwt` of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct JwtEntry {
    operator: OperatorToken,
    user_days: Option<NonZeroU32>,
    service_days: Option<NonZeroU32>,
    #[serde(default, rename = "account")]
    accounts: Vec<AccountEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, try_from = "AccountFields")]
struct AccountEntry {
    name: AccountName,
    account: Account,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AccountFields {
    name: AccountName,
    key: AccountKey,
    signing: AccountKey,
    next_signing: Option<AccountKey>,
    #[serde(default)]
    next_is_used: bool,
    #[serde(default)]
    issued: Vec<String>,
}

impl TryFrom<AccountFields> for AccountEntry {
    type Error = String;

    fn try_from(fields: AccountFields) -> Result<Self, String> {
        let AccountFields { name, key, signing, next_signing, next_is_used, issued } = fields;
        let signing = Keys { current: signing, next: next_signing };
        let issued: Result<_, _> = issued.iter().map(|key| key.parse()).collect();
        let issued = issued.map_err(|error: credentials::KeyError| error.to_string())?;
        Ok(Self { name, account: Account { key, signing, next_is_used, issued } })
    }
}

impl JwtEntry {
    /// The content of the table, or the account that it has twice.
    pub(crate) fn into_jwt(self) -> Result<Jwt, AccountName> {
        let mut accounts = BTreeMap::new();
        for AccountEntry { name, account } in self.accounts {
            if accounts.insert(name.clone(), account).is_some() {
                return Err(name);
            }
        }
        let days = Days { users: self.user_days, services: self.service_days };
        Ok(Jwt { operator: self.operator, days, accounts })
    }
}

impl Jwt {
    /// The table of the file.
    pub(crate) fn write(&self, text: &mut String) {
        // Writing to a String cannot fail.
        let _ = write!(text, "\n[jwt]\noperator = \"{}\"\n", self.operator.as_str());
        for (name, days) in [("user_days", self.days.users), ("service_days", self.days.services)] {
            if let Some(days) = days {
                let _ = writeln!(text, "{name} = {days}");
            }
        }
        for (name, Account { key, signing: Keys { current, next }, next_is_used, issued }) in &self.accounts {
            let _ = write!(
                text,
                "\n[[jwt.account]]\nname = \"{name}\"\nkey = \"{key}\"\nsigning = \"{current}\"\n"
            );
            if let Some(next) = next {
                let _ = writeln!(text, "next_signing = \"{next}\"\nnext_is_used = {next_is_used}");
            }
            if !issued.is_empty() {
                let lines: Vec<String> = issued.iter().map(|key| format!("    \"{key}\",\n")).collect();
                let _ = writeln!(text, "issued = [\n{}]", lines.concat());
            }
        }
    }
}
