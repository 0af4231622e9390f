#!/usr/bin/env bash
# Runs the tests of the attacks that the documents list, and writes the results into docs/security.md.
set -euo pipefail
CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")/../.."

result=0
cargo nextest run --workspace --profile attacks -E 'test(/(^|::)(chaos_a_hostile_tenant|[nghsbco][0-9]+)_/)' || result=$?
.tools/bin/python infra/security/attacks.py target/nextest/attacks/junit.xml docs/security.md
exit "$result"
