//! After an action: moves its outputs to the store.

mod console;
mod found;
mod store;
mod trees;

use std::{collections::HashMap, path::PathBuf, sync::Arc};

use invariant::impossible;
use model::{BlobDigest, DigestFunction};
use reapi::execution::{
    ActionResult, Digest, ExecutedActionMetadata, OutputDirectory, OutputFile, OutputSymlink,
};

use crate::{
    CollectError, InputRoot, InputRoots,
    blocking::blocking,
    prepared_dir::{PreparedDir, Stamp},
    spec::OutputSpec,
};
use found::{FoundOutputs, LinkKind, OutputNode, Walk};

/// Files with the output streams of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Console {
    /// File of standard output. `None`, or a missing file: the stream is empty.
    pub stdout: Option<PathBuf>,
    /// File of standard error. `None`, or a missing file: the stream is empty.
    pub stderr: Option<PathBuf>,
    /// Whether others may have the files open: they are copied into the store, not moved.
    pub is_watched: bool,
}

/// The outputs of an action, all of them stored.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Collected {
    /// Outputs that are files.
    pub files: Vec<OutputFile>,
    /// Outputs that are directories.
    pub directories: Vec<OutputDirectory>,
    /// Outputs that are symlinks.
    pub symlinks: Vec<OutputSymlink>,
    /// The output symlinks that count as files, for clients before version 2.1.
    pub file_symlinks: Vec<OutputSymlink>,
    /// The output symlinks that lead to directories, for clients before version 2.1.
    pub directory_symlinks: Vec<OutputSymlink>,
    /// Standard output, if it is short.
    pub stdout: Vec<u8>,
    /// Digest of standard output as a blob.
    pub stdout_digest: Option<Digest>,
    /// Standard error, if it is short.
    pub stderr: Vec<u8>,
    /// Digest of standard error as a blob.
    pub stderr_digest: Option<Digest>,
    /// Number of files in all outputs.
    pub file_count: u64,
    /// Bytes of the files in all outputs.
    pub file_bytes: u64,
}

impl Collected {
    /// Converts the outputs to an action result.
    #[expect(deprecated, reason = "clients before version 2.1 read these fields")]
    pub fn into_result(self, exit_code: i32, metadata: ExecutedActionMetadata) -> ActionResult {
        ActionResult {
            output_files: self.files,
            output_directories: self.directories,
            output_symlinks: self.symlinks,
            output_file_symlinks: self.file_symlinks,
            output_directory_symlinks: self.directory_symlinks,
            exit_code,
            stdout_raw: self.stdout,
            stdout_digest: self.stdout_digest,
            stderr_raw: self.stderr,
            stderr_digest: self.stderr_digest,
            execution_metadata: Some(metadata),
        }
    }
}

/// Files of the input root by inode, to recognise outputs that are unchanged inputs.
type Inputs = HashMap<u64, (BlobDigest, Stamp)>;

impl InputRoots {
    /// Stores the outputs of an action after all its processes have ended. May move output files away from the input
    /// root, and long console files from where they are.
    ///
    /// Missing outputs are omitted. If this fails, the console can still be stored with [`InputRoots::console`].
    pub async fn collect(
        &self,
        root: &InputRoot,
        outputs: &OutputSpec,
        console: &Console,
        function: DigestFunction,
    ) -> Result<Collected, CollectError> {
        let mut collected = self.console(console, function).await?;
        if outputs.outputs.is_empty() {
            return Ok(collected);
        }
        let walk = Walk {
            root: root.path().to_owned(),
            spec: outputs.clone(),
            entries_max: self.inner.config.output_entries_max,
            absolute: self.inner.config.absolute_targets,
            uid: rustix::process::geteuid().as_raw(),
        };
        let mut found = blocking(move || walk.all()).await?;
        if !found.files.is_empty() {
            // Only a file with several names can be a link to an input.
            let any = !self.links() || found.files.iter().any(|file| file.shared);
            let inputs = if any { inputs(&root.made) } else { Inputs::new() };
            self.store(root, &mut found, &inputs, function).await?;
        }
        collected.file_count = found.files.len() as u64;
        collected.file_bytes =
            found.files.iter().filter_map(|file| file.digest).map(|digest| digest.size).sum();
        let found = Arc::new(found);
        for node in &found.nodes {
            match node {
                OutputNode::File { path, file } => match found.output_file(path, *file) {
                    Some(file) => collected.files.push(file),
                    None => impossible!("output file {path:?} has no digest"),
                },
                OutputNode::Link { link, kind } => {
                    collected.symlinks.push(link.clone());
                    match kind {
                        LinkKind::File => collected.file_symlinks.push(link.clone()),
                        LinkKind::Directory => collected.directory_symlinks.push(link.clone()),
                    }
                }
                OutputNode::Directory { path, first, end } => {
                    let directory = self.tree(&found, *first..*end, outputs.format, function).await?;
                    collected.directories.push(OutputDirectory { path: path.clone(), ..directory });
                }
            }
        }
        Ok(collected)
    }
}

fn inputs(made: &PreparedDir) -> Inputs {
    let mut inputs = Inputs::new();
    let mut stack = vec![made];
    while let Some(made) = stack.pop() {
        for (file, stamp) in made.plan.files.iter().zip(&made.files) {
            let (Stamp::Linked { inode } | Stamp::Own { inode, .. }) = stamp;
            inputs.insert(*inode, (file.digest, *stamp));
        }
        stack.extend(made.dirs.iter().flatten());
    }
    inputs
}

impl FoundOutputs {
    fn output_file(&self, path: &str, at: usize) -> Option<OutputFile> {
        let file = self.files.get(at)?;
        Some(OutputFile {
            path: path.into(),
            digest: Some(reapi::digest::to_proto(&file.digest?)),
            is_executable: file.executable,
            contents: Vec::new(),
            node_properties: file.props.as_deref().cloned(),
        })
    }
}
