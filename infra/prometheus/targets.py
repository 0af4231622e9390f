#!/usr/bin/env python3
"""Writes the targets of Prometheus for a farm that `forebay up` runs.

usage: targets.py DATA/endpoints.json >infra/prometheus/targets/forebay-up.yml

Services that restart keep their address. Run it again after `forebay up` has started more processes.
"""
import json
import sys
from urllib.parse import urlsplit

if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
    sys.exit(__doc__)
with open(sys.argv[1], encoding="utf-8") as file:
    metrics = json.load(file)["metrics"]
targets = sorted(urlsplit(url).netloc for url in metrics.values())
json.dump([{"targets": targets}], sys.stdout, indent=2)
print()
