//! A build that calls Bazel uses the farm: its actions are executed and cached there, under its group and trace.
//!
//! A `bazel` that stands before the real one in `PATH` names the farm to it. Everything that the build itself says to
//! Bazel goes before it.

use std::{fs, io, os::unix::fs::PermissionsExt as _, path::Path};

/// The variable with the address of the Remote Execution API. A build that sets it to nothing has its Bazel work
/// without the farm.
pub(crate) const GRPC: &str = "FOREBAY_GRPC";

/// Options are given in a file, the first of all: what the build's own files and command line say is read later and
/// wins. The file has the same name for each run of a workspace, and the same startup options, or Bazel would start its
/// server anew. What changes from run to run are options of commands that are part of no configuration: the server's
/// caches outlive them. What Bazel makes, and by what it finds its server again, is kept beside the build's folder: no
/// checkout touches it there, and no wildcard of targets or outputs looks into it.
const WRAPPER: &str = r#"#!/bin/sh
here=$(dirname "$0")
name=$(basename "$0")
PATH=${PATH#"$here:"}
export PATH
rc=${TMPDIR:-/tmp}/forebay.bazelrc
{
  if [ -n "$FOREBAY_WORKSPACE" ]; then
    echo "startup \"--output_user_root=${FOREBAY_WORKSPACE%/*}/bazel\""
  fi
  if [ -n "$FOREBAY_GRPC" ]; then
    echo "build --remote_executor=$FOREBAY_GRPC"
    echo "build --remote_header=x-forebay-group=$FOREBAY_GROUP"
    echo "build --remote_header=x-forebay-build=$FOREBAY_BUILD"
    if [ -n "$TRACEPARENT" ]; then echo "build --remote_header=traceparent=$TRACEPARENT"; fi
  fi
} >"$rc"
exec "$name" "--bazelrc=$rc" "$@"
"#;

const NAMES: [&str; 2] = ["bazel", "bazelisk"];

/// Puts the programs into `folder`.
pub(crate) fn install(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for name in NAMES {
        let path = folder.join(name);
        fs::write(&path, WRAPPER)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}
