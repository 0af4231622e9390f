//! Checks of what is open, weak or about to expire.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use bus::Bus;
use credentials::{Credentials, Server, UserKey};
use index::{Index, IndexError};
use model::{Millis, is_loopback_host, is_loopback_listen};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use settings::Settings;

use super::{Finding, Status, certificate_end::certificate_end};
use crate::credential::{callers_of, rules_file};

const SECURE: &str =
    "give keys to those who may use it: `forebay up --secure`, or `forebay access` (docs/security.md)";
const RENEW: &str =
    "renew it: a changed file applies without a restart; `forebay up --secure` makes new ones when it starts";
const SECONDS_PER_DAY: i64 = 86_400;
/// Time before its end at which a certificate is reported, in seconds.
const SOON: i64 = 30 * SECONDS_PER_DAY;

/// Checks the servers and the files of this process. `bus` is the connection to nats-server, if there is one.
pub(super) async fn run(
    bus: Option<&Bus>,
    nats: &Server,
    redis: &Server,
    settings: &Settings,
) -> Vec<Finding> {
    let now = (Millis::of_this_machine().0 / 1000).cast_signed();
    let mut findings: Vec<Finding> = bus.map(|bus| open_bus(bus, nats)).into_iter().collect();
    findings.extend(open_index(redis).await);
    findings.extend(certificates(&nats.credentials, settings, now));
    findings.extend(tokens(&nats.credentials, now));
    findings.extend(listeners(settings));
    findings.extend(rules(settings));
    findings.extend(secrets(&nats.credentials, settings).iter().filter_map(|path| readable(path)));
    findings
}

fn open_bus(bus: &Bus, nats: &Server) -> Finding {
    let server = bus.server();
    match (server.needs_key, server.needs_tls || is_local(&nats.url)) {
        (true, true) => Finding::ok("keys", "nats-server admits only those who have a key"),
        (true, false) => Finding::warn(
            "keys",
            "nats-server is called without TLS: others can read and change what is sent",
            "give it a certificate (`tls` in its configuration), and use tls:// in nats_url",
        ),
        (false, _) => open("nats-server", is_local(&nats.url) && is_loopback_host(&server.host)),
    }
}

async fn open_index(redis: &Server) -> Option<Finding> {
    // A connection opens without a key: what matters is whether it may do something.
    let stranger = async {
        let index = Index::connect(redis.url.as_str(), false).await?;
        index.health().await?;
        // What it does not say is judged by the URL.
        Ok::<_, IndexError>(index.admits_other_machines().await.unwrap_or(false))
    };
    match (stranger.await, redis.credentials.seed.is_some()) {
        (Ok(admits_others), _) => Some(open("Redis", is_local(&redis.url) && !admits_others)),
        (Err(_), true) => Some(Finding::ok("keys", "Redis admits only those who have a key")),
        // It is not reachable, or has a password in its URL: another check reports that.
        (Err(_), false) => None,
    }
}

fn open(name: &str, is_local: bool) -> Finding {
    if is_local {
        return Finding::ok(
            "keys",
            format!("{name} admits every process of this machine, and no other machine"),
        );
    }
    Finding::warn("keys", format!("{name} admits everyone who reaches it, without a key"), SECURE)
}

/// Gateways that other machines reach, without rules who may call them.
fn listeners(settings: &Settings) -> Vec<Finding> {
    if rules_file(settings).is_some() || settings.tls_client_ca_file.is_some() {
        return Vec::new();
    }
    let listeners = [("http_listen", &settings.http_listen), ("grpc_listen", &settings.grpc_listen)];
    let reached = listeners.into_iter().filter(|(_, listen)| !is_loopback_listen(listen));
    reached
        .map(|(name, listen)| {
            let found = format!("{name} = {listen}: gateways admit everyone who reaches them");
            Finding::warn("keys", found, "set gateway_access_file: docs/gateway-access.md")
        })
        .collect()
}

/// Access rules that gateways cannot use: they go on with the former ones, and do not start.
fn rules(settings: &Settings) -> Option<Finding> {
    const CORRECT: &str = "correct the file: gateways go on with its former content until they restart";
    let path = rules_file(settings)?;
    Some(match callers_of(&path, settings.zones.parse().ok()?) {
        Ok(_) => Finding::ok("rules", format!("{} is valid", path.display())),
        Err(error) => Finding::fail("rules", telemetry::error_chain(&error), CORRECT),
    })
}

/// Whether all servers of a URL are on this machine.
fn is_local(url: &str) -> bool {
    url.split(',').all(|url| {
        let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
        let address = rest.rsplit_once('@').map_or(rest, |(_, address)| address);
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        is_loopback_host(host.trim_matches(['[', ']']))
    })
}

/// The end of each certificate that this process uses.
fn certificates(credentials: &Credentials, settings: &Settings, now: i64) -> Vec<Finding> {
    let own = credentials.tls.certificate.as_ref().map(|(certificate, _)| certificate);
    let files = [
        credentials.tls.authorities.as_ref(),
        own,
        settings.tls_certificate_file.as_ref(),
        settings.tls_client_ca_file.as_ref(),
        settings.gateway_ca_file.as_ref(),
        settings.gateway_certificate_file.as_ref(),
    ];
    let mut files: Vec<&PathBuf> = files.into_iter().flatten().collect();
    files.sort();
    files.dedup();
    files.into_iter().flat_map(|path| certificate(path, now)).collect()
}

fn certificate(path: &Path, now: i64) -> Vec<Finding> {
    let name = path.display();
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) => {
            return vec![Finding::fail("expiry", format!("{name}: {error}"), "check the path")];
        }
    };
    let read = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>().unwrap_or_default();
    if read.is_empty() {
        let found = format!("{name} has no certificate that can be read");
        return vec![Finding::fail("expiry", found, "expected PEM")];
    }
    let judge = |certificate: &CertificateDer<'_>| match certificate_end(certificate) {
        Ok(end) => expiry(&name.to_string(), end.cast_signed(), now, RENEW),
        Err(error) => {
            Finding::fail("expiry", format!("{name} has a certificate without an end: {error}"), "replace it")
        }
    };
    read.iter().map(judge).collect()
}

/// Whether something ends soon.
fn expiry(name: &str, end: i64, now: i64, advice: &str) -> Finding {
    let days = (end - now).div_euclid(SECONDS_PER_DAY);
    if end <= now {
        Finding::fail("expiry", format!("{name} has expired {} days ago", -days), advice)
    } else if end - now < SOON {
        Finding::warn("expiry", format!("{name} expires in {days} days"), advice)
    } else {
        Finding::ok("expiry", format!("{name} is valid for {days} days"))
    }
}

const REISSUE: &str = "make a new one with `forebay access apply`, and give the file to its user: it applies to the next connection";

/// The end of the JWT that this process uses, and of those beside it: on the machine of an operator, of all users.
fn tokens(credentials: &Credentials, now: i64) -> Vec<Finding> {
    let is_token = |path: &PathBuf| path.extension().is_some_and(|end| end == "creds");
    let Some(own) = credentials.seed.as_ref().filter(|path| is_token(path)) else { return Vec::new() };
    let beside = own.parent().and_then(|folder| fs::read_dir(folder).ok()).into_iter().flatten().flatten();
    let mut others: Vec<PathBuf> =
        beside.map(|entry| entry.path()).filter(|path| is_token(path) && path != own).collect();
    others.sort();
    let of_others = others.iter().map(|path| token(path, now)).filter(|found| found.status != Status::Ok);
    std::iter::once(token(own, now)).chain(of_others).collect()
}

fn token(path: &Path, now: i64) -> Finding {
    let name = path.display();
    let key = match UserKey::read(path) {
        Ok(Some(key)) => key,
        Ok(None) => return Finding::fail("expiry", format!("{name} does not exist"), "check the path"),
        Err(error) => return Finding::fail("expiry", telemetry::error_chain(&error), REISSUE),
    };
    let expires = key.token.and_then(|token| token.expiry().ok()).map(|expiry| expiry.expires);
    match expires {
        None => Finding::fail("expiry", format!("{name} has no JWT"), REISSUE),
        Some(None) => Finding::ok("expiry", format!("{name} does not expire")),
        Some(Some(end)) => expiry(&name.to_string(), end, now, REISSUE),
    }
}

/// Files with secrets that this process uses.
fn secrets(credentials: &Credentials, settings: &Settings) -> Vec<PathBuf> {
    let key = credentials.tls.certificate.as_ref().map(|(_, key)| key);
    let files = [
        key,
        settings.tls_key_file.as_ref(),
        settings.build_token_key_file.as_ref(),
        settings.session_key_file.as_ref(),
        settings.seal_key_file.as_ref(),
        settings.gateway_token_file.as_ref(),
        settings.gateway_key_file.as_ref(),
    ];
    let of_farm = fs::read_dir(settings.data.join("secure")).into_iter().flatten().flatten();
    let of_farm =
        of_farm.map(|entry| entry.path()).filter(|path| path.extension().is_none_or(|end| end != "pem"));
    let mut files: Vec<PathBuf> =
        files.into_iter().flatten().cloned().chain(of_farm.filter(|path| path.is_file())).collect();
    files.sort();
    files.dedup();
    files
}

fn readable(path: &Path) -> Option<Finding> {
    let mode = fs::metadata(path).ok()?.permissions().mode();
    let name = path.display();
    (mode & 0o077 != 0).then(|| {
        Finding::warn(
            "secret",
            format!("{name} can be read by others (mode {:o})", mode & 0o777),
            format!("chmod 600 {name}"),
        )
    })
}

#[cfg(test)]
mod tests {
    use time::{Duration, OffsetDateTime};

    use super::*;

    /// Writes the file of a user whose JWT expires then.
    fn write_token(path: &Path, expires: Option<i64>) {
        let claims = serde_json::json!({ "iat": 1, "exp": expires }).to_string();
        let text = data_encoding::BASE64URL_NOPAD.encode(claims.as_bytes());
        let token = Some(credentials::UserToken::new(format!("e30.{text}.AA")));
        let key = UserKey { seed: credentials::Seed::generate().unwrap(), token };
        fs::write(path, key.reveal()).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    }

    #[test]
    fn a_jwt_that_expires_soon_is_reported_also_of_others_in_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gateway.1.creds");
        let now = 1_000_000_000;
        let check = || {
            let own = Credentials { seed: Some(path.clone()), ..Credentials::default() };
            tokens(&own, now).into_iter().map(|found| found.status).collect::<Vec<_>>()
        };
        let day = |days: i64| Some(now + days * SECONDS_PER_DAY);
        for (expires, wanted) in [
            (None, Status::Ok),
            (day(31), Status::Ok),
            (day(29), Status::Warn),
            (day(0), Status::Fail),
            (day(-3), Status::Fail),
        ] {
            write_token(&path, expires);
            assert_eq!(check(), [wanted], "{expires:?}");
        }
        write_token(&path, None);
        write_token(&folder.path().join("payments.ci.creds"), day(3));
        write_token(&folder.path().join("payments.nightly.creds"), day(300));
        assert_eq!(check(), [Status::Ok, Status::Warn]);
        fs::write(&path, "none").unwrap();
        assert_eq!(check(), [Status::Fail, Status::Warn]);
        // A seed alone does not expire.
        let seed = Credentials { seed: Some(folder.path().join("gateway.1.seed")), ..Credentials::default() };
        assert_eq!(tokens(&seed, now), []);
    }

    fn now() -> i64 {
        OffsetDateTime::now_utc().unix_timestamp()
    }

    #[test]
    fn a_certificate_that_ends_soon_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("server.pem");
        for (days, wanted) in [(-1, Status::Fail), (29, Status::Warn), (31, Status::Ok)] {
            let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
            params.not_before = OffsetDateTime::now_utc() - Duration::days(400);
            params.not_after = OffsetDateTime::now_utc() + Duration::days(days) + Duration::hours(1);
            let key = rcgen::KeyPair::generate().unwrap();
            fs::write(&path, params.self_signed(&key).unwrap().pem()).unwrap();
            let found = certificate(&path, now());
            assert_eq!((found.len(), found[0].status), (1, wanted), "{found:?}");
        }
        fs::write(&path, "none").unwrap();
        assert_eq!(certificate(&path, now())[0].status, Status::Fail);
        assert_eq!(certificate(&folder.path().join("missing.pem"), now())[0].status, Status::Fail);
    }

    #[test]
    fn a_secret_that_others_can_read_is_reported_with_the_command() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        fs::write(&path, "secret").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let found = readable(&path).unwrap();
        assert!(found.advice.unwrap().starts_with("chmod 600") && !found.found.contains("secret"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
        assert_eq!(readable(&path), None);
    }

    #[test]
    fn only_the_loopback_interface_is_this_machine() {
        for (url, local) in [
            ("nats://127.0.0.1:4222", true),
            ("tls://me:pass@localhost:4222,tls://[::1]:4", true),
            ("rediss://10.0.0.1:6379", false),
            ("nats://127.0.0.1:1,nats://build.example.com:1", false),
        ] {
            assert_eq!(is_local(url), local, "{url}");
        }
    }
}
