#!/usr/bin/env bash
# Records what each kind of process sends while the tests run, and compares it with the rights of its role.
set -euo pipefail
CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")/../.."

traffic=$(mktemp -d)
trap 'rm -rf "$traffic"' EXIT
run=(cargo test)
if command -v cargo-nextest >/dev/null; then run=(cargo nextest run --no-fail-fast); fi
FOREBAY_TEST_TRAFFIC=$traffic "${run[@]}" --workspace --test system --test chaos --test browser
.tools/bin/python infra/security/permissions.py "$traffic"
