//! Actions that the checks run.

#![expect(deprecated, reason = "clients of older versions use these fields")]

use std::{collections::BTreeMap, time::Duration};

use prost::Message as _;
use reapi::execution::{
    Action, Command, Digest, Directory, DirectoryNode, FileNode, NodeProperties, Platform, SymlinkNode,
    command::EnvironmentVariable, platform::Property,
};

use crate::{client::Client, names};

/// A file of an input root.
#[derive(Debug, Clone, Default)]
pub(crate) struct InputFile {
    pub(crate) content: Vec<u8>,
    pub(crate) executable: bool,
    pub(crate) properties: Option<NodeProperties>,
}

/// The contents of an input root.
#[derive(Debug, Clone, Default)]
pub(crate) struct Inputs {
    files: BTreeMap<String, InputFile>,
    directories: BTreeMap<String, Self>,
    symlinks: BTreeMap<String, String>,
}

impl Inputs {
    /// Adds a file at a path.
    pub(crate) fn file(self, path: &str, content: impl Into<Vec<u8>>) -> Self {
        self.with(path, InputFile { content: content.into(), ..InputFile::default() })
    }

    /// Adds an executable file at a path.
    pub(crate) fn program(self, path: &str, content: &str) -> Self {
        self.with(path, InputFile { content: content.into(), executable: true, properties: None })
    }

    /// Adds a file with properties at a path.
    pub(crate) fn with(mut self, path: &str, file: InputFile) -> Self {
        match path.split_once('/') {
            Some((parent, rest)) => {
                let within = self.directories.remove(parent).unwrap_or_default().with(rest, file);
                self.directories.insert(parent.to_owned(), within);
            }
            None => {
                self.files.insert(path.to_owned(), file);
            }
        }
        self
    }

    /// Adds an empty directory.
    pub(crate) fn directory(mut self, name: &str) -> Self {
        self.directories.insert(name.to_owned(), Self::default());
        self
    }

    /// Adds a symbolic link.
    pub(crate) fn symlink(mut self, name: &str, target: &str) -> Self {
        self.symlinks.insert(name.to_owned(), target.to_owned());
        self
    }

    /// Returns the digest of the root, and appends its blobs to `blobs`.
    pub(crate) fn encode(&self, client: &Client, blobs: &mut Vec<Vec<u8>>) -> Digest {
        let file = |blobs: &mut Vec<Vec<u8>>, name: &String, file: &InputFile| {
            blobs.push(file.content.clone());
            FileNode {
                name: name.clone(),
                digest: Some(client.digest(&file.content)),
                is_executable: file.executable,
                node_properties: file.properties.clone(),
            }
        };
        let directory = Directory {
            files: self.files.iter().map(|(name, node)| file(blobs, name, node)).collect(),
            directories: (self.directories.iter())
                .map(|(name, node)| DirectoryNode {
                    name: name.clone(),
                    digest: Some(node.encode(client, blobs)),
                })
                .collect(),
            symlinks: (self.symlinks.iter())
                .map(|(name, target)| SymlinkNode {
                    name: name.clone(),
                    target: target.clone(),
                    node_properties: None,
                })
                .collect(),
            node_properties: None,
        };
        let encoded = directory.encode_to_vec();
        let digest = client.digest(&encoded);
        blobs.push(encoded);
        digest
    }
}

/// An action to run, and the options of its execution.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) command: Command,
    pub(crate) inputs: Inputs,
    /// Digest of the input root, if it is not built from `inputs`.
    pub(crate) root: Option<Digest>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) do_not_cache: bool,
    pub(crate) platform: Option<Platform>,
    pub(crate) salt: Vec<u8>,
    pub(crate) skip_cache_lookup: bool,
    pub(crate) priority: i32,
    pub(crate) inline: bool,
}

impl Job {
    /// Runs a program with these arguments; the action is unique.
    pub(crate) fn program<const N: usize>(arguments: [&str; N]) -> Self {
        let path = EnvironmentVariable { name: "PATH".into(), value: "/usr/bin:/bin".into() };
        Self {
            command: Command {
                arguments: arguments.into_iter().map(str::to_owned).collect(),
                environment_variables: vec![path],
                ..Command::default()
            },
            inputs: Inputs::default(),
            root: None,
            timeout: None,
            do_not_cache: false,
            platform: None,
            salt: names::fresh_text().into_bytes(),
            skip_cache_lookup: false,
            priority: 0,
            inline: true,
        }
    }

    /// Runs a shell script.
    pub(crate) fn sh(script: &str) -> Self {
        Self::program(["/bin/sh", "-c", script])
    }

    /// Prints different output each time it runs.
    pub(crate) fn random() -> Self {
        Self::sh("cat /proc/sys/kernel/random/uuid 2>/dev/null || date +%s%N")
    }

    pub(crate) fn outputs<const N: usize>(mut self, paths: [&str; N]) -> Self {
        self.command.output_paths = paths.into_iter().map(str::to_owned).collect();
        self
    }

    pub(crate) fn output_files<const N: usize>(mut self, paths: [&str; N]) -> Self {
        self.command.output_files = paths.into_iter().map(str::to_owned).collect();
        self
    }

    pub(crate) fn output_directories<const N: usize>(mut self, paths: [&str; N]) -> Self {
        self.command.output_directories = paths.into_iter().map(str::to_owned).collect();
        self
    }

    pub(crate) fn inputs(self, inputs: Inputs) -> Self {
        Self { inputs, ..self }
    }

    pub(crate) fn within(mut self, directory: &str) -> Self {
        directory.clone_into(&mut self.command.working_directory);
        self
    }

    pub(crate) fn timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }

    pub(crate) fn do_not_cache(self) -> Self {
        Self { do_not_cache: true, ..self }
    }

    pub(crate) fn skip_cache_lookup(self) -> Self {
        Self { skip_cache_lookup: true, ..self }
    }

    pub(crate) fn priority(self, priority: i32) -> Self {
        Self { priority, ..self }
    }

    /// Returns the same command as a different action.
    pub(crate) fn again(&self) -> Self {
        Self { salt: names::fresh_text().into_bytes(), ..self.clone() }
    }

    /// Adds this property to those of the run.
    pub(crate) fn property(mut self, name: &str, value: &str) -> Self {
        let property = Property { name: name.to_owned(), value: value.to_owned() };
        self.platform.get_or_insert_default().properties.push(property);
        self
    }
}

/// Returns the properties in canonical order.
pub(crate) fn platform(pairs: &[(String, String)]) -> Option<Platform> {
    let mut pairs = pairs.to_vec();
    pairs.sort();
    let properties: Vec<Property> = pairs.into_iter().map(|(name, value)| Property { name, value }).collect();
    if properties.is_empty() { None } else { Some(Platform { properties }) }
}

/// An action encoded as blobs.
#[derive(Debug, Clone)]
pub(crate) struct Prepared {
    pub(crate) action: Digest,
    pub(crate) command: Digest,
    pub(crate) root: Digest,
    pub(crate) action_blob: Vec<u8>,
    pub(crate) command_blob: Vec<u8>,
    /// Encoded input files and directories.
    pub(crate) blobs: Vec<Vec<u8>>,
}

impl Prepared {
    pub(crate) fn new(client: &Client, job: &Job, platform: Option<Platform>) -> Self {
        let mut blobs = Vec::new();
        let root = job.root.clone().unwrap_or_else(|| job.inputs.encode(client, &mut blobs));
        let platform = match (&job.platform, platform) {
            (Some(own), Some(all)) => {
                let mut properties = [all.properties, own.properties.clone()].concat();
                properties.sort_by(|a, b| (&a.name, &a.value).cmp(&(&b.name, &b.value)));
                Some(Platform { properties })
            }
            (Some(own), None) => Some(own.clone()),
            (None, all) => all,
        };
        let mut command = job.command.clone();
        command.output_paths.sort();
        command.output_files.sort();
        command.output_directories.sort();
        command.environment_variables.sort_by(|a, b| a.name.cmp(&b.name));
        if command.platform.is_none() {
            command.platform.clone_from(&platform);
        }
        let command_blob = command.encode_to_vec();
        let duration = |timeout: Duration| reapi::protobuf::Duration {
            seconds: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            nanos: i32::try_from(timeout.subsec_nanos()).unwrap_or_default(),
        };
        let action = Action {
            command_digest: Some(client.digest(&command_blob)),
            input_root_digest: Some(root.clone()),
            timeout: job.timeout.map(duration),
            do_not_cache: job.do_not_cache,
            salt: job.salt.clone(),
            platform,
        };
        Self::of(client, &action, root, command_blob, blobs)
    }

    /// Encodes an action from messages that the check built.
    pub(crate) fn of(
        client: &Client,
        action: &Action,
        root: Digest,
        command_blob: Vec<u8>,
        blobs: Vec<Vec<u8>>,
    ) -> Self {
        let action_blob = action.encode_to_vec();
        Self {
            action: client.digest(&action_blob),
            command: client.digest(&command_blob),
            root,
            action_blob,
            command_blob,
            blobs,
        }
    }

    /// Returns all blobs of the action.
    pub(crate) fn all(&self) -> Vec<Vec<u8>> {
        let mut all = self.blobs.clone();
        all.push(self.command_blob.clone());
        all.push(self.action_blob.clone());
        all
    }
}
