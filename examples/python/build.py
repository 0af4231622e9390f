#!/usr/bin/env python3
"""Runs a build from any NATS client: publish a request, follow its events, read its result.

    python3 build.py --nats nats://127.0.0.1:4222 --group demo --priority interactive -- uname -a
"""

import argparse
import asyncio
import json
import sys
import uuid

import nats  # pip install nats-py
from nats.errors import NoRespondersError, TimeoutError as NatsTimeout

REPAIR_SECONDS = 2  # a plain subject may lose a message, so the result is also polled


def arguments():
    parser = argparse.ArgumentParser(description="Runs a build on a Forebay farm.")
    parser.add_argument("--nats", default="nats://127.0.0.1:4222", metavar="URL")
    parser.add_argument("--group", default="default")
    parser.add_argument("--priority", default="interactive", choices=["emergency", "interactive", "automated", "batch"])
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="after --: the program and its arguments")
    return parser.parse_args()


async def finished(bus, group, build_id):
    """The build's record once it has a result; None before that, or if no service answers."""
    try:
        reply = await bus.request(f"forebay.api.get.{group}", json.dumps({"id": build_id}).encode(), timeout=5)
    except (NoRespondersError, NatsTimeout):
        return None
    headers = reply.headers or {}
    if "Nats-Service-Error" not in headers:
        record = json.loads(reply.data)
        return record if record["state"] == "FINISHED" else None
    if headers.get("Nats-Service-Error-Code") in ("404", "503"):
        return None  # the farm has not read the request yet, or cannot answer now
    sys.exit(f"get: {headers['Nats-Service-Error']}")


async def follow(bus, live, group, build_id):
    """Shows console output as it arrives, until the build has finished."""
    while True:
        try:
            message = await live.next_msg(timeout=REPAIR_SECONDS)
        except NatsTimeout:
            if await finished(bus, group, build_id):
                return
            continue
        if message.subject.endswith(".console"):
            stream = sys.stderr if (message.headers or {}).get("Forebay-Stream") == "stderr" else sys.stdout
            stream.buffer.write(message.data)
            stream.flush()
        elif message.subject.endswith(".lifecycle") and json.loads(message.data)["event"] == "INVOCATION_FINISHED":
            return


async def main():
    args = arguments()
    build_id = str(uuid.uuid4())
    bus = await nats.connect(args.nats)
    # Subscribe first, so that no event is missed.
    live = await bus.subscribe(f"forebay.build.live.{args.group}.{build_id}.*")
    await bus.jetstream().publish(
        f"forebay.build.request.{args.group}.{args.priority}",
        json.dumps({"command": args.command}).encode(),
        headers={"Nats-Msg-Id": f"{args.group}/{build_id}", "Content-Type": "application/json"},
    )
    await follow(bus, live, args.group, build_id)
    while not (record := await finished(bus, args.group, build_id)):
        await asyncio.sleep(REPAIR_SECONDS)
    await bus.close()
    result = record["result"]
    print(f"{build_id}: {result['outcome']} {result.get('reason', {}).get('message', '')}", file=sys.stderr)
    return 0 if result["outcome"] == "succeeded" else 1


sys.exit(asyncio.run(main()))
