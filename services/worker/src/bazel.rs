//! A build that calls Bazel uses the farm: its actions are executed and cached there, under its group and trace.
//!
//! A wrapper named `bazel`, first in `PATH`, passes the farm's address to the real one. All options that the build
//! itself gives to Bazel take precedence.

use std::{fs, io, os::unix::fs::PermissionsExt as _, path::Path};

/// The variable with the address of the Remote Execution API. If a build sets it to an empty value, its Bazel
/// runs without the farm.
pub(crate) const GRPC: &str = policy::ADDRESS_VARIABLE;

/// The variable with the token of the build, if gateways have access rules.
pub(crate) const TOKEN: &str = "FOREBAY_TOKEN";
/// The variable with the path of the authorities of the certificates of gateways.
pub(crate) const AUTHORITIES: &str = "FOREBAY_GATEWAY_CA_FILE";

/// Options go into a file that is read first: the build's own files and command line are read later and win. The file
/// has the same name and the same startup options for every run of a workspace, otherwise Bazel would restart its
/// server. Values that change between runs are options of commands and not part of a configuration, so the server's
/// caches stay valid. The first build command of an invocation gets its id; further ones have ids of their own,
/// because an id names one stream of Bazel's events. The gateway recognises the build by the project id: Bazel has no
/// headers for build events before version 5, so a version before it publishes none to gateways with access rules. Bazel's outputs and the data that it finds its server by are kept beside the
/// build's folder: no checkout touches them there, and no wildcard of targets or outputs matches them. Bazel's events are
/// kept there too, one file for each call: the worker reads from them which version ran, and the rules and tags of all
/// targets of the call.
const WRAPPER: &str = r#"#!/bin/sh
here=$(dirname "$0")
name=$(basename "$0")
PATH=${PATH#"$here:"}
export PATH
rc=${TMPDIR:-/tmp}/forebay.bazelrc
command=
for word; do
  case $word in -*) ;; *) command=$word; break ;; esac
done
{
  if [ -n "$FOREBAY_INVOCATION" ]; then
    echo "build --build_request_id=$FOREBAY_BUILD_ID"
    case $command in build|test|run|coverage|mobile-install)
      if (set -C; : >"${TMPDIR:-/tmp}/forebay.invocation") 2>/dev/null; then
        echo "build --invocation_id=$FOREBAY_INVOCATION"
      fi ;;
    esac
  fi
  if [ -n "$FOREBAY_WORKSPACE" ]; then
    echo "startup \"--output_user_root=${FOREBAY_WORKSPACE%/*}/bazel\""
    events="${FOREBAY_WORKSPACE%/*}/tool-events"
    if mkdir -p "$events" 2>/dev/null; then
      echo "build \"--build_event_json_file=$events/$$.json\""
      echo "build --nobuild_event_json_file_path_conversion"
    fi
  fi
  if [ -n "$FOREBAY_GRPC" ]; then
    echo "build --remote_executor=$FOREBAY_GRPC"
    publishes=yes
    if [ -n "$FOREBAY_TOKEN" ]; then
      echo "build \"--remote_header=authorization=Bearer $FOREBAY_TOKEN\""
      case $("$name" --version 2>/dev/null) in
        bazel\ [5-9].* | bazel\ [1-9][0-9].*) echo "build \"--bes_header=authorization=Bearer $FOREBAY_TOKEN\"" ;;
        *) publishes= ;;
      esac
    fi
    if [ -r "$FOREBAY_GATEWAY_CA_FILE" ]; then
      case $FOREBAY_GRPC in grpcs:*) echo "build --tls_certificate=$FOREBAY_GATEWAY_CA_FILE" ;; esac
    fi
    if [ -n "$publishes" ]; then echo "build --bes_backend=$FOREBAY_GRPC"; fi
    echo "build --project_id=forebay/$FOREBAY_GROUP/$FOREBAY_BUILD"
    echo "build --remote_header=x-forebay-group=$FOREBAY_GROUP"
    echo "build --remote_header=x-forebay-build=$FOREBAY_BUILD"
    if [ -n "$TRACEPARENT" ]; then echo "build --remote_header=traceparent=$TRACEPARENT"; fi
  fi
} >"$rc"
exec "$name" "--bazelrc=$rc" "$@"
"#;

const NAMES: [&str; 2] = ["bazel", "bazelisk"];

/// Name of the copy of the authorities of gateways, beside the wrapper programs: builds in a sandbox do not see the original.
pub(crate) const AUTHORITIES_COPY: &str = "gateway-ca.pem";

/// Installs the wrapper programs in `folder`, and the authorities of gateways.
pub(crate) fn install(folder: &Path, authorities: Option<&Path>) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    if let Some(authorities) = authorities {
        fs::write(folder.join(AUTHORITIES_COPY), fs::read(authorities)?)?;
    }
    for name in NAMES {
        let path = folder.join(name);
        fs::write(&path, WRAPPER)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}
