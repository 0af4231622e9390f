"""A user of a tenant: publishes a build, watches it, then waits until it is refused.

tenant.py URL CA SEED INBOX GROUP
"""

import asyncio
import json
import ssl
import sys
import uuid

import nats


async def events(bus, group, build, position=0):
    """Positions of the events of a build after a position, two in each answer."""
    found, more = [], True
    while more:
        inbox = bus.new_inbox()
        answers = await bus.subscribe(inbox)
        request = {"id": build, "from": position, "limit": 2}
        await bus.publish(f"forebay.api.events.{group}", json.dumps(request).encode(), reply=inbox)
        while "Forebay-More" not in (event := await answers.next_msg(timeout=5)).headers:
            assert event.headers["Nats-Subject"].startswith(f"forebay.build.event.{group}.{build}.")
            position = int(event.headers["Nats-Sequence"])
            found.append(position)
        more = event.headers["Forebay-More"] == "true"
        await answers.unsubscribe()
    return found


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

    heard = []

    async def show(message):
        heard.append(int(message.headers["Nats-Sequence"]))
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
    read = await events(bus, group, build)
    assert read == sorted(heard) and len(read) > 2, (read, heard)
    assert await events(bus, group, build, read[1]) == read[2:]
    assert await events(bus, group, build, read[-1]) == []
    print(f"{len(read)} events", flush=True)
    await asyncio.wait_for(closed.wait(), 60)
    print("closed", flush=True)


asyncio.run(main())
