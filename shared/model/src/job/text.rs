//! Jobs and requests as text that people write: YAML or JSON, with errors that name the field.

use serde::{Deserialize, de::DeserializeOwned, de::IgnoredAny};

use super::{Job, JobSource};
use crate::{BuildRequest, ServiceRequest};

/// A text that is not a job or a request: where the error is, and what it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidText(String);

/// The field that tells a job from a request.
#[derive(Deserialize)]
struct Shape {
    tasks: Option<IgnoredAny>,
}

/// Maximum number of brackets that are open at any place of a text: the parser of YAML needs time in its square.
const NESTING_MAX: usize = 1000;

/// Refuses a text with too many open brackets, those in strings included.
fn check_nesting(name: &str, text: &str) -> Result<(), InvalidText> {
    let mut open = 0_usize;
    for byte in text.bytes() {
        match byte {
            b'[' | b'{' => open += 1,
            b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        if open > NESTING_MAX {
            return Err(InvalidText(format!(
                "{name}: more than {NESTING_MAX} brackets are open at one place"
            )));
        }
    }
    Ok(())
}

impl Job {
    /// Reads JSON if the text begins with `{`, else YAML. An error names the field.
    pub fn from_text(text: &str) -> Result<Self, InvalidText> {
        read("job", text)
    }
}

impl ServiceRequest {
    /// Reads a list of services as YAML or JSON.
    pub fn list_from_text(text: &str) -> Result<Vec<Self>, InvalidText> {
        read("services", text)
    }
}

impl BuildRequest {
    /// Reads a request as YAML or JSON; or a job, as [`Job::from_text`] does, which becomes a request without other fields.
    pub fn from_yaml(text: &str) -> Result<Self, InvalidText> {
        check_nesting("request", text)?;
        let first = serde_norway::Deserializer::from_str(text).next().map(Shape::deserialize);
        let Some(Ok(Shape { tasks: Some(_) })) = first else { return read("request", text) };
        Ok(Self { job: Some(JobSource::Inline(Job::from_text(text)?)), ..Self::default() })
    }
}

/// Parses JSON if the text begins with `{`, else YAML. An error begins with `name` and the field.
fn read<T: DeserializeOwned>(name: &str, text: &str) -> Result<T, InvalidText> {
    if text.trim_start().starts_with('{') {
        let mut json = serde_json::Deserializer::from_str(text);
        let found = serde_path_to_error::deserialize(&mut json).map_err(|error| at(name, &error))?;
        let after = |error| InvalidText(format!("unexpected text after the {name}: {error}"));
        return json.end().map(|()| found).map_err(after);
    }
    if text.trim().is_empty() {
        return Err(InvalidText(format!("{name}: the text is empty")));
    }
    check_nesting(name, text)?;
    let mut documents = serde_norway::Deserializer::from_str(text);
    let no_document = || InvalidText(format!("{name}: the text contains no YAML document"));
    let first = documents.next().ok_or_else(no_document)?;
    // Before reading a second document, so that an error in the first one reports its line.
    let found = serde_path_to_error::deserialize(first).map_err(|error| at(name, &error))?;
    match documents.next() {
        None => Ok(found),
        Some(_) => Err(InvalidText(format!("{name}: expected one YAML document, found a second one"))),
    }
}

/// Formats an error with its path: `job.tasks[3].limits.cpu_ms: invalid type …`
fn at<E: std::error::Error>(name: &str, error: &serde_path_to_error::Error<E>) -> InvalidText {
    let path = error.path().to_string();
    let dot = if path.starts_with('.') || path.starts_with('[') { "" } else { "." };
    let path = if path == "." { "" } else { path.as_str() };
    let what = error.inner().to_string();
    // Errors of YAML already begin with the path.
    let what = what.strip_prefix(&format!("{path}: ")).unwrap_or(&what);
    InvalidText(format!("{name}{dot}{path}: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Job, String> {
        Job::from_text(text).map_err(|invalid| invalid.to_string())
    }

    const YAML: &str = "\
defaults:
  env: {PATH: /usr/bin}
tasks:
  - id: compile
    command: [cc, -c, a.c]
    outputs: [a.o]
  - id: link
    command: [cc, a.o]
    inputs: [a.o]
";

    #[test]
    fn yaml_and_json_are_the_same_job() {
        let job = parse(YAML).unwrap();
        assert_eq!(job.tasks.len(), 2);
        let json = String::from_utf8(job.to_json()).unwrap();
        assert_eq!(parse(&format!("\n {json}\n")).unwrap(), job);
    }

    #[test]
    fn c6_aliases_and_depth_cannot_make_a_short_text_a_huge_job() {
        let level = |level: u32| {
            let before = format!("*a{}, ", level - 1).repeat(9);
            format!("a{level}: &a{level} [{before}]\n")
        };
        let bomb: Vec<String> = (1..40).map(level).collect();
        let command = format!("a0: &a0 [x]\n{}tasks:\n  - {{id: a, command: *a39}}\n", bomb.concat());
        let deep = format!("tasks: {}", "[".repeat(1000));
        let own = "tasks: &t\n  - {id: a, command: [*t]}\n".to_owned();
        for text in [command, deep, own, "tasks: [{id: a, command: [x], limits: {cpu_ms: 1e400}}]".to_owned()]
        {
            assert!(parse(&text).unwrap_err().starts_with("job"), "{}", parse(&text).unwrap_err());
        }
    }

    #[test]
    fn brackets_without_end_are_refused_before_they_are_parsed() {
        for open in ["[", "{a: ", "[{a: "] {
            let text = format!("tasks: {}", open.repeat(60_000));
            let error = BuildRequest::from_yaml(&text).unwrap_err().to_string();
            assert!(error.contains("more than 1000 brackets"), "{error:.200}");
            assert!(parse(&text).unwrap_err().contains("more than 1000 brackets"));
        }
    }

    #[test]
    fn an_error_names_the_field() {
        let wrong = |text: &str| parse(text).unwrap_err();
        let yaml = wrong(&YAML.replace("outputs: [a.o]", "limits: {cpu_ms: much}"));
        assert!(yaml.starts_with("job.tasks[0].limits.cpu_ms: invalid type: string \"much\""), "{yaml}");
        let json = wrong(r#"{"tasks": [{"id": "a", "comand": []}]}"#);
        assert!(json.starts_with("job.tasks[0]") && json.contains("unknown field `comand`"), "{json}");
        assert!(wrong(r#"{"tasks": []} x"#).starts_with("unexpected text after the job"));
        assert!(wrong("{}").starts_with("job: missing field `tasks`"), "{}", wrong("{}"));
        assert_eq!(wrong(" \n"), "job: the text is empty");
        assert!(wrong("tasks: []\n---\ntasks: []\n").contains("one YAML document"));
        for (text, line) in
            [("tasks: [\n", "line 2"), ("tasks:\n\t- id: a\n", "line 2"), ("tasks: [a\nb: }\n", "line")]
        {
            let error = wrong(text);
            assert!(error.contains(line) && error.contains("column"), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_request_is_read_from_yaml_and_so_is_its_job_alone() {
        let alone = BuildRequest::from_yaml(YAML).unwrap();
        assert_eq!(alone.job, Some(JobSource::Inline(parse(YAML).unwrap())));
        assert_eq!(BuildRequest { job: None, ..alone.clone() }, BuildRequest::default());
        let inner = YAML.replace('\n', "\n  ");
        let whole = BuildRequest::from_yaml(&format!("outputs: [a.out]\njob:\n  {inner}")).unwrap();
        assert_eq!(whole, BuildRequest { outputs: vec!["a.out".to_owned()], ..alone.clone() });
        let json = serde_json::to_string(&whole).unwrap();
        assert_eq!(BuildRequest::from_yaml(&json).unwrap(), whole);
        let wrong = |text: &str| BuildRequest::from_yaml(text).unwrap_err().to_string();
        assert!(
            wrong("tasks: [{id: a, comand: [x]}]").starts_with("job.tasks[0]"),
            "{}",
            wrong("tasks: [{id: a}]")
        );
        let inside = wrong("job: {tasks: [{id: a, command: [x], limits: {cpu_ms: much}}]}");
        assert!(inside.starts_with("request.job.tasks[0].limits.cpu_ms: invalid type"), "{inside}");
        assert!(wrong("tasks: []\n---\n").contains("one YAML document"), "{}", wrong("tasks: []\n---\n"));
        assert_eq!(wrong(""), "request: the text is empty");
    }
}
