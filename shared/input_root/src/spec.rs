//! The declared outputs of an action and their paths.

use reapi::execution::{Command, command::OutputDirectoryFormat};

use crate::InputError;

/// Properties that a client may request with `output_node_properties`, sorted.
pub const NODE_PROPERTIES: [&str; 2] = ["mtime", "unix_mode"];

/// The kind of output that the action declares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    Any,
    File,
    Directory,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Output {
    /// Path as the client wrote it, relative to the working directory.
    pub(crate) path: String,
    /// Path relative to the input root.
    pub(crate) place: String,
    pub(crate) wanted: Wanted,
}

/// The working directory and the outputs of an action, from its command; all paths are checked.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OutputSpec {
    pub(crate) working_directory: String,
    pub(crate) outputs: Vec<Output>,
    pub(crate) format: Format,
    pub(crate) mtime: bool,
    pub(crate) unix_mode: bool,
}

/// The form in which output directories are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Format {
    #[default]
    Tree,
    Directories,
    Both,
}

impl OutputSpec {
    /// Reads a command; fails with [`InputError::Invalid`] if a path leaves the input root or a property is unknown.
    #[expect(deprecated, reason = "older clients fill these fields")]
    pub fn of(command: &Command) -> Result<Self, InputError> {
        let working_directory = join("", &command.working_directory).ok_or_else(|| {
            invalid("working directory", &command.working_directory, "is not a path within the input root")
        })?;
        let mut outputs = Vec::new();
        if command.output_paths.is_empty() {
            let files = command.output_files.iter().map(|path| (path, Wanted::File));
            let directories = command.output_directories.iter().map(|path| (path, Wanted::Directory));
            for (path, wanted) in files.chain(directories) {
                outputs.push(output(&working_directory, path, wanted)?);
            }
        } else {
            for path in &command.output_paths {
                outputs.push(output(&working_directory, path, Wanted::Any)?);
            }
        }
        let format = match OutputDirectoryFormat::try_from(command.output_directory_format) {
            Ok(OutputDirectoryFormat::DirectoryOnly) => Format::Directories,
            Ok(OutputDirectoryFormat::TreeAndDirectory) => Format::Both,
            // Unsupported formats are treated as this one.
            Ok(OutputDirectoryFormat::TreeOnly) | Err(_) => Format::Tree,
        };
        let mut spec = Self { working_directory, outputs, format, mtime: false, unix_mode: false };
        for property in &command.output_node_properties {
            match &**property {
                "mtime" => spec.mtime = true,
                "unix_mode" => spec.unix_mode = true,
                other => {
                    let served = NODE_PROPERTIES.join(" and ");
                    return Err(invalid(
                        "output node property",
                        other,
                        &format!("is unknown; supported are {served}"),
                    ));
                }
            }
        }
        Ok(spec)
    }

    /// Whether an input root must have directories for this command: its working directory, or those of its outputs.
    pub(crate) fn needs_directories(&self) -> bool {
        !self.working_directory.is_empty() || self.outputs.iter().any(|output| output.place.contains('/'))
    }

    /// The working directory relative to the input root, without `.` and `..`.
    pub fn working_directory(&self) -> &str {
        &self.working_directory
    }
}

fn output(working_directory: &str, path: &str, wanted: Wanted) -> Result<Output, InputError> {
    let place = join(working_directory, path)
        .ok_or_else(|| invalid("output", path, "is not a path within the input root"))?;
    if place.is_empty() && wanted == Wanted::File {
        return Err(invalid("output file", path, "names the input root itself"));
    }
    Ok(Output { path: path.into(), place, wanted })
}

fn invalid(what: &str, value: &str, why: &str) -> InputError {
    InputError::Invalid(format!("{what} {:?} {why}", value.chars().take(500).collect::<String>()))
}

/// Joins a path to a directory of the input root and removes `.` and `..`. `None` if the path is absolute or
/// leaves the input root.
pub(crate) fn join(base: &str, path: &str) -> Option<String> {
    if path.starts_with('/') || path.contains('\0') {
        return None;
    }
    let mut names: Vec<&str> = base.split('/').filter(|name| !name.is_empty()).collect();
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." => drop(names.pop()?),
            name => names.push(name),
        }
    }
    Some(names.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(paths: &[&str]) -> Result<OutputSpec, InputError> {
        OutputSpec::of(&Command {
            working_directory: "work/here".into(),
            output_paths: paths.iter().map(|path| (*path).to_owned()).collect(),
            ..Command::default()
        })
    }

    #[test]
    fn paths_are_relative_to_the_working_directory_and_stay_in_the_root() {
        let spec = paths(&["a/b", "../c", "", "./d/"]).unwrap();
        let places: Vec<&str> = spec.outputs.iter().map(|output| &*output.place).collect();
        assert_eq!(places, ["work/here/a/b", "work/c", "work/here", "work/here/d"]);
        assert_eq!(spec.outputs[1].path, "../c");
        for bad in ["/etc/passwd", "../../../etc", "a\0b"] {
            assert!(
                matches!(paths(&[bad]), Err(InputError::Invalid(why)) if why.contains("within the input root"))
            );
        }
    }

    #[test]
    fn an_unknown_property_is_refused_by_name() {
        let command = Command { output_node_properties: vec!["colour".into()], ..Command::default() };
        assert!(OutputSpec::of(&command).unwrap_err().to_string().contains("colour"));
    }
}
