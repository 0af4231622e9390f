#!/usr/bin/env bash
# usage: beside.sh BACKGROUND COMMAND
# Runs both command lines at the same time. Prints what BACKGROUND prints when both have ended. Fails if one of them fails.
set -uo pipefail

output=$(mktemp) || exit
setsid bash -c "$1" >"$output" 2>&1 </dev/null &
background=$!
trap 'kill -- "-$background" 2>/dev/null; rm -f "$output"' EXIT
bash -c "$2" || exit
wait "$background"
code=$?
cat "$output"
exit "$code"
