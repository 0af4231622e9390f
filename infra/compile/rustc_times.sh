#!/bin/sh
# A RUSTC_WRAPPER: runs the compiler, and appends the name of the package and the processor times to the file RUSTC_TIMES.
"$@"
code=$?
printf '%s %s\n' "${CARGO_PKG_NAME:-rustc}" "$(times | tail -n 1)" >>"$RUSTC_TIMES"
exit $code
