#!/usr/bin/env python3
"""Starts a farm on this machine, compiles three real C projects for three groups on it, and runs their tests.

Starts `forebay up` in a temporary folder, submits nine builds (batch first), follows one of them live, downloads a
program that the farm built and runs it, and prints how long each build waited and ran. With --secure, the farm admits only
those who have a key.
Exits with 1 unless every build succeeded. `make demo` prepares everything that it needs.
"""

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
FOREBAY = Path(os.environ.get("FOREBAY_BIN") or TARGET / "debug/forebay").resolve()
START_SECONDS, STOP_SECONDS, DEMO_SECONDS = 60, 30, 600
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)

# The command that builds and tests each project, and the program that is kept.
PROJECTS = {
    "zlib": ("./configure && make && make test", "minigzip"),
    "bzip2": ("make bzip2 && make test", "bzip2"),
    "lua": ("make -f plain.mk all check", "src/lua"),
}


class Build(NamedTuple):
    """One build of the demo; its id is set when it is submitted."""

    project: str
    group: str
    priority: str
    id: str = ""


BUILDS = [
    Build("zlib", "nightly", "batch"),
    Build("lua", "nightly", "batch"),
    Build("zlib", "mobile", "batch"),
    Build("bzip2", "nightly", "automated"),
    Build("bzip2", "mobile", "automated"),
    Build("zlib", "core", "automated"),
    Build("lua", "mobile", "interactive"),
    Build("lua", "core", "interactive"),
    Build("bzip2", "core", "emergency"),
]
FOLLOWED = 6  # index of the build that is shown live


class DemoError(Exception):
    """An error that ends the demo and is shown to the user."""


def environment():
    """The environment of this process, with .tools/bin first in PATH and without settings of another farm."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    sources = json.dumps([f"{ROOT}/.tools/sources"])
    return {**kept, "PATH": f"{ROOT}/.tools/bin:{kept.get('PATH', os.defpath)}", "FOREBAY_CONTEXT_PATHS": sources}


@contextlib.contextmanager
def farm(folder, env, options):
    """Runs `forebay up` on free ports, yields its endpoints, and always stops it."""
    data = folder / "data"
    ports = [word for name in ("nats", "redis", "http", "grpc") for word in (f"--{name}-port", "0")]
    with (folder / "up.log").open("wb") as output:
        command = [FOREBAY, "up", "--data", data, *ports, *options]
        up = subprocess.Popen(command, env=env, stdout=output, stderr=output, start_new_session=True)
    try:
        yield wait_for_endpoints(up, data / "endpoints.json")
    finally:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # the cleanup must not be interrupted
        up.terminate()
        try:
            up.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            print("demo: `forebay up` did not stop, killing it", file=sys.stderr)
            os.killpg(up.pid, signal.SIGKILL)
            up.wait()


def wait_for_endpoints(up, path):
    """Returns the content of endpoints.json, which `forebay up` writes when all servers and services answer."""
    deadline = time.monotonic() + START_SECONDS
    while not path.exists():
        if up.poll() is not None or time.monotonic() > deadline:
            raise DemoError("the farm did not start")
        time.sleep(0.05)
    return json.loads(path.read_text())


def forebay(env, *arguments):
    """Runs a `forebay` command and returns its output."""
    return subprocess.run([FOREBAY, *arguments], env=env, stdout=subprocess.PIPE, check=True).stdout


def digest(path):
    """The digest of a file, in the format of the farm."""
    return "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()


def submit(env, build):
    """Submits the build and returns it with its id; does not wait for it."""
    command, program = PROJECTS[build.project]
    archive = ROOT / f".tools/sources/{build.project}.tar.gz"
    options = ["--group", build.group, "--priority", build.priority, "--output", program]
    context = ["--archive", archive, "--archive-digest", digest(archive)]
    reply = forebay(env, "submit", *options, *context, "--json", "--", "sh", "-c", command)
    return build._replace(id=json.loads(reply)["id"])


def follow(env, build):
    """Prints the build's console output, live while it runs."""
    watch = [FOREBAY, "watch", build.id, "--group", build.group]
    with subprocess.Popen(watch, env=env, stdout=subprocess.PIPE, text=True, errors="replace") as process:
        try:
            for line in process.stdout:
                print(f"  {build.group}/{build.project} | {line.rstrip()}")
        finally:
            process.terminate()


def finished(env, build):
    """Waits until the build has ended and returns its record."""
    watch = [FOREBAY, "watch", build.id, "--group", build.group, "--json"]
    subprocess.run(watch, env=env, stdout=subprocess.DEVNULL, check=False)
    return json.loads(forebay(env, "get", build.id, "--group", build.group, "--json"))


def run_output(env, build, record, folder):
    """Downloads the program that the farm built, checks its digest and runs it here."""
    path, program = PROJECTS[build.project][1], folder / "program"
    forebay(env, "get", build.id, "--group", build.group, "--output", path, program)
    kept = {output["path"]: output["digest"] for output in record["result"]["outputs"]}
    if kept[path] != digest(program):
        raise DemoError(f"{path} differs from the file that the build kept")
    says = subprocess.run([program, "-v"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    print(f"\ndownloaded {path} of {build.group}/{build.project}, which prints: {says}")


def row(build, record):
    """The line of the build in the table."""
    result, invocation = record.get("result", {}), record.get("invocation")
    waited = (invocation["started_at_ms"] - record["submitted_at_ms"]) / 1000 if invocation else 0
    times = f"{waited:>6.1f} s {result.get('wall_seconds', 0):>6.1f} s"
    ended = f"{result.get('outcome', record['state'])} {result.get('reason', {}).get('message', '')}"
    return f"{build.project:<6} {build.group:<8} {build.priority:<12} {times}  {ended}".rstrip()


def demo(folder, env, options):
    """Runs the demo; returns whether every build succeeded."""
    for project in PROJECTS:
        subprocess.run([ROOT / "infra/demo/fetch.sh", project], check=True)
    with farm(folder, env, options) as endpoints:
        env = {**env, "FOREBAY_DATA": endpoints["data"]}
        print(f"the farm listens on {endpoints['nats']}; submitting {len(BUILDS)} builds, batch first")
        builds = [submit(env, build) for build in BUILDS]
        follow(env, shown := builds[FOLLOWED])
        records = {build: finished(env, build) for build in builds}
        good = [build for build in builds if records[build].get("result", {}).get("outcome") == "succeeded"]
        if shown in good:
            run_output(env, shown, records[shown], folder)
        for build in set(builds) - set(good):
            follow(env, build)  # its output shows the reason
        print("\nin order of start time:\nbuild  group    priority       waited      ran  result")
        for build in sorted(builds, key=lambda build: records[build].get("invocation", {}).get("started_at_ms", 0)):
            print(row(build, records[build]))
        print(f"\n{len(good)} of {len(builds)} builds succeeded")
        return good == builds


def main():
    """Runs the demo and returns the exit code."""
    parser = argparse.ArgumentParser(description="compile three C projects on a farm of this machine")
    parser.add_argument("--secure", action="store_true", help="start a farm that admits only those who have a key")
    options = ["--secure"] if parser.parse_args().secure else []
    for number in SIGNALS:
        signal.signal(number, signal.default_int_handler)  # KeyboardInterrupt, so that every `finally` runs
    signal.alarm(DEMO_SECONDS)
    sys.stdout.reconfigure(line_buffering=True)
    folder = Path(tempfile.mkdtemp(prefix="forebay-demo-"))
    try:
        return 0 if demo(folder, environment(), options) else 1
    except (DemoError, KeyboardInterrupt, OSError, subprocess.CalledProcessError) as error:
        log = folder / "up.log"
        tail = log.read_text(errors="replace").splitlines()[-20:] if log.exists() else []
        print(*tail, f"demo: {str(error) or 'stopped'}", sep="\n", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
