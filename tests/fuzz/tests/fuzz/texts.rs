//! Texts that people write and send: jobs and requests in YAML, services, rules of access, users.

use access::Access;
use callers::Callers;
use fuzz_tests::{Target, fuzz};
use model::{BuildRequest, Graph, Job, JobLimits, Millis, RequestLimits, ServiceRequest};
use policy::zones::Zones;

use crate::choice::{Reader, outcome, read, seed};

const WORDS: &[&[u8]] = &[
    b"- ",
    b": ",
    b"\n",
    b"  ",
    b"\t",
    b"? ",
    b"&a ",
    b"*a",
    b"[*a,*a,*a,*a]",
    b"<<: *a",
    b"| ",
    b">-\n",
    b"---\n",
    b"...\n",
    b"!!binary ",
    b"!!set ",
    b"%YAML 1.2\n",
    b"{",
    b"}",
    b"[",
    b"]",
    b"'",
    b"\"",
    b"#",
    b"tasks:",
    b"id:",
    b"command:",
    b"inputs:",
    b"outputs:",
    b"dependencies: ",
    b"env:",
    b"context:",
    b"kind: git",
    b"services:",
    b"1e999",
    b".nan",
    b"0x1f",
    b"null",
    b"\xef\xbb\xbf",
    b"\x00",
    b"[[keys]]\n",
    b"[[rules]]\n",
    b"groups = [\"*\"]\n",
    b"rights = []\n",
];

const REQUEST: &str = "command: [make, test]\nenv: {CI: \"1\"}\ncontext: {kind: git, url: \"https://example.org/a.git\", \
    revision: main}\noutputs: [\"build/*.log\"]\npriority: batch\nlabels: {pr: \"17\"}\n";
const JOB: &str = "defaults:\n  env: {PATH: /usr/bin}\ntasks:\n  - id: compile\n    command: [cc, -o, a, a.c]\n    \
    inputs: [a.c]\n    outputs: [a]\n  - id: run\n    command: [./a]\n    inputs: [a]\n    dependencies: [compile]\n    \
    limits: {wall_ms: 1000}\n";
const SERVICES: &str =
    "- name: db\n  image: \"docker://example.com/a:1\"\n  command: [serve]\n  ready: {tcp: 5432}\n";
const RULES: &str = "[[keys]]\nname = \"a\"\nsha256 = \"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\"\n\
    [[rules]]\nkey = \"a\"\ngroups = [\"web\"]\nrights = [\"read\", \"submit\"]\npriorities = [\"batch\"]\n";

const USERS: &str = "version = 1\n[[tenant]]\nname = \"a\"\ngroups = [\"g\"]\npriorities = [\"batch\"]\n";

/// A request is refused with a reason, or becomes a build. Its job is a graph whose tasks can be ordered.
fn request(input: &[u8]) -> String {
    let Ok(text) = str::from_utf8(input) else { return String::new() };
    let request = match BuildRequest::from_yaml(text) {
        Err(error) => return error.to_string(),
        Ok(request) => request,
    };
    let again = serde_json::to_string(&request).unwrap();
    assert!(serde_json::from_str::<BuildRequest>(&again).is_ok_and(|it| it == request), "{again}");
    let group = "web".parse().unwrap();
    outcome(request.validate(&group, None, None, &RequestLimits::default(), Millis(1)))
}

fn job(input: &[u8]) -> String {
    let Ok(text) = str::from_utf8(input) else { return String::new() };
    let job = match Job::from_text(text) {
        Err(error) => return error.to_string(),
        Ok(job) => job,
    };
    match Graph::new(&job, &JobLimits::NONE) {
        Err(error) => error.to_string(),
        Ok(graph) => {
            assert_eq!(graph.order().len(), graph.len());
            "a graph".to_owned()
        }
    }
}

fn services(input: &[u8]) -> String {
    let Ok(text) = str::from_utf8(input) else { return String::new() };
    match ServiceRequest::list_from_text(text) {
        Err(error) => error.to_string(),
        Ok(services) => outcome(ServiceRequest::check_all(&services)),
    }
}

fn rules(input: &[u8]) -> String {
    let Ok(text) = str::from_utf8(input) else { return String::new() };
    outcome(Callers::check_rules("rules.toml".as_ref(), text, &Zones::default()))
}

/// A description of users is the same when it is written and read again.
fn users(input: &[u8]) -> String {
    let Ok(text) = str::from_utf8(input) else { return String::new() };
    let access = match Access::parse(text) {
        Err(error) => return error.to_string(),
        Ok(access) => access,
    };
    let written = access.to_toml();
    assert_eq!(Access::parse(&written).unwrap().to_toml(), written);
    // What servers read of it.
    format!("{} {}", access::nats_config(&access).lines().count(), access::redis_acl(&access).lines().count())
}

#[test]
fn texts_are_refused_with_a_reason_or_mean_the_same_again() {
    let readers: [Reader; 5] = [request, job, services, rules, users];
    let seeds: Vec<Vec<u8>> = [(0, REQUEST), (0, JOB), (1, JOB), (2, SERVICES), (3, RULES), (4, USERS)]
        .map(|(place, text)| seed(place, text))
        .into();
    for good in &seeds {
        let said = read(&readers, good);
        assert!(said.len() < 12 || said.contains("has no id"), "{said}");
    }
    fuzz(&Target { name: "texts", seeds, words: WORDS, check: &|input| read(&readers, input) });
}
