//! The request of a build as text to copy: a command line, a call of the HTTP API, and a program.

use maud::{Markup, html};
use model::{Build, BuildView, Context, WorkspaceUse};

use super::orders::{request_of, requirements_of};
use crate::site::Asked;

/// The three texts, each with a button that copies it.
pub(super) fn part(view: &BuildView, asked: &Asked, bus: &str) -> Markup {
    let bus = without_user(bus);
    let build = &view.record.build;
    let json = serde_json::to_string_pretty(&request_of(build)).unwrap_or_default();
    let texts = [
        ("cli", "Command line", command_line(build)),
        (
            "curl",
            "curl",
            Some(curl(build, &json, asked.origin.as_deref().unwrap_or("http://127.0.0.1:8080"))),
        ),
        ("python", "Python", python(build, &json, &bus)),
    ];
    html! {
        details #again {
            summary { "Submit it from elsewhere: command line, curl, Python" }
            @for (id, title, text) in texts {
                h3 { (title) " " @if text.is_some() { button type="button" data-copy={ "copy-" (id) } hidden { "Copy" } } }
                @if let Some(text) = text { pre #{ "copy-" (id) } tabindex="0" { (text) } }
                @else { p { "Its workspace came from the machine of its submitter, or it is a job from a file: use another form." } }
            }
        }
    }
}

/// `forebay submit` with the same request; none if its content cannot be named on a command line.
fn command_line(build: &Build) -> Option<String> {
    let mut words = vec![
        "forebay submit".to_owned(),
        format!("--group {}", build.group),
        format!("--priority {}", build.priority),
        format!("--timeout {}s", build.timeout_seconds),
        format!("--max-attempts {}", build.max_attempts.0),
    ];
    match &build.context {
        Context::Empty => {}
        Context::Git { url, revision, patch: None } => {
            words.push(format!("--git {} --revision {}", quoted(url), quoted(revision)));
        }
        Context::Archive { location, digest } => {
            words.push(format!("--archive {}", quoted(location)));
            words.extend(digest.as_ref().map(|digest| format!("--archive-digest {digest}")));
        }
        Context::Git { .. } | Context::Directory { .. } | Context::Tree { .. } => return None,
    }
    if build.job.is_some() || !build.services.is_empty() {
        return None;
    }
    let pair = |flag: &str, name: &str, value: &str| format!("{flag} {}", quoted(&format!("{name}={value}")));
    words.extend(build.env.iter().map(|(name, value)| pair("--env", name, value)));
    words.extend(build.labels.iter().map(|(name, value)| pair("--label", name, value)));
    words.extend(requirements_of(build).iter().map(|(name, value)| pair("--requirement", name, value)));
    words.extend(build.secrets.iter().map(|secret| format!("--secret {secret}")));
    words.extend(limits(build));
    match build.workspace {
        WorkspaceUse::Warm => words.push("--warm".to_owned()),
        WorkspaceUse::Fresh => words.push("--fresh".to_owned()),
    }
    words.extend(build.require_outputs.then(|| "--require-outputs".to_owned()));
    words.extend(build.outputs.iter().map(|glob| format!("--output {}", quoted(glob))));
    let command: Vec<String> = build.command.iter().map(|word| quoted(word)).collect();
    Some(format!("{} --follow -- {}", words.join(" \\\n  "), command.join(" ")))
}

fn limits(build: &Build) -> Vec<String> {
    let limits = serde_json::to_value(build.limits).unwrap_or_default();
    let named = limits.as_object().into_iter().flatten();
    named.map(|(name, value)| format!("--limit {name}={value}")).collect()
}

/// The address of the bus without a name and password.
fn without_user(bus: &str) -> String {
    let shown = url::Url::parse(bus).ok().and_then(|mut url| {
        url.set_username("").ok()?;
        url.set_password(None).ok()?;
        Some(url.to_string())
    });
    shown.unwrap_or_else(|| "nats://127.0.0.1:4222".to_owned())
}

fn curl(build: &Build, json: &str, origin: &str) -> String {
    let url = format!("{origin}/v1/builds/{}", build.group);
    format!("curl -X POST {} -H 'Content-Type: application/json' \\\n  --data {}", quoted(&url), quoted(json))
}

fn python(build: &Build, json: &str, bus: &str) -> Option<String> {
    let text = serde_json::to_string(json).ok()?;
    Some(format!(
        "# pip install nats-py\nimport asyncio, nats, uuid\n\nREQUEST = {text}\n\nasync def main():\n    bus = await \
         nats.connect(\"{bus}\")\n    subject = \"forebay.build.request.{}.{}\"\n    await \
         bus.jetstream().publish(subject, REQUEST.encode(), headers={{\"Nats-Msg-Id\": str(uuid.uuid4())}})\n    await \
         bus.close()\n\nasyncio.run(main())\n",
        build.group, build.priority
    ))
}

/// A word for a POSIX shell.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert_eq, proptest};

    use super::quoted;

    proptest! {
        #[test]
        fn a_shell_reads_back_what_was_quoted(word in "[^\0]{0,20}") {
            let script = format!("printf %s {}", quoted(&word));
            let output = std::process::Command::new("sh").arg("-c").arg(script).output().unwrap();
            prop_assert_eq!(String::from_utf8_lossy(&output.stdout), word);
        }
    }
}
