#!/usr/bin/env python3
"""Compiles the forebay binary, shows how far it is, and measures what compiling costs.

usage: compile.py [--release] [--budget FILE]

The remaining time is estimated from the source bytes of the crates that are done and of those that are not. With --budget,
exits with 1 if the binary weighs more than FILE allows. Of a release that is its size, `release_binary_mib`; else it is the
processor time in an empty target folder, `compile_processor_seconds`, which is printed by crate, scaled to a machine that
compiles four of the crates in a known time, and not checked if some crates were compiled already.
"""

import argparse
import json
import os
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "forebay"
# A crate's cost does not grow with its source beyond this: such crates are lists of constants.
MOST_BYTES = 400_000
# What a crate costs besides its source, in bytes.
START_BYTES = 15_000
PRINT_SECONDS = 20
# An estimate from less than this share of the cost would mislead.
LEAST_SHARE = 0.05
SHOWN_CRATES = 25
# The floor: machines of one kind differ by 1.7 in speed from day to day, so the sum is scaled to a machine that needs
# FLOOR_SECONDS of processor time to compile these.
FLOOR_CRATES = ("async-nats", "rustls", "syn", "tokio")
FLOOR_SECONDS = 22
# Machines that differ by more than this factor cannot be compared.
SPEED_MOST = 3


def metadata():
    """What `cargo metadata` prints, for the platform of this machine."""
    host = next(line.split()[1] for line in output("rustc", "-vV").splitlines() if line.startswith("host:"))
    return json.loads(output("cargo", "metadata", "--format-version=1", "--locked", f"--filter-platform={host}"))


def output(*command):
    """Runs the command in the root of the repository and returns its output."""
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


class Packages:
    """The packages that the binary is made of."""

    def __init__(self):
        found = metadata()
        self._nodes = {node["id"]: node for node in found["resolve"]["nodes"]}
        packages = {package["id"]: package for package in found["packages"]}
        members = [packages[identity] for identity in found["workspace_members"]]
        self.ours = {package["name"] for package in members}
        root = next(package["id"] for package in members if package["name"] == PACKAGE)
        self.costs = {identity: expected_cost(packages[identity]) for identity in self._compiled_for(root)}

    def _compiled_for(self, root):
        todo, seen = [root], {root}
        while todo:
            for dependency in self._nodes[todo.pop()]["deps"]:
                kinds = {kind["kind"] for kind in dependency["dep_kinds"]}
                if kinds - {"dev"} and dependency["pkg"] not in seen:
                    seen.add(dependency["pkg"])
                    todo.append(dependency["pkg"])
        return seen


def expected_cost(package):
    """What the package costs, in bytes of source."""
    source = Path(package["manifest_path"]).parent / "src"
    return START_BYTES + min(MOST_BYTES, sum(path.stat().st_size for path in source.rglob("*.rs")))


class Progress:
    """The line that shows how much is compiled: rewritten on a terminal, else printed now and then."""

    def __init__(self, costs):
        self.costs, self.done, self.fresh = costs, set(), set()
        self.start, self.printed = None, time.monotonic()
        self.terminal = sys.stdout.isatty()

    def add(self, identity, fresh):
        """A part of the package is there; `fresh`: it was compiled before."""
        if identity in self.costs and identity not in self.done:
            self.done.add(identity)
            if fresh:
                self.fresh.add(identity)
            elif self.start is None:
                self.start = time.monotonic()
            self.show()

    def remaining_seconds(self):
        """An estimate, or None as long as too little is done for one."""
        cost = lambda which: sum(self.costs[identity] for identity in which)
        compiled = cost(self.done - self.fresh)
        left = cost(self.costs) - cost(self.done)
        if compiled < LEAST_SHARE * (compiled + left):
            return None
        return (time.monotonic() - self.start) * left / compiled

    def show(self):
        """Prints the line if it is time to."""
        now = time.monotonic()
        if not self.terminal and now - self.printed < PRINT_SECONDS:
            return
        self.printed = now
        text = f"compiling: {len(self.done)} of {len(self.costs)} crates"
        left = self.remaining_seconds()
        if left is not None:
            text += f", about {left / 60:.1f} minutes left" if left > 60 else f", about {left:.0f} s left"
        print(f"\r\x1b[K{text}" if self.terminal else text, end="" if self.terminal else "\n", flush=True)

    def end(self):
        """Clears the line."""
        if self.terminal:
            print("\r\x1b[K", end="", flush=True)


def build(progress, env, release):
    """Runs cargo, which prints only warnings and errors; returns its exit code and the path of the binary."""
    binary = None
    command = ["cargo", "build", "--quiet", "--locked", "--package", PACKAGE] + ["--release"] * release
    command += ["--message-format", "json-render-diagnostics"]
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) as cargo:
        for line in cargo.stdout:
            message = json.loads(line) if line.startswith("{") else {}
            targets = message.get("target", {}).get("kind", [])
            if message.get("reason") == "compiler-artifact" and "custom-build" not in targets:
                progress.add(message["package_id"], message["fresh"])
                if message["target"]["name"] == PACKAGE and message["executable"]:
                    binary = Path(message["executable"])
    progress.end()
    return cargo.returncode, binary


def children_seconds():
    """Processor time of this process's children so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def clock_seconds(text):
    """Seconds of a time as the shell prints it: 1m2.5s"""
    minutes, seconds = text.rstrip("s").split("m")
    return 60 * int(minutes) + float(seconds)


def by_crate(folder):
    """Processor seconds of rustc by crate, from the files that rustc_times.sh wrote."""
    seconds = defaultdict(float)
    for path in Path(folder).iterdir():
        crate, _, of_rustc = path.read_text().splitlines()
        seconds[crate] += sum(clock_seconds(text) for text in of_rustc.split())
    return seconds


def limit_of(budget, name):
    """The limit of that name in the file."""
    try:
        found = re.search(rf"^\[{name}\]\nlimit = ([1-9]\d*)$", budget.read_text(), re.MULTILINE)
    except (OSError, UnicodeDecodeError) as error:
        sys.exit(f"compile: cannot read {budget}: {error}")
    if not found:
        sys.exit(f"compile: {budget} has no table {name} that begins with `limit = ` and a whole number")
    return int(found[1])


def check_size(limit, path):
    """Prints the size of the release, and returns whether the budget holds."""
    size = path.stat().st_size / 2**20
    print(f"{path} has {size:.1f} MiB")
    if size > limit:
        print(f"compile: {size:.1f} MiB are more than the budget of {limit}", file=sys.stderr)
    return size <= limit


def check_time(limit, total, shares, ours, fresh):
    """Prints the costs, and returns whether the budget holds."""
    own = sum(seconds for crate, seconds in shares.items() if crate in ours)
    print(f"compile: {total:.0f} s of processor time; {own:.0f} s of it for our own crates, "
          f"{sum(shares.values()) - own:.0f} s for those of registries, the rest for build scripts, C code and cargo")
    for crate, seconds in sorted(shares.items(), key=lambda share: -share[1])[:SHOWN_CRATES]:
        print(f"compile: {seconds:6.1f} s {100 * seconds / total:4.1f} % {crate}")
    if fresh:
        print(f"compile: the budget is not checked, since {fresh} crates were compiled before")
        return True
    floor = sum(shares[crate] for crate in FLOOR_CRATES)
    if not FLOOR_SECONDS / SPEED_MOST < floor < FLOOR_SECONDS * SPEED_MOST:
        print(f"compile: {', '.join(FLOOR_CRATES)} need {floor:.1f} s instead of about {FLOOR_SECONDS} s: if they changed, "
              "measure FLOOR_SECONDS again", file=sys.stderr)
        return False
    scaled = total * FLOOR_SECONDS / floor
    print(f"compile: {', '.join(FLOOR_CRATES)} need {floor:.1f} s; where they need {FLOOR_SECONDS} s, all need {scaled:.0f} s")
    if scaled > limit:
        print(f"compile: {scaled:.0f} s are more than the budget of {limit} s", file=sys.stderr)
    return scaled <= limit


def main():
    """Compiles; returns the exit code."""
    parser = argparse.ArgumentParser(description="compile the forebay binary, and show how far it is")
    parser.add_argument("--release", action="store_true", help="compile an optimised binary")
    parser.add_argument("--budget", type=Path, help="check what the binary weighs against the limits in this file")
    args = parser.parse_args()
    measures = args.budget and not args.release
    limit = args.budget and limit_of(args.budget, "release_binary_mib" if args.release else "compile_processor_seconds")
    subprocess.run(["cargo", "fetch", "--quiet", "--locked"], cwd=ROOT, check=True)
    packages = Packages()
    progress, env = Progress(packages.costs), dict(os.environ)
    before, start = children_seconds(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        if measures:
            env |= {"RUSTC_WRAPPER": str(ROOT / "infra/compile/rustc_times.sh"), "RUSTC_TIMES": folder}
        code, binary = build(progress, env, args.release)
        fresh = len(progress.fresh)
        if code == 0 and fresh < len(progress.costs):
            print(f"compiled {len(progress.costs) - fresh} crates in {time.monotonic() - start:.0f} s")
        if code == 0 and measures:
            total = children_seconds() - before
            code = 0 if check_time(limit, total, by_crate(folder), packages.ours, fresh) else 1
    if code == 0 and limit and args.release:
        code = 0 if check_size(limit, binary) else 1
    return code


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except FileNotFoundError as error:
        sys.exit(f"compile: cannot start {error.filename}: install Rust from https://rustup.rs")
    except subprocess.CalledProcessError as error:
        sys.exit(f"compile: `{shlex.join(error.cmd)}` failed, see above")
