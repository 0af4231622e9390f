#!/usr/bin/env python3
"""Compares what processes of a farm send with what their roles permit.

The traffic is recorded by tests: FOREBAY_TEST_TRAFFIC=FOLDER cargo nextest run. The rights are those of `forebay access show`.
Prints what is used without a right, and what is permitted and never used. Exits with 1 if a use has no right, or if an
unused right has no reason in reasons.txt beside this file.
"""

import argparse
import collections
import fnmatch
import json
import pathlib
import re
import subprocess
import sys
import tempfile

# Names of connections that are not the name of a role.
ROLES = {"cli": "operator", "doctor": "operator", "up": "supervisor", "watchdog": "supervisor"}
# Clients of benchmarks and of this check, and tests of the start with a service of this name.
OTHERS = {"bench", "access", "test"}


def covers(permitted, used):
    """Whether each subject that `used` stands for matches `permitted`, as nats-server matches them."""
    permitted, used = permitted.split("."), used.split(".")
    for place, token in enumerate(permitted):
        if token == ">":
            return len(used) > place
        if place >= len(used) or used[place] == ">":
            return False
        if token not in ("*", used[place]):
            return False
    return len(permitted) == len(used)


def touches(permitted, used):
    """Whether some subject matches both."""
    permitted, used = permitted.split("."), used.split(".")
    for one, other in zip(permitted, used):
        if ">" in (one, other):
            return True
        if "*" not in (one, other) and one != other:
            return False
    return len(permitted) == len(used)


def role_of(name, subject):
    """The role of a process; `forebay topology --apply` has a key of its own."""
    if name == "cli" and re.match(r"\$JS\.API\.(STREAM|CONSUMER)\.CREATE\.[A-Z_]+(\.[a-z]+-[a-z]+\..*)?$", subject):
        return "topology"
    return ROLES.get(name, name)


def recorded(folder):
    """Subjects by role and verb."""
    found = collections.defaultdict(set)
    for path in pathlib.Path(folder).glob("traffic-*.txt"):
        for line in path.read_text().splitlines():
            name, verb, subject = line.split(" ", 2)
            # The id of a process with a key has two parts, its name and a random one.
            subject = re.sub(r"\.(worker|executor)-\d+\.\*", ".*", subject)
            if name not in OTHERS:
                found[role_of(name, subject), verb].add(subject)
    return found


def rights(forebay):
    """Permitted subjects by role and verb, and the roles that may answer."""
    found, answering = {}, set()
    with tempfile.TemporaryDirectory() as folder:
        file = ["--file", f"{folder}/access.toml"]

        def access(*words):
            command = [forebay, "access", *words, *file, "--json"]
            return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

        access("init", "--seeds", f"{folder}/seeds")
        for service in access("list")["services"]:
            shown = access("show", service["name"])
            role, name = service["name"].split("/")
            for verb, subjects in ("PUB", shown["publish"]), ("SUB", shown["subscribe"]):
                found[role, verb] = [subject.replace(f".{name}.*", ".*") for subject in subjects]
            if shown["answers"]:
                answering.add(role)
    return found, answering


def reasons():
    """Why a right may stay unused, or a use without a right is none: patterns of `ROLE VERB SUBJECT`, and the reason."""
    found = []
    for line in (pathlib.Path(__file__).parent / "reasons.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            found.append(tuple(line.split(": ", 1)))
    return found


def reason_for(known, right):
    """The first reason whose pattern matches; `?` and `*` stand for any characters."""
    return next((reason for pattern, reason in known if fnmatch.fnmatchcase(right, pattern)), None)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forebay", default="target/debug/forebay")
    parser.add_argument("folder", help="with the recorded traffic")
    args = parser.parse_args()
    used, (permitted, answering), known = recorded(args.folder), rights(args.forebay), reasons()
    failed = False
    for (role, verb), subjects in sorted(used.items()):
        for subject in sorted(subjects):
            if subject.startswith("_INBOX") and (verb == "SUB" or role in answering):
                continue
            # An answer to any message that it received.
            if verb == "PUB" and role in answering and subject.startswith("$SRV"):
                continue
            if any(covers(right, subject) for right in permitted.get((role, verb), [])):
                continue
            reason = reason_for(known, f"use {role} {verb} {subject}")
            print(f"USED WITHOUT A RIGHT: {role} {verb} {subject}: {reason or 'NO REASON'}")
            failed |= reason is None
    for (role, verb), subjects in sorted(permitted.items()):
        for right in sorted(subjects):
            if right.startswith("_INBOX") or any(touches(right, subject) for subject in used[role, verb]):
                continue
            reason = reason_for(known, f"{role} {verb} {right}")
            print(f"unused: {role} {verb} {right}: {reason or 'NO REASON'}")
            failed |= reason is None
    sys.exit(1 if failed else 0)


main()
