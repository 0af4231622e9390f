#!/usr/bin/env python3
"""Rates five pages of a farm with Lighthouse: performance, accessibility and best practices. Fails below 95 of 100.

`make lighthouse` prepares everything that it needs.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from sample import sample
from webdriver import ROOT

CATEGORIES = ("performance", "accessibility", "best-practices")
LEAST = 95


def rate(url, chromium):
    """The scores of a page, and the audits that lower them."""
    command = [
        ROOT / ".tools/bin/lighthouse", url, "--quiet", "--output=json", "--preset=desktop",
        f"--only-categories={','.join(CATEGORIES)}", "--chrome-flags=--headless=new --no-sandbox --disable-dev-shm-usage",
    ]
    env = {**os.environ, "CHROME_PATH": str(chromium)}
    report = json.loads(subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True).stdout)
    scores = {name: round(report["categories"][name]["score"] * 100) for name in CATEGORIES}
    failed = [audit["id"] for audit in report["audits"].values() if audit["score"] is not None and audit["score"] < 0.9]
    return scores, failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default=ROOT / "target/debug/forebay", type=Path)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="forebay-lighthouse-"))
    chromium = (ROOT / ".tools/bin/chromium").resolve()
    low = False
    with sample(args.binary.resolve(), folder) as farm:
        for name, path in farm.pages.items():
            scores, failed = rate(farm.http + path, chromium)
            low |= min(scores.values()) < LEAST
            print(f"{name:14} " + ", ".join(f"{kind} {score}" for kind, score in scores.items()), *failed)
    shutil.rmtree(folder, ignore_errors=True)
    sys.exit(1 if low else 0)


if __name__ == "__main__":
    main()
