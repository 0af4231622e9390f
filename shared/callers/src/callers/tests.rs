use serde_json::json;

use std::time::Duration;

use super::*;
use crate::{
    key::ApiKey,
    testing::{AUDIENCE, ISSUER, SigningKey, claims, write_keys},
};

struct Farm {
    folder: tempfile::TempDir,
    issuer: SigningKey,
    key: ApiKey,
}

impl Farm {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let issuer = SigningKey::generate("one");
        write_keys(&folder.path().join("keys"), &[&issuer]);
        let farm = Self { folder, issuer, key: ApiKey::generate().unwrap() };
        farm.write(&format!(
            r#"
            [[keys]]
            name = "ci"
            sha256 = "{}"

            [[rules]]
            key = "ci"
            groups = ["web"]
            rights = ["read"]
            "#,
            farm.key.hash()
        ));
        farm
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("access.toml")
    }

    /// Writes rules, and an issuer with its keys.
    fn write(&self, rules: &str) {
        let keys = self.folder.path().join("keys");
        let issuer = format!(
            "[[issuers]]\nname = \"i\"\nurl = \"{ISSUER}\"\naudience = [\"{AUDIENCE}\"]\nkeys_file = \"{}\"\n",
            keys.display()
        );
        let certificate =
            "[[rules]]\ncertificate = \"worker.example.com\"\ngroups = [\"*\"]\nrights = [\"execute\"]\n";
        let token =
            "[[rules]]\nissuer = \"i\"\nclaims = { repository = \"acme/*\" }\nrights = [\"execute\"]\n";
        std::fs::write(self.path(), format!("{issuer}{rules}\n{certificate}{token}")).unwrap();
    }

    fn callers(&self) -> Callers {
        Callers::of_file(&self.path(), CallerSettings::default()).unwrap()
    }
}

async fn name(callers: &Callers, bearer: &str) -> Result<String, Refusal> {
    let header = format!("Bearer {bearer}");
    let offered = Offered { authorization: Some(header.as_bytes()), ..Offered::default() };
    callers.identify(offered).await.map(|caller| caller.name.clone())
}

#[tokio::test]
async fn callers_are_known_by_key_token_or_certificate() {
    let farm = Farm::new();
    let callers = farm.callers();
    assert_eq!(name(&callers, farm.key.reveal()).await.unwrap(), "key:ci");
    assert_eq!(name(&callers, &farm.issuer.sign(&claims())).await.unwrap(), "i:repo:acme/web");
    let names = ["worker.example.com".to_owned()];
    let offered = Offered { certificate: &names, ..Offered::default() };
    assert_eq!(callers.identify(offered).await.unwrap().name, "certificate:worker.example.com");
}

#[tokio::test]
async fn g1_others_are_refused_with_the_same_words() {
    let farm = Farm::new();
    let callers = farm.callers();
    let other = ApiKey::generate().unwrap();
    let mut of_another_repository = claims();
    of_another_repository["repository"] = json!("evil/web");
    let mut of_unknown_issuer = claims();
    of_unknown_issuer["iss"] = json!("https://evil.example.com");
    for credential in [
        other.reveal(),
        &farm.issuer.sign(&of_another_repository),
        &farm.issuer.sign(&of_unknown_issuer),
        "a.b.c",
        "",
    ] {
        let refusal = name(&callers, credential).await.unwrap_err();
        assert_eq!(refusal.to_string(), "the credentials are not accepted");
    }
    assert_eq!(callers.identify(Offered::default()).await.unwrap_err(), Refusal::Missing);
    let names = ["evil.example.com".to_owned()];
    assert!(callers.identify(Offered { certificate: &names, ..Offered::default() }).await.is_err());
}

#[tokio::test]
async fn who_sends_a_wrong_credential_is_not_anyone() {
    let farm = Farm::new();
    farm.write("[[rules]]\nanyone = true\nrights = [\"read\"]\n");
    let callers = farm.callers();
    assert_eq!(callers.identify(Offered::default()).await.unwrap().name, "");
    assert!(name(&callers, ApiKey::generate().unwrap().reveal()).await.is_err());
}

#[tokio::test]
async fn an_expired_key_is_refused() {
    let farm = Farm::new();
    let (hash, past) = (farm.key.hash(), "2020-01-01T00:00:00Z");
    farm.write(&format!(
        "[[keys]]\nname = \"ci\"\nsha256 = \"{hash}\"\nexpires = \"{past}\"\n[[rules]]\nkey = \"ci\"\nrights = []"
    ));
    assert!(name(&farm.callers(), farm.key.reveal()).await.is_err());
}

#[tokio::test]
async fn a_changed_file_applies_and_a_broken_one_does_not() {
    let farm = Farm::new();
    let callers = farm.callers();
    let key = farm.key.reveal();
    assert!(name(&callers, key).await.is_ok());
    std::fs::write(farm.path(), "rules = 1").unwrap();
    wait_for_look(&callers);
    assert!(name(&callers, key).await.is_ok());
    farm.write("");
    wait_for_look(&callers);
    assert!(name(&callers, key).await.is_err());
}

/// Lets the next request look at the file.
fn wait_for_look(callers: &Callers) {
    callers.known.as_ref().unwrap().access.look_now();
}

#[tokio::test]
async fn a_farm_without_rules_asks_nothing() {
    let callers = Callers::anyone();
    let caller = name(&callers, "whatever").await.unwrap();
    assert_eq!(caller, "");
    assert!(!callers.have_rules());
}

#[tokio::test]
async fn the_token_of_a_build_is_for_its_group_and_ends() {
    let farm = Farm::new();
    let secret = farm.folder.path().join("secret");
    std::fs::write(&secret, [3; 32]).unwrap();
    let tokens = BuildTokens::of_file(&secret).unwrap();
    let callers = Callers::of_file(
        &farm.path(),
        CallerSettings { builds: Some(tokens.clone()), ..CallerSettings::default() },
    )
    .unwrap();
    let build = model::BuildKey { group: "web".parse().unwrap(), id: model::BuildId::generate() };
    let issue = |at| tokens.issue(&build, at);
    let (later, earlier) =
        (SystemTime::now() + Duration::from_secs(60), SystemTime::now() - Duration::from_secs(1));
    assert_eq!(name(&callers, &issue(later)).await.unwrap(), format!("build:{build}"));
    assert!(name(&callers, &issue(earlier)).await.is_err());
    assert!(name(&farm.callers(), &issue(later)).await.is_err(), "without the key it proves nothing");
    let header = format!("Bearer {}", issue(later));
    let offered = Offered { authorization: Some(header.as_bytes()), ..Offered::default() };
    let rights = callers.identify(offered).await.unwrap().rights.clone();
    assert_eq!(rights.groups.only(), Some(&build.group));
    assert!(!rights.rights.contains(&Right::Submit) && !rights.rights.contains(&Right::CacheWrite));
}
