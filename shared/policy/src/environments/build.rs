//! The build that makes the image of an environment: an OCI image layout, by Debian's mmdebstrap and umoci, or by skopeo and umoci
//! from the image of a registry. The blobs of the layout are its output files, so that the farm's store has the image when the build ends.

use std::collections::BTreeMap;

use model::{
    BuildId, BuildRequest, BuildRequirements, EnvironmentBase, EnvironmentName, EnvironmentRecipe, Priority,
    WorkspaceUse,
};

/// Property by which workers offer to make environments: they have [`ENVIRONMENT_TOOLS`].
pub const BUILDS_ENVIRONMENTS: (&str, &str) = ("builds-environments", "on");
/// Programs that the build calls.
pub const ENVIRONMENT_TOOLS: [&str; 4] = ["bwrap", "mmdebstrap", "skopeo", "umoci"];
/// Output file that names the manifest (OCI Image Layout Specification 1.1).
pub const IMAGE_INDEX: &str = "image/index.json";

/// Variables of the script.
const RELEASE: &str = "ENVIRONMENT_RELEASE";
const MIRROR: &str = "ENVIRONMENT_MIRROR";
const BASE: &str = "ENVIRONMENT_BASE";
const PACKAGES: &str = "ENVIRONMENT_PACKAGES";
const RUN: &str = "ENVIRONMENT_RUN";
const SCRIPT_VARIABLE: &str = "ENVIRONMENT_SCRIPT";

/// Makes `image/`. Its arguments are options of `umoci config`.
const SCRIPT: &str = include_str!("build.sh");

/// The request of the build that makes a version.
pub fn build_request(
    (name, number): (&EnvironmentName, u32),
    recipe: &EnvironmentRecipe,
    id: BuildId,
) -> BuildRequest {
    let mut env = BTreeMap::new();
    let mut set = |name: &str, value: String| {
        if !value.is_empty() {
            env.insert(name.to_owned(), value);
        }
    };
    match &recipe.base {
        EnvironmentBase::Debian { release, mirror } => {
            set(RELEASE, release.clone());
            set(MIRROR, mirror.clone().unwrap_or_default());
        }
        EnvironmentBase::Image(image) => {
            let text = image.to_string();
            set(BASE, text.strip_prefix("docker://").unwrap_or(&text).to_owned());
        }
    }
    set(PACKAGES, recipe.packages.join(" "));
    set(RUN, recipe.run.join("\n"));
    set(SCRIPT_VARIABLE, SCRIPT.to_owned());
    // What lists of builds show.
    let title = format!("environment {name}@{number}");
    let mut command: Vec<String> =
        ["sh", "-c", "eval \"$ENVIRONMENT_SCRIPT\"", &title].map(str::to_owned).into();
    for (name, value) in &recipe.env {
        command.extend(["--config.env".to_owned(), format!("{name}={value}")]);
    }
    for word in &recipe.command {
        command.extend(["--config.cmd".to_owned(), word.clone()]);
    }
    let (property, value) = BUILDS_ENVIRONMENTS;
    BuildRequest {
        id: Some(id),
        priority: Some(Priority::Automated),
        command,
        env,
        outputs: vec!["image/**".to_owned()],
        require_outputs: true,
        workspace: Some(WorkspaceUse::Fresh),
        requirements: BuildRequirements([(property.to_owned(), value.to_owned())].into()),
        labels: [("environment".to_owned(), format!("{name}@{number}"))].into(),
        ..BuildRequest::default()
    }
}

#[cfg(test)]
mod tests {
    use model::EnvironmentDefinition;

    use super::*;

    fn request(definition: &str) -> BuildRequest {
        let EnvironmentDefinition::Recipe(recipe) = serde_json::from_str(definition).unwrap() else {
            panic!("{definition} needs no build")
        };
        build_request((&"g/gcc".parse().unwrap(), 3), &recipe, BuildId::generate())
    }

    #[test]
    fn what_authors_write_is_an_argument_or_a_variable_and_never_a_part_of_the_script() {
        let hostile = r#"{"debian":"bookworm","packages":["hello","gcc-11"],"run":["echo '$(id)'"],
                          "env":{"A":"$(id)"},"command":["a b","--x"]}"#;
        let request = request(hostile);
        assert_eq!(request.command[2], "eval \"$ENVIRONMENT_SCRIPT\"");
        assert_eq!(request.env[SCRIPT_VARIABLE], SCRIPT);
        assert_eq!(
            request.command[4..],
            ["--config.env", "A=$(id)", "--config.cmd", "a b", "--config.cmd", "--x"]
        );
        let of = |name: &str| request.env.get(name).map(String::as_str);
        assert_eq!(of(PACKAGES), Some("hello gcc-11"));
        assert_eq!((of(RELEASE), of(RUN), of(BASE)), (Some("bookworm"), Some("echo '$(id)'"), None));
        assert_eq!(request.labels["environment"], "g/gcc@3");
    }

    #[test]
    fn a_base_is_named_as_skopeo_names_it() {
        let request = request(r#"{"base":"docker://debian:12"}"#);
        assert_eq!(request.env[BASE], "docker.io/library/debian:12");
        assert!(!request.env.contains_key(RELEASE));
    }
}
