//! The secret keys that sign accounts and users, from their files, and the making of those that are missing.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use credentials::private_text;
use serde::Serialize;

use crate::{
    Access, AccountKey, AccountName, Days, Jwt, SeedFolder, SigningFault,
    jwt::Account,
    seed_folder::remove_file,
    signing::{Claims, SigningKey, Signs},
};

/// The secret keys of a description whose users have JWTs. They cannot be printed.
pub struct Signer {
    pub(crate) operator: SigningKey,
    accounts: BTreeMap<AccountName, (AccountKey, SigningKey)>,
}

/// A file of a secret key.
enum KeyFile<'a> {
    /// The operator itself: signs only its own JWT.
    Operator,
    OperatorSigning,
    /// An account itself; what it could sign, its signing key does.
    Account(&'a AccountName),
    AccountSigning(&'a AccountName),
}

impl SeedFolder {
    fn key_path(&self, file: &KeyFile<'_>) -> PathBuf {
        self.root().join(match file {
            KeyFile::Operator => "OPERATOR.nk".to_owned(),
            KeyFile::OperatorSigning => "OPERATOR.signing.nk".to_owned(),
            KeyFile::Account(name) => format!("{name}.nk"),
            KeyFile::AccountSigning(name) => format!("{name}.signing.nk"),
        })
    }

    fn key(&self, file: &KeyFile<'_>) -> Result<Option<SigningKey>, SigningFault> {
        let path = self.key_path(file);
        let Some(text) = private_text(&path)? else { return Ok(None) };
        SigningKey::parse(&text).map(Some).ok_or(SigningFault::Unusable { path })
    }

    /// The secret key of a file, which must be that of the description.
    fn known_key(&self, file: &KeyFile<'_>, wanted: &str) -> Result<SigningKey, SigningFault> {
        let path = self.key_path(file);
        let key = self.key(file)?.ok_or_else(|| SigningFault::Missing { path: path.clone() })?;
        if key.public() == wanted {
            return Ok(key);
        }
        Err(SigningFault::Other { path, found: key.public(), wanted: wanted.to_owned() })
    }

    /// The secret key of a file that is there already, from a process that was killed, or a new one.
    fn made_key(
        &self,
        file: &KeyFile<'_>,
        signs: Signs,
        made: &mut Vec<PathBuf>,
    ) -> Result<SigningKey, SigningFault> {
        if let Some(key) = self.key(file)? {
            return Ok(key);
        }
        let key = SigningKey::generate(signs);
        let path = self.key_path(file);
        self.write_new(&path, &format!("{}\n", key.reveal()?))?;
        made.push(path);
        Ok(key)
    }

    /// The secret keys that sign what the description has.
    ///
    /// # Errors
    ///
    /// Fails if a key is missing, is not that of the description, or can be read by others.
    pub fn signer(&self, access: &Access) -> Result<Signer, SigningFault> {
        let jwt = access.jwt().ok_or(SigningFault::NoJwt)?;
        let operator = self.known_key(&KeyFile::OperatorSigning, jwt.operator.signing())?;
        let mut accounts = BTreeMap::new();
        for name in access.account_names() {
            let account = jwt.accounts.get(&name).ok_or_else(|| SigningFault::NoAccount(name.to_string()))?;
            let signing = self.known_key(&KeyFile::AccountSigning(&name), account.signing.as_str())?;
            accounts.insert(name, (account.key.clone(), signing));
        }
        Ok(Signer { operator, accounts })
    }

    /// The description with an operator, and with the accounts that it needs. Writes new keys before the description has
    /// them, and returns their paths. `days` is for a new operator.
    ///
    /// # Errors
    ///
    /// Fails if a key cannot be read or written.
    pub fn with_operator(
        &self,
        access: &Access,
        days: Days,
        now: i64,
    ) -> Result<(Access, Vec<PathBuf>), SigningFault> {
        let (mut access, mut made) = self.with_accounts(access)?;
        if access.jwt.is_none() {
            let accounts = self.accounts(&access, &mut made)?;
            let operator = self.new_operator(&accounts, now, &mut made)?;
            access.jwt = Some(Jwt { operator, days, accounts });
        }
        Ok((access, made))
    }

    /// The description with the accounts that it needs and no others, if it has an operator. The keys of others are removed, so
    /// that none of them is used for a later account of the same name.
    pub(crate) fn with_accounts(&self, access: &Access) -> Result<(Access, Vec<PathBuf>), SigningFault> {
        let mut made = Vec::new();
        let Some(jwt) = access.jwt() else { return Ok((access.clone(), made)) };
        let accounts = self.accounts(access, &mut made)?;
        for gone in jwt.accounts.keys().filter(|name| !accounts.contains_key(name)) {
            remove_file(self.key_path(&KeyFile::Account(gone)))?;
            remove_file(self.key_path(&KeyFile::AccountSigning(gone)))?;
        }
        let jwt = Jwt { accounts, ..jwt.clone() };
        Ok((Access { jwt: Some(jwt), ..access.clone() }, made))
    }

    fn accounts(
        &self,
        access: &Access,
        made: &mut Vec<PathBuf>,
    ) -> Result<BTreeMap<AccountName, Account>, SigningFault> {
        let account = |name: AccountName| {
            let known = access.jwt().and_then(|jwt| jwt.accounts.get(&name));
            let account = known.map_or_else(|| self.new_account(&name, made), |known| Ok(known.clone()))?;
            Ok((name, account))
        };
        access.account_names().into_iter().map(account).collect()
    }

    fn new_account(&self, name: &AccountName, made: &mut Vec<PathBuf>) -> Result<Account, SigningFault> {
        let public = |key: &SigningKey| {
            key.public().parse().map_err(|reason: String| SigningFault::Sign(reason.into()))
        };
        let key = public(&self.made_key(&KeyFile::Account(name), Signs::Users, made)?)?;
        let signing = public(&self.made_key(&KeyFile::AccountSigning(name), Signs::Users, made)?)?;
        Ok(Account { key, signing, issued: BTreeSet::new() })
    }

    fn new_operator(
        &self,
        accounts: &BTreeMap<AccountName, Account>,
        now: i64,
        made: &mut Vec<PathBuf>,
    ) -> Result<crate::jwt::OperatorToken, SigningFault> {
        let key = self.made_key(&KeyFile::Operator, Signs::Accounts, made)?;
        let signing = self.made_key(&KeyFile::OperatorSigning, Signs::Accounts, made)?;
        let system = accounts.get(&AccountName::System).map(|system| system.key.as_str());
        let nats = OperatorPart {
            signing_keys: [signing.public()],
            strict_signing_key_usage: false,
            system_account: system,
            r#type: "operator",
            version: 2,
        };
        let token =
            key.sign(&Claims { exp: None, iat: Some(now), name: "forebay", nats, sub: &key.public() })?;
        token.parse().map_err(|reason: String| SigningFault::Sign(reason.into()))
    }
}

#[derive(Serialize)]
struct OperatorPart<'a> {
    signing_keys: [String; 1],
    strict_signing_key_usage: bool,
    system_account: Option<&'a str>,
    r#type: &'static str,
    version: u8,
}

impl Signer {
    /// The public key of an account, and the key of it that signs users with this label.
    pub(crate) fn of(
        &self,
        account: &AccountName,
        label: &str,
    ) -> Result<(&AccountKey, SigningKey), SigningFault> {
        let found = self.accounts.get(account).ok_or_else(|| SigningFault::NoAccount(account.to_string()));
        let (key, signing) = found?;
        Ok((key, signing.derive(label)?))
    }

    pub(crate) fn account(&self, account: &AccountName) -> Result<&AccountKey, SigningFault> {
        let found = self.accounts.get(account);
        found.map(|(key, _)| key).ok_or_else(|| SigningFault::NoAccount(account.to_string()))
    }
}

impl Access {
    /// The accounts of nats-server that this description needs.
    pub fn account_names(&self) -> BTreeSet<AccountName> {
        let tenants = self.tenants().keys().cloned().map(AccountName::Tenant);
        [AccountName::System, AccountName::Farm].into_iter().chain(tenants).collect()
    }
}
