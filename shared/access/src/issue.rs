//! The files with the JWTs of users: which are missing or end soon, and their writing.

use std::{collections::BTreeSet, path::PathBuf};

use credentials::{Expiry, PublicKey, UserKey, claims};
use serde::Deserialize;

use crate::{
    Access, AccountName, SeedFolder, Signer, SigningFault, Slot, Who,
    tokens::{account_of, name_of},
};

/// The files that [`SeedFolder::issue`] wrote, and those that it could not.
#[derive(Debug, Default)]
pub struct IssuedTokens {
    /// Files with new JWTs.
    pub written: Vec<PathBuf>,
    /// Users whose seed is not in the folder, so that no file can be written for them.
    pub without_seed: Vec<Who>,
}

const DAY: i64 = 86_400;

#[derive(Deserialize)]
struct UserClaims {
    iss: String,
    sub: String,
    name: String,
    nats: UserPart,
    #[serde(flatten)]
    expiry: Expiry,
}

#[derive(Deserialize)]
struct UserPart {
    issuer_account: String,
}

impl Access {
    /// The description in which each account knows the keys of all its users. It must be stored before they get JWTs: by it,
    /// keys that are removed later are revoked.
    #[must_use]
    pub fn with_issued(&self) -> Self {
        let mut access = self.clone();
        let Some(jwt) = &mut access.jwt else { return access };
        for (name, account) in &mut jwt.accounts {
            account.issued.extend(self.keys_of_account(name));
        }
        access
    }

    /// The description in which servers have all signing keys, and users JWTs of the new ones: of accounts whose users all have one.
    #[must_use]
    pub fn with_used_keys(&self, issued: &IssuedTokens) -> Self {
        let mut access = self.clone();
        let without: BTreeSet<AccountName> = issued.without_seed.iter().map(account_of).collect();
        for (name, account) in access.jwt.iter_mut().flat_map(|jwt| &mut jwt.accounts) {
            let is_used = account.signing.next.is_some() && !without.contains(name);
            account.next_is_used = account.next_is_used || is_used;
        }
        access
    }
}

impl SeedFolder {
    /// Writes a file with a JWT and the seed for each key whose seed is here. A file that is valid for long enough stays.
    ///
    /// # Errors
    ///
    /// Fails if a file cannot be read or written.
    pub fn issue(&self, access: &Access, signer: &Signer, now: i64) -> Result<IssuedTokens, SigningFault> {
        let mut issued = IssuedTokens::default();
        for (who, keys) in access.key_owners() {
            let mut found = false;
            for slot in [Slot::Current, Slot::Next] {
                let seed = self.read(&who, slot)?.filter(|seed| keys.contains(seed.public()));
                let Some(seed) = seed else { continue };
                found = true;
                let path = self.token_path(&who, slot);
                let known = UserKey::read(&path).ok().flatten();
                let days = access.days_of(&who);
                if known.is_some_and(|known| is_valid(&known, &who, seed.public(), signer, days, now)) {
                    continue;
                }
                let expires = days.map(|days| now + i64::from(days) * DAY);
                let token = Some(signer.user_token(&who, seed.public(), now, expires)?);
                self.replace_private(&path, &UserKey { seed, token }.reveal())?;
                issued.written.push(path);
            }
            if !found {
                issued.without_seed.push(who);
            }
        }
        Ok(issued)
    }
}

impl Access {
    fn days_of(&self, who: &Who) -> Option<u32> {
        let days = self.jwt()?.days;
        let days = if matches!(who, Who::Service(_)) { days.services } else { days.users };
        days.map(std::num::NonZeroU32::get)
    }
}

fn is_valid(
    known: &UserKey,
    who: &Who,
    key: &PublicKey,
    signer: &Signer,
    days: Option<u32>,
    now: i64,
) -> bool {
    let token = known.token.as_ref().and_then(|token| claims::<UserClaims>(token.reveal()));
    let (Some(token), Ok((account, signing))) = (token, signer.issuers(who)) else { return false };
    let is_own = token.sub == key.as_str() && known.seed.public() == key && token.name == name_of(who);
    let is_signed = signing.contains(&token.iss) && token.nats.issuer_account == account;
    is_own && is_signed && !is_due(token.expiry, days, now)
}

/// Whether a JWT is to be replaced: if it expires within a third of its validity, or was made for another one.
fn is_due(expiry: Expiry, days: Option<u32>, now: i64) -> bool {
    match (expiry.expires, days) {
        (None, None) => false,
        (Some(_), None) | (None, Some(_)) => true,
        (Some(expires), Some(days)) => {
            let validity = i64::from(days) * DAY;
            expires - now < validity / 3 || expires - expiry.issued != validity
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jwt_is_replaced_in_the_last_third_of_its_validity() {
        let of = |issued: i64, expires: Option<i64>| Expiry { issued, expires };
        for (expiry, days, now, wanted) in [
            (of(0, None), None, 9, false),
            (of(0, None), Some(30), 9, true),
            (of(0, Some(30 * DAY)), None, 9, true),
            (of(0, Some(30 * DAY)), Some(30), 19 * DAY, false),
            (of(0, Some(30 * DAY)), Some(30), 20 * DAY + 1, true),
            (of(0, Some(30 * DAY)), Some(30), 40 * DAY, true),
            (of(0, Some(30 * DAY)), Some(10), 0, true),
            (of(0, Some(30 * DAY)), Some(90), 0, true),
        ] {
            assert_eq!(is_due(expiry, days, now), wanted, "{expiry:?} {days:?} {now}");
        }
    }

    #[test]
    fn each_user_is_in_one_account() {
        for (who, account) in [
            ("gateway/1", "FARM"),
            ("monitor/1", "SYS"),
            ("payments/ci", "TENANT_payments"),
            ("payments", "TENANT_payments"),
        ] {
            assert_eq!(account_of(&who.parse().unwrap()).to_string(), account, "{who}");
        }
    }
}
