#!/usr/bin/env python3
"""Runs a farm for some hours under builds of three real C projects, and prints its report.

usage: record.py [--hours 168] [--seconds-between 10]

The builds of zlib, bzip2 and Lua come at random times from three groups, with the four priorities in the shares of
Google's table 6. A build is a call of make in a warm workspace, a job whose tasks are actions, or a call of Bazel
against the farm. Each project changes now and then: one line of a random source file. Some builds are asked for,
watched or cancelled. Prometheus reads the metrics. SIGINT or SIGTERM ends the record early.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from demo import FOREBAY, ROOT, DemoError, environment, farm, forebay

E2E = ROOT / "tests/e2e"
GROUPS = {"core": 2, "mobile": 2, "nightly": 1}  # group: ESU of x86
# Percent of all builds: table 6 of Google's paper.
PRIORITIES = {"emergency": 0.4, "interactive": 40.1, "automated": 46.0, "batch": 13.6}
KINDS = {"make": 35, "job": 40, "bazel": 25}
ACTIONS = {"get": 60, "watch": 30, "cancel": 1, "nothing": 9}
# The targets of make and of Bazel, and the file that is left out of jobs.
TARGETS = {
    "zlib": (["libz.a", "example", "minigzip", "all"], ["//:z", "//..."]),
    "bzip2": (["bzip2", "bzip2recover", "libbz2.a"], ["//:bzip2", "//:bzip2recover", "//..."]),
    "lua": (["src/lua", "src/luac", "all"], ["//..."]),
}
MAKE = {"zlib": "make", "bzip2": "make", "lua": "make -f plain.mk"}
LEFT_OUT = ("cat", "if", "then", "fi")  # commands that jobs leave out
RULES = ("rules_cc", "rules_java", "remote_coverage_tools")
PROFILE = "build --symlink_prefix=/ --color=no --curses=no --incompatible_strict_action_env --spawn_strategy=remote\n"


def pick(weights):
    """A random key, with the probability of its weight."""
    return random.choices(list(weights), list(weights.values()))[0]


class Project:
    """A working copy of a project and its job."""

    def __init__(self, name, folder, grpc):
        self.name, self.folder, self.job = name, folder, folder.parent / f"{name}.job.json"
        subprocess.run([ROOT / "infra/demo/fetch.sh", name, folder], check=True)
        if name == "zlib":
            subprocess.run(["./configure"], cwd=folder, stdout=subprocess.DEVNULL, check=True)
        make = [*(option for word in LEFT_OUT for option in ("--leave-out", word)), "--", *MAKE[name].split()]
        make_job = [sys.executable, ROOT / "examples/jobs/make_job.py", *make, TARGETS[name][0][-1]]
        self.job.write_bytes(subprocess.run(make_job, cwd=folder, stdout=subprocess.PIPE, check=True).stdout)
        shutil.copytree(E2E / "workspaces" / name, folder, dirs_exist_ok=True)
        (folder / "WORKSPACE").write_text(f'workspace(name = "{name}")\n')
        shims = "".join(f"build --override_repository={rule}={E2E}/shims/{rule}\n" for rule in RULES)
        (folder / ".bazelrc").write_text(f"{PROFILE}{shims}build --remote_executor={grpc}\n")
        # Not those of the tests, which do not compile alone.
        self.sources = sorted(path for path in folder.glob("**/*.c") if path.parent.name in (name, "src"))

    def change(self):
        """Adds a line to a random source file."""
        with random.choice(self.sources).open("a") as source:
            source.write(f"/* {time.time_ns()} */\n")

    def command(self, kind):
        """The arguments of `forebay submit` that say what to run."""
        make, bazel = TARGETS[self.name]
        if kind == "job":
            return ["--job", self.job]
        if kind == "make":
            target = random.choice(make)
            return ["--warm", "--target", target, "--", "sh", "-c", f"{MAKE[self.name]} {target}"]
        return ["--warm", "--", "bazel", "build", "--jobs=8", random.choice(bazel)]


@contextlib.contextmanager
def prometheus(folder, data):
    """Runs Prometheus on the metrics of the farm and yields its address."""
    config = folder / "prometheus"
    shutil.copytree(ROOT / "infra/prometheus", config)
    targets = subprocess.run(
        [sys.executable, config / "targets.py", data / "endpoints.json"], stdout=subprocess.PIPE, check=True
    )
    (config / "targets/forebay-up.yml").write_bytes(targets.stdout)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    command = [
        ROOT / ".tools/bin/prometheus", f"--config.file={config / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'series'}", f"--web.listen-address={address}",
    ]  # fmt: skip
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(30)


class Record:
    """The builds of a record."""

    def __init__(self, env, projects):
        self.env, self.projects, self.calls, self.builds = env, projects, [], 0

    def one(self):
        """Submits a build, and does what a user may do with it."""
        project = random.choice(self.projects)
        if random.random() < 0.3:
            project.change()
        group, priority = random.choice(list(GROUPS)), pick(PRIORITIES)
        who = ["--group", group, "--priority", priority, "--submitter", f"ci-{project.name}", "--dir", project.folder]
        reply = forebay(self.env, "submit", *who, "--json", *project.command(pick(KINDS)))
        self.builds += 1
        if (call := pick(ACTIONS)) != "nothing":
            command = [FOREBAY, call, json.loads(reply)["id"], "--group", group]
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            self.calls.append(subprocess.Popen(command, env=self.env, **quiet))
        self.calls = [call for call in self.calls if call.poll() is None]

    def run(self, seconds, between):
        """Submits builds at random times: on average one in `between` seconds, more than half of them in bursts."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for _ in range(random.choice((1, 1, 1, 1, 6))):
                self.one()
            time.sleep(min(random.expovariate(1 / (2 * between)), max(0, end - time.monotonic())))

    def finish(self):
        """Waits until no build waits or runs."""
        for call in self.calls:
            call.terminate()
        deadline = time.monotonic() + 600
        while time.monotonic() < deadline:
            lists = [forebay(self.env, "ls", "--state", state, "--json") for state in ("enqueued", "in_progress")]
            if not any(json.loads(found)["builds"] for found in lists):
                return
            time.sleep(2)


def record(folder, env, arguments):
    """Runs the record and prints the report."""
    with farm(folder, env) as endpoints, prometheus(folder, folder / "data") as address:
        env = {**env, "FOREBAY_NATS_URL": endpoints["nats"], "FOREBAY_REDIS_URL": endpoints["redis"]}
        env["FOREBAY_DATA"] = str(folder / "data")
        for group, esu in GROUPS.items():
            forebay(env, "quota", "set", group, f"x86={esu}")
        (folder / "projects").mkdir()
        grpc = endpoints["grpc"].replace("http://", "grpc://")
        builds = Record(env, [Project(name, folder / "projects" / name, grpc) for name in TARGETS])
        print(f"the farm is in {folder / 'data'}, Prometheus at {address}")
        try:
            builds.run(arguments.hours * 3600, arguments.seconds_between)
        except KeyboardInterrupt:
            print("ended early")
        builds.finish()
        print(f"{builds.builds} builds")
        print(forebay(env, "report", "--prometheus", address).decode())


def main():
    """Runs the record and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=168)
    parser.add_argument("--seconds-between", type=float, default=10)
    arguments = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)  # KeyboardInterrupt, so that every `finally` runs
    sys.stdout.reconfigure(line_buffering=True)
    folder = Path(tempfile.mkdtemp(prefix="forebay-record-"))
    try:
        record(folder, environment(), arguments)
        return 0
    except (DemoError, KeyboardInterrupt, OSError, subprocess.CalledProcessError) as error:
        print(f"record: {str(error) or 'stopped'}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
