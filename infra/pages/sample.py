"""A farm with builds of several kinds, for pictures and ratings of the pages."""

import contextlib
import time

from farm import Farm

FAILING = r"""
printf '\033[1mBuilding parser\033[0m (4 of 61)\n'
for part in lexer tokens grammar tree visitor; do echo "cc -O2 -c src/$part.c"; sleep 0.1; done
printf 'src/visitor.c:118:9: \033[1;31merror:\033[0m unknown type name \047tree_node\047\n' >&2
printf '  118 |         tree_node *child = next(parent);\n' >&2
printf 'make: *** [Makefile:31: visitor.o] Error 1\n' >&2
exit 2
"""
JOB = {"tasks": [
    {"id": "generate", "command": ["sh", "-c", "sleep 0.4; echo a > a.c"], "outputs": ["a.c"]},
    {"id": "fetch-data", "command": ["sh", "-c", "sleep 0.9; echo b > data"], "outputs": ["data"]},
    {"id": "compile", "command": ["sh", "-c", "sleep 0.8; cat a.c > a.o"], "inputs": ["a.c"], "outputs": ["a.o"]},
    {"id": "link", "command": ["sh", "-c", "sleep 0.3; cat a.o > app"], "inputs": ["a.o"], "outputs": ["app"]},
    {"id": "unit-tests", "command": ["sh", "-c", "sleep 0.6; test -s app"], "inputs": ["app"]},
    {"id": "data-tests", "command": ["sh", "-c", "sleep 0.5; echo 'assertion failed: 41 != 42' >&2; exit 1"], "inputs": ["app", "data"]},
    {"id": "report", "command": ["true"], "dependencies": ["data-tests"]},
]}


@contextlib.contextmanager
def sample(binary, folder):
    """Starts the farm; its attribute `pages` has the paths of five pages."""
    farm = Farm(binary, folder, 4, governor_tick_ms=500)
    try:
        farm.run("quota", "set", "core", "x86=3")
        farm.run("quota", "set", "mobile", "x86=2")
        people = ("ada", "grace", "linus")
        keys = []
        for number in range(24):
            group, seconds = ("core", "mobile", "web")[number % 3], 0.1 + number % 7 / 4
            command = ["sh", "-c", f"sleep {seconds}; exit {int(number in (5, 13))}"] if number != 9 else ["make", "check"]
            request = {"labels": {"branch": "main", "commit": f"{number * 7919 % 65536:04x}"}, "submitter": people[number % 3]}
            keys.append((group, farm.submit(group, command, **request)))
        failed = farm.submit("core", ["sh", "-c", FAILING], submitter="ada", labels={"branch": "parser", "pipeline": "check"})
        job = farm.submit("core", None, job=JOB, submitter="grace", labels={"pipeline": "nightly"})
        for group, key in [*keys, ("core", failed), ("core", job)]:
            farm.wait_for_end(group, key)
        for number in range(9):
            farm.submit(("core", "mobile")[number % 2], ["sh", "-c", f"sleep {600 + number}"], submitter="linus")
        time.sleep(6)  # for some decisions of the governor
        farm.pages = {
            "builds": "/builds",
            "failed build": f"/builds/core/{failed}",
            "job": f"/builds/core/{job}",
            "farm": "/farm",
            "quota": "/quota",
        }
        yield farm
    finally:
        farm.stop()
