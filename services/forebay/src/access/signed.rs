//! `forebay access apply` where users have JWTs: writes these, and gives running servers the accounts that have changed.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::ExitCode,
};

use access::{Access, IssuedTokens, Pushed, Signer, nats_config_with_jwts, probe, push, redis_acl};
use command_line::{
    failure::{FAILED, Failure, UNREACHABLE, say},
    globals::Globals,
    stdout,
};
use credentials::{Credentials, PemFiles, Server};
use serde_json::json;

use super::{
    change::now,
    store::{File, Locked},
    target::{Target, redis_line},
};
use crate::replaced_file;

/// What to do with a description whose users have JWTs.
pub(super) struct Apply<'a> {
    pub(super) target: &'a Target,
    pub(super) tls: PemFiles,
    /// Give running servers the accounts that have changed.
    pub(super) push: bool,
    /// The folder of nats-server for accounts.
    pub(super) accounts: Option<&'a Path>,
}

/// What was written to files, and what signs it.
struct Written {
    access: Access,
    signer: Signer,
    issued: IssuedTokens,
}

impl Apply<'_> {
    /// Applies the description to files, and to the servers if asked.
    pub(super) async fn run(&self, file: &File, globals: &Globals) -> Result<ExitCode, Failure> {
        // Until the servers have it: what another command has changed meanwhile must not be given to them first.
        let locked = file.lock()?;
        let Written { access, signer, mut issued } = self.write(&locked)?;
        let (mut pushed, mut findings) = (Pushed::default(), Vec::new());
        if self.push {
            for url in &self.target.urls {
                let credentials = Credentials { seed: None, tls: self.tls.clone() };
                let server = Server { url: url.clone(), credentials };
                let changed = push(&access, &signer, &server, now()).await;
                let changed = changed.map_err(|error| Failure::of(UNREACHABLE, &error))?;
                pushed.updated.extend(changed.updated);
                pushed.closed.extend(changed.closed);
            }
            if signer.has_new_keys() {
                let new = self.issue_by_new_keys(&locked, &access, signer)?;
                issued = IssuedTokens { written: [issued.written, new.written].concat(), ..new };
            }
            let found = probe(&access, &self.target.seeds, &self.target.urls, &self.tls).await;
            findings.extend(found.iter().map(|finding| telemetry::error_chain(finding)));
        }
        drop(locked);
        let has_redis = self.push && self.target.load_users(&access, &self.tls).await?;
        self.report(&issued, &pushed, (&findings, has_redis), globals)
    }

    /// Writes the JWTs that new signing keys sign. Servers have these now: a process that connects again reads its file.
    fn issue_by_new_keys(
        &self,
        locked: &Locked,
        access: &Access,
        signer: Signer,
    ) -> Result<IssuedTokens, Failure> {
        let issued = self.target.seeds.issue(access, &signer.with_new_keys(), now());
        let issued = issued.map_err(|error| Failure::of(FAILED, &error))?;
        let used = access.with_used_keys(&issued);
        if used != *access {
            locked.write(&used)?;
        }
        Ok(issued)
    }

    /// Writes the files. The description is locked, and has the keys of all users before these get JWTs.
    fn write(&self, locked: &Locked) -> Result<Written, Failure> {
        let failed = |error: &dyn std::error::Error| Failure::of(FAILED, error);
        let seeds = &self.target.seeds;
        let known = locked.read()?.unwrap_or_default();
        let signer = seeds.signer(&known).map_err(|error| failed(&error))?;
        let access = known.with_issued();
        if access != known {
            locked.write(&access)?;
        }
        let issued = seeds.issue(&access, &signer, now()).map_err(|error| failed(&error))?;
        let config = nats_config_with_jwts(&access, &signer, &self.accounts()?, now());
        replaced_file::replace(&self.target.nats_config, &config.map_err(|error| failed(&error))?)?;
        replaced_file::replace(&self.target.redis_acl, &redis_acl(&access))?;
        Ok(Written { access, signer, issued })
    }

    /// The folder for accounts; the working folder of nats-server is not known here.
    fn accounts(&self) -> Result<PathBuf, Failure> {
        let beside = || self.target.nats_config.with_file_name("accounts");
        let folder = self.accounts.map_or_else(beside, Path::to_owned);
        std::path::absolute(&folder)
            .map_err(|error| Failure::new(FAILED, format!("cannot use {}", folder.display()), &error))
    }

    fn report(
        &self,
        issued: &IssuedTokens,
        pushed: &Pushed,
        (findings, has_redis): (&[String], bool),
        globals: &Globals,
    ) -> Result<ExitCode, Failure> {
        let paths: Vec<String> = issued.written.iter().map(|path| path.display().to_string()).collect();
        let without: Vec<String> = issued.without_seed.iter().map(ToString::to_string).collect();
        let updated: BTreeSet<String> = pushed.updated.iter().map(ToString::to_string).collect();
        if globals.json {
            let checked: &[String] = if self.push { &self.target.urls } else { &[] };
            stdout::json(&json!({
                "written": self.target.written(), "issued": paths, "without_seed": without,
                "updated": updated, "closed": pushed.closed, "checked": checked, "findings": findings,
            }))?;
        }
        for path in &paths {
            say(&format!("new JWT: {path}"));
        }
        for who in &without {
            say(&format!("{who} has no JWT: its seed is not in the folder of --seeds"));
        }
        for account in &updated {
            say(&format!("changed on the servers: account {account}"));
        }
        for key in &pushed.closed {
            say(&format!("closed on the servers: account {key}"));
        }
        for finding in findings {
            say(finding);
        }
        if !findings.is_empty() {
            let advice = "users of tenants do not reach the farm: run `forebay access apply --push` once more, with --server for \
                          each server of the cluster";
            return Err(Failure::plain(FAILED, advice));
        }
        if self.push {
            let which = if without.is_empty() { "" } else { " that have JWTs" };
            say(&format!("all users of tenants{which} reach the farm{}", redis_line(has_redis)));
        } else {
            say(
                "written; start the nats-servers with this configuration, then run this command with --push, which gives \
                 them the accounts of tenants and checks each user",
            );
        }
        if without.is_empty() { Ok(ExitCode::SUCCESS) } else { Ok(ExitCode::from(FAILED)) }
    }
}
