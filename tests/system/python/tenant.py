"""A user of a tenant: publishes a build, watches it, then waits until it is refused.

tenant.py URL CA SEED INBOX GROUP
"""

import asyncio
import json
import ssl
import sys
import uuid

import nats


async def main():
    url, authority, seed, inbox, group = sys.argv[1:]
    closed = asyncio.Event()

    async def lost():
        closed.set()

    bus = await nats.connect(
        url,
        tls=ssl.create_default_context(cafile=authority),
        nkeys_seed=seed,
        inbox_prefix=inbox.encode(),
        disconnected_cb=lost,
        allow_reconnect=False,
    )
    build, done = str(uuid.uuid4()), asyncio.Event()
    outcome = []

    async def show(message):
        if message.subject.endswith(".lifecycle"):
            event = json.loads(message.data)
            if event.get("event") == "INVOCATION_FINISHED":
                outcome.append(event["result"]["outcome"])
                done.set()

    await bus.subscribe(f"forebay.build.live.{group}.{build}.*", cb=show)
    request = {"id": build, "command": ["true"]}
    subject = f"forebay.build.request.{group}.batch"
    answer = await bus.request(subject, json.dumps(request).encode(), timeout=5)
    assert json.loads(answer.data)["stream"] == "FOREBAY_REQUESTS", answer.data
    await asyncio.wait_for(done.wait(), 30)
    print(outcome[0], flush=True)
    await asyncio.wait_for(closed.wait(), 60)
    print("closed", flush=True)


asyncio.run(main())
