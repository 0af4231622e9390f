//! The secret keys that sign accounts and users, from their files, and the making of those that are missing.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use credentials::private_text;
use serde::Serialize;

use crate::{
    Access, AccountKey, AccountName, Days, Jwt, Keys, SeedFolder, SigningFault, Slot,
    jwt::Account,
    seed_folder::{remove_file, rename},
    signing::{Claims, SigningKey, Signs},
};

/// The secret keys of a description whose users have JWTs. They cannot be printed.
pub struct Signer {
    pub(crate) operator: SigningKey,
    accounts: BTreeMap<AccountName, AccountKeys>,
    /// Whether servers have the new keys of all accounts, and not only those that are used already.
    with_new_keys: bool,
}

struct AccountKeys {
    public: AccountKey,
    signing: Keys<SigningKey>,
    next_is_used: bool,
}

/// A step of the replacement of the key with which an account signs its users.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SigningStep {
    /// A new key signs beside the old one.
    Begin,
    /// The old key no longer signs.
    Finish,
    /// The new key no longer signs.
    Cancel,
}

/// A file of a secret key.
enum KeyFile<'a> {
    /// The operator itself: signs only its own JWT.
    Operator,
    OperatorSigning,
    /// An account itself; what it could sign, its signing key does.
    Account(&'a AccountName),
    AccountSigning(&'a AccountName, Slot),
}

impl SeedFolder {
    fn key_path(&self, file: &KeyFile<'_>) -> PathBuf {
        self.root().join(match file {
            KeyFile::Operator => "OPERATOR.nk".to_owned(),
            KeyFile::OperatorSigning => "OPERATOR.signing.nk".to_owned(),
            KeyFile::Account(name) => format!("{name}.nk"),
            KeyFile::AccountSigning(name, Slot::Current) => format!("{name}.signing.nk"),
            KeyFile::AccountSigning(name, Slot::Next) => format!("{name}.signing.next.nk"),
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

    /// The secret key that signs for an account, from either of its files: a replacement may have been killed between them.
    fn known_signing_key(
        &self,
        account: &AccountName,
        slot: Slot,
        wanted: &AccountKey,
    ) -> Result<SigningKey, SigningFault> {
        for slot in [Slot::Current, Slot::Next] {
            let found = self.key(&KeyFile::AccountSigning(account, slot))?;
            if let Some(key) = found.filter(|key| key.public() == wanted.as_str()) {
                return Ok(key);
            }
        }
        self.known_key(&KeyFile::AccountSigning(account, slot), wanted.as_str())
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
            let current = self.known_signing_key(&name, Slot::Current, &account.signing.current)?;
            let next = account.signing.next.as_ref();
            let next = next.map(|key| self.known_signing_key(&name, Slot::Next, key)).transpose()?;
            let (public, next_is_used) = (account.key.clone(), account.next_is_used);
            accounts.insert(name, AccountKeys { public, signing: Keys { current, next }, next_is_used });
        }
        Ok(Signer { operator, accounts, with_new_keys: false })
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
            remove_file(self.key_path(&KeyFile::AccountSigning(gone, Slot::Current)))?;
            remove_file(self.key_path(&KeyFile::AccountSigning(gone, Slot::Next)))?;
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
        let key = public(&self.made_key(&KeyFile::Account(name), Signs::Users, made)?)?;
        let file = KeyFile::AccountSigning(name, Slot::Current);
        let signing = Keys::one(public(&self.made_key(&file, Signs::Users, made)?)?);
        Ok(Account { key, signing, next_is_used: false, issued: BTreeSet::new() })
    }

    /// Makes a step of the replacement of the key with which an account signs its users. Returns the description with it, and the
    /// path of a new key. Call [`SeedFolder::settle_signing`] when the description is stored.
    ///
    /// # Errors
    ///
    /// Fails if there is no such account, if its users have no JWTs of the new key yet, or if a key cannot be read or written.
    pub fn rotate_signing(
        &self,
        access: &Access,
        name: &AccountName,
        step: SigningStep,
    ) -> Result<(Access, Vec<PathBuf>), SigningFault> {
        let (mut changed, mut made) = (access.clone(), Vec::new());
        let jwt = changed.jwt.as_mut().ok_or(SigningFault::NoJwt)?;
        let account = jwt.accounts.get_mut(name).ok_or_else(|| SigningFault::NoAccount(name.to_string()))?;
        let current = account.signing.current.clone();
        match (step, account.signing.next.clone()) {
            (SigningStep::Begin, None) => {
                // The folder may be another one.
                self.known_signing_key(name, Slot::Current, &current)?;
                self.settle_signing(access, name)?;
                let key =
                    self.made_key(&KeyFile::AccountSigning(name, Slot::Next), Signs::Users, &mut made)?;
                account.signing.next = Some(public(&key)?);
                account.next_is_used = false;
            }
            (SigningStep::Finish, Some(_)) if !account.next_is_used => {
                return Err(SigningFault::NotUsed(name.to_string()));
            }
            (SigningStep::Finish, Some(next)) => {
                // Without it, nothing could sign for the account any more.
                self.known_signing_key(name, Slot::Next, &next)?;
                (account.signing, account.next_is_used) = (Keys::one(next), false);
            }
            (SigningStep::Cancel, Some(_)) => {
                self.known_signing_key(name, Slot::Current, &current)?;
                (account.signing.next, account.next_is_used) = (None, false);
            }
            // It was made before.
            (SigningStep::Begin, Some(_)) | (SigningStep::Finish | SigningStep::Cancel, None) => {}
        }
        Ok((changed, made))
    }

    /// Puts the key that signs for an account of the stored description into its file, and removes that of another one. Changes nothing
    /// while both keys sign.
    ///
    /// # Errors
    ///
    /// Fails if a key cannot be read or written.
    pub fn settle_signing(&self, access: &Access, name: &AccountName) -> Result<(), SigningFault> {
        let account = access.jwt().and_then(|jwt| jwt.accounts.get(name));
        let Some(account) = account.filter(|account| account.signing.next.is_none()) else { return Ok(()) };
        let is_current = |key: SigningKey| key.public() == account.signing.current.as_str();
        let [current, next] = [Slot::Current, Slot::Next].map(|slot| KeyFile::AccountSigning(name, slot));
        if self.key(&next)?.is_some_and(is_current) {
            rename(self.key_path(&next), &self.key_path(&current))?;
        } else if self.key(&current)?.is_some_and(is_current) {
            remove_file(self.key_path(&next))?;
        }
        Ok(())
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

fn public(key: &SigningKey) -> Result<AccountKey, SigningFault> {
    key.public().parse().map_err(|reason: String| SigningFault::Sign(reason.into()))
}

impl Signer {
    /// The same, signing with new keys where keys are replaced: servers must have them.
    #[must_use]
    pub fn with_new_keys(self) -> Self {
        Self { with_new_keys: true, ..self }
    }

    /// Whether a key of an account is being replaced.
    pub fn has_new_keys(&self) -> bool {
        self.accounts.values().any(|keys| keys.signing.next.is_some())
    }

    fn keys(&self, account: &AccountName) -> Result<&AccountKeys, SigningFault> {
        self.accounts.get(account).ok_or_else(|| SigningFault::NoAccount(account.to_string()))
    }

    /// The new key of an account, if it signs users already.
    fn used_next<'a>(&self, keys: &'a AccountKeys) -> Option<&'a SigningKey> {
        keys.signing.next.as_ref().filter(|_| self.with_new_keys || keys.next_is_used)
    }

    /// The public key of an account, and the key of it that signs users with this label.
    pub(crate) fn of(
        &self,
        account: &AccountName,
        label: &str,
    ) -> Result<(&AccountKey, SigningKey), SigningFault> {
        let keys = self.keys(account)?;
        let key = self.used_next(keys).unwrap_or(&keys.signing.current);
        Ok((&keys.public, key.derive(label)?))
    }

    /// The same with the newest key, whether or not users have JWTs of it.
    pub(crate) fn newest_of(
        &self,
        account: &AccountName,
        label: &str,
    ) -> Result<(&AccountKey, SigningKey), SigningFault> {
        let keys = self.keys(account)?;
        let key = keys.signing.next.as_ref().unwrap_or(&keys.signing.current);
        Ok((&keys.public, key.derive(label)?))
    }

    /// All keys of an account that sign users with this label.
    pub(crate) fn all_of(&self, account: &AccountName, label: &str) -> Result<Vec<SigningKey>, SigningFault> {
        self.keys(account)?.signing.iter().map(|key| key.derive(label)).collect()
    }

    /// The keys of an account by which JWTs of its users with this label are as they should be.
    pub(crate) fn accepted(
        &self,
        account: &AccountName,
        label: &str,
    ) -> Result<Vec<SigningKey>, SigningFault> {
        match self.used_next(self.keys(account)?) {
            None => self.all_of(account, label),
            Some(next) => Ok(vec![next.derive(label)?]),
        }
    }

    pub(crate) fn account(&self, account: &AccountName) -> Result<&AccountKey, SigningFault> {
        self.keys(account).map(|keys| &keys.public)
    }
}

impl Access {
    /// The accounts of nats-server that this description needs.
    pub fn account_names(&self) -> BTreeSet<AccountName> {
        let tenants = self.tenants().keys().cloned().map(AccountName::Tenant);
        [AccountName::System, AccountName::Farm].into_iter().chain(tenants).collect()
    }
}
