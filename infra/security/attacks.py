#!/usr/bin/env python3
"""Writes the results of the tests of attacks into a document.

attacks.py JUNIT DOCUMENT

JUNIT is the report of cargo nextest. The table replaces what is between the two marks in the document. A test counts for the
attack that its name begins with: `n2_tenants_publish_only_to_their_groups` for N2.
"""

import collections
import datetime
import pathlib
import platform
import re
import subprocess
import sys
import xml.etree.ElementTree

BEGIN, END = "<!-- results: infra/security/attacks.sh writes these lines -->", "<!-- end of results -->"
KINDS = {
    "N": "nats-server",
    "G": "Remote Execution API",
    "H": "HTTP and pages",
    "S": "sandbox",
    "C": "sources of builds",
    "B": "store of blobs",
    "O": "load, and what others read",
}
NAME = re.compile(r"(?:^|::)([nghsbco])(\d+)_")


def results(report):
    """For each attack, which of its tests passed."""
    found = collections.defaultdict(list)
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        name = NAME.search(case.get("name"))
        if name:
            failed = case.find("failure") is not None or case.find("error") is not None
            found[name[1].upper(), int(name[2])].append(not failed)
    return found


def version(command):
    """The version that a program prints."""
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return re.search(r"v?(\d+\.\d+\.\d+)", shown)[1]


def table(found):
    """The lines of the table: a row for each kind of attack."""
    passed = sum(all(tests) for tests in found.values())
    tests = sum(len(tests) for tests in found.values())
    today = datetime.date.today().isoformat()
    servers = f"nats-server {version(['.tools/bin/nats-server', '--version'])}"
    servers += f", Redis {version(['.tools/bin/redis-server', '--version'])}, Linux {platform.release()}"
    yield f"`make attacks` on {today} with {servers}: {passed} of {len(found)} attacks got the answer above, in {tests} tests."
    yield ""
    yield "| target | attacks, with the number of tests that passed |"
    yield "|---|---|"
    for letter, target in KINDS.items():
        attacks = sorted(number for kind, number in found if kind == letter)
        cells = []
        for number in attacks:
            tests = found[letter, number]
            cell = f"{letter}{number}: {sum(tests)}"
            cells.append(cell if all(tests) else f"**{cell} of {len(tests)}**")
        if cells:
            yield f"| {target} | {', '.join(cells)} |"


def main():
    report, document = sys.argv[1], pathlib.Path(sys.argv[2])
    text = document.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    lines = "\n".join(table(results(report)))
    document.write_text(f"{before}{BEGIN}\n{lines}\n{END}{after}")


main()
