#!/usr/bin/env python3
"""Takes the two pictures of the README: the list of builds, and a failed build. `make screenshots` prepares what it needs."""

import argparse
import shutil
import tempfile
import time
from pathlib import Path

from sample import sample
from webdriver import ROOT, Browser

PICTURES = {"builds": ("builds", False), "job": ("build", True)}
BYTES_MAX = 150_000


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", default=ROOT / "target/debug/forebay", type=Path)
    parser.add_argument("--folder", default=ROOT / "docs/pictures", type=Path)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="forebay-pictures-"))
    with sample(args.binary.resolve(), folder) as farm:
        for page, (name, dark) in PICTURES.items():
            browser = Browser(farm.http, 1180, 860, dark)
            try:
                browser.open(farm.pages[page])
                time.sleep(2)  # the first changes arrive
                picture = browser.picture()
            finally:
                browser.close()
            if len(picture) > BYTES_MAX:
                raise SystemExit(f"the picture {name} has {len(picture)} bytes, more than {BYTES_MAX}")
            (args.folder / f"{name}.png").write_bytes(picture)
            print(f"{name}.png: {len(picture)} bytes")
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
