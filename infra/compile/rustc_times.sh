#!/bin/sh
# A RUSTC_WRAPPER: runs the compiler, and writes the name of the package and the processor times into a file in RUSTC_TIMES.
"$@"
code=$?
echo "${CARGO_PKG_NAME:-rustc}" >"$RUSTC_TIMES/$$"
times >>"$RUSTC_TIMES/$$" # not in a pipe, whose shell has used nothing
exit $code
