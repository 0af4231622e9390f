#!/usr/bin/env bash
# Checks the configuration of Prometheus, the rules and their tests, and the expressions of the dashboards.
# infra/tools/prometheus.sh installs promtool; tests/tidy checks the names in all of these.
set -euo pipefail

here=$(CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PATH=$here/../../.tools/bin:$PATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# quietly COMMAND...: prints the output of the command only if it fails.
quietly() {
  "$@" >"$work/output" 2>&1 || { cat "$work/output" >&2 && exit 1; }
  # A pattern of files that matches none is only a warning.
  ! grep -h WARNING "$work/output" >&2
}

# A file of rules is also JSON: each expression of a dashboard becomes a recording rule.
python3 - "$here"/../grafana/*.json >"$work/dashboards.yml" <<'PYTHON'
import json
import sys

VARIABLES = {"$__rate_interval": "5m", "$__range": "6h"}
groups = []
for path in sys.argv[1:]:
    with open(path, encoding="utf-8") as file:
        dashboard = json.load(file)
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    expressions += [annotation["expr"] for annotation in dashboard["annotations"]["list"]]
    for variable, value in VARIABLES.items():
        expressions = [expression.replace(variable, value) for expression in expressions]
    rules = [{"record": f"panel:{number}", "expr": expr} for number, expr in enumerate(expressions)]
    groups.append({"name": dashboard["uid"], "rules": rules})
json.dump({"groups": groups}, sys.stdout)
PYTHON

quietly promtool check config "$here/prometheus.yml"
quietly promtool check rules "$here"/rules/*.yml
quietly promtool check rules "$work/dashboards.yml"
quietly promtool test rules "$here"/tests/*.yml
echo "check-rules: $(cat "$here"/rules/*.yml | grep -c -- '- alert:') alerts, their tests, and the expressions of" \
  "$(ls "$here"/../grafana/*.json | wc -l) dashboards are valid"
