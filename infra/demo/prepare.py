#!/usr/bin/env python3
"""Prepares `make demo`: checks the machine, and installs the tools while the farm compiles.

With FOREBAY_BIN set to a forebay binary, nothing is compiled.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LEAST_FREE_GIB = 3  # a cold build takes 2.5


class NotReady(Exception):
    """What the machine lacks, and what to do about it."""


def prints(*command):
    """What the command prints, or None if it fails."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout


def check_binary(path):
    """FOREBAY_BIN must be a forebay binary."""
    if not (prints(path, "--version") or "").startswith("forebay "):
        raise NotReady(f"FOREBAY_BIN is {path}, which is no forebay binary that runs here; unset it to compile one")


def check_compiler():
    """Compiling needs Rust of the version in Cargo.toml, and room."""
    needed = re.search(r'^rust-version = "([\d.]+)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)[1]
    found = re.search(r"^rustc (\d+\.\d+)", prints("rustc", "--version") or "")
    advice = "install it from https://rustup.rs, or set FOREBAY_BIN to a forebay binary"
    if not found or not prints("cargo", "--version"):
        raise NotReady(f"there is no Rust compiler: {advice}")
    number = lambda version: tuple(int(part) for part in version.split("."))
    if number(found[1]) < number(needed):
        raise NotReady(f"rustc is {found[1]}, and Forebay needs {needed}: `rustup update`, or {advice}")
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT))
    target = target if target.exists() else ROOT
    free = shutil.disk_usage(target).free / 2**30
    if not (ROOT / "target/debug/forebay").exists() and free < LEAST_FREE_GIB:
        raise NotReady(f"{target} has {free:.1f} GiB free, and compiling needs {LEAST_FREE_GIB}: "
                       "set CARGO_TARGET_DIR to a folder on a larger disk")


def check_linker():
    """Rust links by the C compiler, which also compiles what is written in C."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "check.c"
        source.write_text("#include <stdio.h>\nint main(void) { return 0; }\n")
        linked = subprocess.run(["cc", "-o", f"{folder}/check", source], stderr=subprocess.PIPE, text=True)
        if linked.returncode:
            reason = (linked.stderr.strip() or f"it ended with {linked.returncode}").splitlines()[-1]
            raise NotReady(f"cc cannot compile and link a program: {reason}: "
                           "install gcc and libc6-dev")


def check_commands():
    """setup.sh can install commands as root only; others learn before the compilation what is missing."""
    listed = re.search(r"^COMMANDS=\((.*)\)$", (ROOT / "infra/tools/setup.sh").read_text(), re.MULTILINE)[1].split()
    missing = [name for name in listed if not shutil.which(name)]
    if missing and (os.geteuid() or not shutil.which("apt-get")):
        raise NotReady(f"please install with your package manager: {' '.join(missing)}")


def check_kernel():
    """The sandbox of builds needs namespaces."""
    if shutil.which("unshare") and prints("unshare", "--user", "--map-root-user", "true") is None:
        raise NotReady("the kernel does not let this user create user namespaces, which sandboxes need: "
                       "sysctl kernel.unprivileged_userns_clone=1, user.max_user_namespaces=10000, "
                       "kernel.apparmor_restrict_unprivileged_userns=0; in a container allow CAP_SYS_ADMIN and unshare")


def prepare():
    """Leaves the binary and the tools ready."""
    binary = os.environ.get("FOREBAY_BIN")
    check_kernel()
    check_commands()
    if binary:
        check_binary(binary)
    else:
        check_compiler()
    print("demo: " + ("installs missing tools" if binary else "compiles forebay (minutes, the first time) and "
          "installs missing tools") + "; then starts a farm and runs 9 builds on it, twice", flush=True)
    tools = "infra/tools/setup.sh && for name in zlib bzip2 lua; do infra/demo/fetch.sh $name || exit; done"
    if not shutil.which("cc"):
        run("bash", "-c", tools)
    if not binary:
        check_linker()
    run("infra/tools/beside.sh", tools, "true" if binary else "infra/compile/compile.py")


def run(*command):
    """Runs it in the root of the repository. Its output says what failed."""
    if subprocess.run(command, cwd=ROOT).returncode:
        raise NotReady("not ready, see above")


def main():
    """Returns the exit code."""
    try:
        prepare()
    except NotReady as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
