#!/usr/bin/env python3
"""Measures the pages on this machine: lists with many builds, a long log, and many watchers.

Starts `forebay up` in a temporary folder, runs builds until the archive has many and some are running, and prints times as a
Chromium sees them, sizes, and what watchers cost. `make bench-pages` prepares everything that it needs.
"""

import argparse
import asyncio
import concurrent.futures
import json
import os
import resource
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from farm import Farm
from webdriver import ROOT, Browser


def fill(farm, builds):
    """Runs builds until the archive has so many."""
    def some(count):
        connection = farm.connect()
        for number in range(count):
            farm.submit(f"group-{number % 20}", ["true"], connection, submitter="ada", labels={"branch": "main"})
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(some, [builds // 8] * 8))
    def ended():
        waiting = farm.read("/v1/builds?state=ENQUEUED&limit=1")["builds"]
        running = farm.read("/v1/builds?state=IN_PROGRESS&limit=1")["builds"]
        return not waiting and not running
    farm.wait("the builds to end", ended)
    last = farm.read("/v1/builds?limit=1")["builds"][0]
    farm.wait("the archive", lambda: last["id"] in json.dumps(farm.read("/v1/builds?text=true&limit=1")))


def lists(farm, browser):
    """Paint times and sizes of lists."""
    for path in ("/builds", "/builds?group=group-3&outcome=succeeded", "/builds?text=true&within=1d", "/mine", "/farm"):
        paints, size = [], 0
        for _ in range(9):
            browser.open(path)
            paint = browser.wait("""const done = arguments[0]; const look = () => {
                const found = performance.getEntriesByName('first-contentful-paint')[0];
                found ? done([found.startTime, performance.getEntriesByType('navigation')[0].encodedBodySize]) : setTimeout(look, 10) };
                look()""")
            paints.append(paint[0])
            size = paint[1]
        print(f"{path:48} first paint median {statistics.median(paints):4.0f} ms, most {max(paints):4.0f} ms; {size / 1000:5.1f} kB")


SHOWN = """const done = arguments[0]; const look = () => {
    const row = document.querySelector('%s'); row && row.textContent ? done(performance.now()) : requestAnimationFrame(look) }; look()"""


def log(farm, browser, megabytes):
    """Times of a long log."""
    lines = megabytes * 1_000_000 // 80
    script = f"yes 'this line of output has eighty bytes, as lines of compilers often have, or more' | head -n {lines}; echo the needle"
    key = farm.submit("log", ["sh", "-c", script])
    farm.wait_for_end("log", key)
    path = f"/builds/log/{key}"
    for name in ("first", "again"):
        browser.open(path)
        took = browser.wait(SHOWN % f"#log #L{lines + 1}")
        print(f"log of {megabytes} MB, {lines} lines: the last screen {name}: {took:.0f} ms after the start of the navigation")
    jump = """const done = arguments[0], log = document.querySelector('#log'), begun = performance.now();
        log.dispatchEvent(new KeyboardEvent('keydown', { key: '%s' }));
        const look = () => document.querySelector('#log #L%s') ? done(performance.now() - begun) : requestAnimationFrame(look); look()"""
    print(f"  jump to the start: {browser.wait(jump % ('Home', 1)):.0f} ms; to the end: {browser.wait(jump % ('End', lines + 1)):.0f} ms")
    for text in ("needle", "no line has this"):
        begun = time.monotonic()
        browser.open(f"{path}?q={text.replace(' ', '%20')}")
        found = browser.run("return document.querySelector('#found').textContent.trim()")
        print(f"  search for {text!r}: {(time.monotonic() - begun) * 1000:.0f} ms: {found}")
    browser.open(path)
    browser.wait(SHOWN % f"#log #L{lines + 1}")
    for _ in range(60):
        browser.run("const log = document.querySelector('#log'); log.scrollTop = Math.random() * log.scrollHeight")
        time.sleep(0.05)
    browser.tool("HeapProfiler.collectGarbage")
    heap = browser.run("return performance.memory.usedJSHeapSize") / 1e6
    print(f"  after 60 jumps: {heap:.1f} MB on the script's heap, {renderer(browser) / 1e6:.0f} MB of the page's process (PSS)")


def renderer(browser):
    """Memory of the process that shows the page, without what it shares with others."""
    found = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes()
            if b"--type=renderer" in line and os.getpgid(int(folder.name)) == browser.process.pid:
                pss = next(row for row in (folder / "smaps_rollup").read_text().splitlines() if row.startswith("Pss:"))
                found = max(found, int(pss.split()[1]) * 1024)
        except (OSError, StopIteration):
            continue
    return found


def used(pid):
    """Processor seconds and resident bytes of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    ticks = int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK"), int(fields[21]) * os.sysconf("SC_PAGE_SIZE")


async def watchers(farm, paths, count, seconds):
    """What open pages cost the gateway, in addition to its other work."""
    host, port = farm.http.removeprefix("http://").split(":")
    received = 0

    async def watch(path):
        nonlocal received
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nAccept: text/event-stream\r\n\r\n"
        writer.write(head.encode())
        while data := await reader.read(65536):
            received += len(data)

    before = used(farm.gateway)
    await asyncio.sleep(seconds)
    idle = used(farm.gateway)
    tasks = [asyncio.create_task(watch(paths[number % len(paths)])) for number in range(count)]
    await asyncio.sleep(5)
    begun, start = used(farm.gateway), received
    await asyncio.sleep(seconds)
    end = used(farm.gateway)
    for task in tasks:
        task.cancel()
    processors = (end[0] - begun[0] - (idle[0] - before[0])) / seconds
    print(f"{count} watchers of {len(paths)} pages: {processors:.2f} processors and {(end[1] - idle[1]) / 1e6:.0f} MB more of the "
          f"gateway, {(received - start) / seconds / 1000:.0f} kB/s sent")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default=ROOT / "target/release/forebay", type=Path)
    parser.add_argument("--builds", default=100_000, type=int)
    parser.add_argument("--running", default=200, type=int)
    parser.add_argument("--megabytes", default=500, type=int)
    parser.add_argument("--watchers", default=1000, type=int)
    args = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (8192, max(8192, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))
    folder = Path(tempfile.mkdtemp(prefix="forebay-pages-"))
    # All watchers have one address here.
    farm = Farm(args.binary.resolve(), folder, args.running + 4, connections_per_client_max=4000)
    browser = None
    try:
        fill(farm, args.builds)
        connection = farm.connect()
        # They print a line each second.
        loop = "for i in $(seq 1 3600); do echo $i; sleep 1; done"
        running = [farm.submit(f"group-{number % 20}", ["sh", "-c", loop], connection) for number in range(args.running)]
        farm.wait("the running builds", lambda: not farm.read("/v1/builds?state=ENQUEUED&limit=1")["builds"])
        print(f"{args.builds} builds in the archive, {args.running} running")
        browser = Browser(farm.http)
        lists(farm, browser)
        log(farm, browser, args.megabytes)
        browser.close()
        browser = None
        pages = [f"/builds/group-{number % 20}/{key}" for number, key in enumerate(running)]
        asyncio.run(watchers(farm, ["/builds", "/farm", "/quota", *pages], args.watchers, 20))
    finally:
        if browser:
            browser.close()
        farm.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
