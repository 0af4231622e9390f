"""Tests the request/reply API with an ordinary NATS client: service.py NATS_URL"""

import asyncio
import json
import sys
import uuid

import msgpack
import nats

CODINGS = {
    "application/json": (lambda value: json.dumps(value).encode(), json.loads),
    "application/msgpack": (msgpack.packb, msgpack.unpackb),
}


async def srv(bus, verb):
    reply = await bus.request(f"$SRV.{verb}.forebay", b"", timeout=5)
    return json.loads(reply.data)


async def discover(bus):
    ping = await srv(bus, "PING")
    assert ping["type"] == "io.nats.micro.v1.ping_response" and ping["name"] == "forebay", ping
    info = await srv(bus, "INFO")
    subjects = {endpoint["subject"] for endpoint in info["endpoints"]}
    wanted = {f"forebay.api.{call}.*" for call in ("create", "get", "cancel", "list")}
    assert wanted <= subjects and ping["id"] == info["id"], info
    return ping["id"]


async def call(bus, content_type, name, question):
    """Returns the answer, or the error as (status, body)."""
    encode, decode = CODINGS[content_type]
    headers = {"Content-Type": content_type}
    reply = await bus.request(f"forebay.api.{name}", encode(question), headers=headers, timeout=10)
    assert reply.headers["Content-Type"] == content_type, reply.headers
    body = decode(reply.data)
    if "Nats-Service-Error" in reply.headers:
        return int(reply.headers["Nats-Service-Error-Code"]), body
    return body


async def finished(bus, content_type, build):
    while True:
        view = await call(bus, content_type, "get.py", {"id": build})
        if view["state"] == "FINISHED":
            return view
        await asyncio.sleep(0.05)


async def listed(bus, content_type, wanted):
    """Waits until the list contains the builds: the index follows the events with a short delay."""
    for _ in range(100):
        reply = await call(bus, content_type, "list.py", {"state": "FINISHED", "limit": 100})
        if wanted <= {view["id"] for view in reply["builds"]}:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{wanted} are not in {reply}")


async def calls(bus, content_type):
    build = str(uuid.uuid4())
    request = {"id": build, "command": ["sh", "-c", "echo $WORD"], "env": {"WORD": "wörd"}, "labels": {"a": "b"}}
    created = await call(bus, content_type, "create.py", request)
    assert created["id"] == build and created["group"] == "py" and not created["duplicate"], created
    again = await call(bus, content_type, "create.py", request)
    assert again["duplicate"] and again["sequence"] == created["sequence"], again
    view = await finished(bus, content_type, build)
    assert view["result"]["outcome"] == "succeeded" and view["env"] == {"WORD": "wörd"}, view
    assert view["event"] == "INVOCATION_FINISHED" and view["labels"] == {"a": "b"}, view

    unnamed = await call(bus, content_type, "create.py", {"command": ["sleep", "1000"]})
    cancelled = await call(bus, content_type, "cancel.py", {"id": unnamed["id"], "reason": "enough"})
    assert cancelled["cancelled"] and cancelled["build"]["result"]["reason"]["message"] == "enough", cancelled
    once_more = await call(bus, content_type, "cancel.py", {"id": unnamed["id"]})
    assert not once_more["cancelled"], once_more

    await listed(bus, content_type, {build, unnamed["id"]})

    for name, question, status, code in [
        ("get.py", {"id": str(uuid.uuid4())}, 404, "not_found"),
        ("get.py", {"id": "nonsense"}, 400, "invalid_request"),
        ("get.py", {"id": build, "more": 1}, 400, "invalid_request"),
        ("cancel.py", {"id": str(uuid.uuid4())}, 404, "not_found"),
        ("create.py", {"command": []}, 400, "invalid_request"),
        ("create.py", {**request, "command": ["false"]}, 409, "conflict"),
        ("create.py", {"command": ["true"], "group": "other"}, 400, "invalid_request"),
        ("list.py", {"limit": 0}, 400, "invalid_request"),
        ("create.a+b", {"command": ["true"]}, 400, "invalid_request"),
    ]:
        answer = await call(bus, content_type, name, question)
        assert isinstance(answer, tuple), (name, question, answer)
        assert answer[0] == status and answer[1]["error"] == code and answer[1]["message"], (name, question, answer)


async def plain_publish(bus):
    """Publishes a JSON message, and follows every event of its build as it is stored."""
    build = str(uuid.uuid4())
    live = await bus.subscribe(f"forebay.build.live.py.{build}.*")
    await bus.flush()
    body = {"command": ["sh", "-c", "printf 'a\\0b'; printf err >&2"], "priority": "emergency"}
    headers = {"Nats-Msg-Id": f"py/{build}", "Content-Type": "application/json"}
    subject = "forebay.build.request.py.emergency"
    ack = await bus.jetstream().publish(subject, json.dumps(body).encode(), headers=headers)
    assert ack.stream == "FOREBAY_REQUESTS", ack
    events, output = [], {"stdout": b"", "stderr": b""}
    while "INVOCATION_FINISHED" not in events:
        message = await live.next_msg(timeout=10)
        if message.subject.endswith(".lifecycle"):
            events.append(json.loads(message.data)["event"])
        elif message.subject.endswith(".console"):
            output[message.headers["Forebay-Stream"]] += message.data
        assert int(message.headers["Nats-Sequence"]) > int(message.headers["Nats-Last-Sequence"])
    assert events == ["BUILD_ENQUEUED", "INVOCATION_STARTED", "INVOCATION_FINISHED"], events
    assert output == {"stdout": b"a\0b", "stderr": b"err"}, output


async def main():
    bus = await nats.connect(sys.argv[1])
    instance = await discover(bus)
    for content_type in CODINGS:
        await calls(bus, content_type)
    await plain_publish(bus)
    stats = await srv(bus, "STATS")
    counts = {endpoint["name"]: endpoint["num_requests"] for endpoint in stats["endpoints"]}
    assert stats["id"] == instance and counts["create"] >= 10 and counts["get"] >= 2, stats
    await bus.close()


asyncio.run(main())
