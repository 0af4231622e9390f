//! Which crate may depend on which.

use tidy::{files, members};

/// Crates without input and output, whose functions are the same in the simulator and in services.
const PURE: [&str; 3] = ["model", "policy", "occupancy"];
/// What does input and output, keeps time, or runs tasks.
const IMPURE: [&str; 9] =
    ["async-nats", "axum", "hyper", "nix", "object_store", "redis", "reqwest", "tokio", "tonic"];
#[test]
fn pure_crates_do_no_input_or_output() {
    let members = members();
    for name in PURE {
        let member = members.get(name).unwrap();
        let impure: Vec<&&str> = IMPURE.iter().filter(|it| member.dependencies.contains(**it)).collect();
        assert!(impure.is_empty(), "{} depends on {impure:?}", member.path);
    }
}

#[test]
fn no_service_depends_on_another() {
    let members = members();
    let is_service =
        |name: &str| members.get(name).is_some_and(|member| member.path.starts_with("services/"));
    for member in members.values().filter(|member| is_service(&member.name) && member.name != "forebay") {
        let services: Vec<&String> = member.dependencies.iter().filter(|name| is_service(name)).collect();
        assert!(services.is_empty(), "{} depends on {services:?}", member.path);
    }
}

#[test]
fn no_product_crate_depends_on_the_laboratory() {
    let members = members();
    let is_lab = |name: &str| members.get(name).is_some_and(|member| member.path.starts_with("lab/"));
    let is_product =
        |path: &str| ["services/", "shared/", "jetstream"].iter().any(|folder| path.starts_with(folder));
    for member in members.values().filter(|member| is_product(&member.path)) {
        let lab: Vec<&String> = member.dependencies.iter().filter(|name| is_lab(name)).collect();
        assert!(lab.is_empty(), "{} depends on {lab:?}", member.path);
    }
}

#[test]
fn only_the_bus_speaks_to_nats() {
    let outside = |path: &str| {
        let inside = path.starts_with("shared/bus/") || path.starts_with("jetstream/");
        let product = path.starts_with("services/") || path.starts_with("shared/");
        product && !inside && path.contains("/src/")
    };
    let found =
        files("rs").into_iter().filter(|file| outside(&file.path) && file.text.contains("async_nats"));
    let found: Vec<String> = found.map(|file| file.path).collect();
    assert!(
        found.is_empty(),
        "these files name async_nats; give `bus` a function for what they need: {found:?}"
    );
}
