#!/usr/bin/env bash
# Prints figures about the size and tidiness of the source tree. Usage: tests/tidy/figures.sh [COMMIT]
set -euo pipefail
root=$(git rev-parse --show-toplevel)
if [ $# -gt 0 ]; then
    root=$(mktemp -d)
    trap 'rm -rf "$root"' EXIT
    git archive "$1" | tar -x -C "$root"
fi
cd "$root"

product() { find services shared jetstream -name '*.rs' -path '*/src/*' ! -name 'tests.rs' ! -name '*_tests.rs' ! -path '*/tests/*'; }
# Old commits have no folder lab.
every() { find services shared jetstream $(ls -d lab 2>/dev/null) tests -name '*.rs'; }
figure() { printf '%8s  %s\n' "$1" "$2"; }

figure "$(every | xargs cat | wc -l)" 'lines of Rust'
figure "$(product | xargs cat | wc -l)" 'of them outside tests'
figure "$(every | xargs grep -hE '^\s*///' | awk '{ sub(/^ *\/\/\/ */, ""); if (NF > 0 && NF <= 3) n++ } END { print n + 0 }')" 'doc lines of three words or fewer'
figure "$(product | xargs grep -l async_nats | grep -cvE '^(shared/bus|jetstream)/' || true)" 'files that name async_nats outside bus and jetstream'
figure "$(product | grep -vE '^(shared/bus|jetstream)/' | xargs grep -hE 'client\(\)\s*\.(publish|subscribe|request|queue_subscribe)|\.(subscribe|publish_with_reply|send_request)\(' | wc -l)" 'raw publish, subscribe and request outside bus'
figure "$(product | xargs grep -hoE 'unwrap_or\(|unwrap_or_default\(\)|unwrap_or_else\(' | wc -l)" 'defaults of absent values'
figure "$(product | xargs grep -hoE 'impossible!\(|\.present(_or)?\(' | wc -l)" 'states that are impossible and say so'
figure "$(product | xargs grep -hE '^\s*(let _ = |drop\()' | wc -l)" 'dropped results and values'
figure "$(grep -c '^name = ' Cargo.lock)" 'packages in Cargo.lock'
