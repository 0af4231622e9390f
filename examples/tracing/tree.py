#!/usr/bin/env python3
"""Prints traces as trees.

usage: tree.py [FILE...]     reads standard input without a FILE

Each line is one message of OTLP in JSON, as the file exporter of an OpenTelemetry collector writes them. An answer of
Jaeger's API is also accepted:

    curl -s http://127.0.0.1:16686/api/v3/traces/TRACE_ID | tree.py
"""

import fileinput
import json
import sys
from collections import defaultdict


def spans_of(message):
    """Yields (service, span) of one message."""
    message = message.get("result", message)
    for resource in message.get("resourceSpans", []):
        attributes = values(resource.get("resource", {}))
        for scope in resource.get("scopeSpans", []):
            for span in scope.get("spans", []):
                yield attributes.get("service.name", "?"), span


def values(holder):
    """The attributes of a span or a resource by name."""
    found = {}
    for attribute in holder.get("attributes", []):
        found[attribute["key"]] = next(iter(attribute.get("value", {}).values()), None)
    return found


def describe(service, span):
    start, end = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
    attributes = values(span)
    notes = []
    for name, attribute in [
        ("attempt", "forebay.attempt"),
        ("", "forebay.answer"),
        ("copy", "forebay.copy"),
        ("target", "forebay.target"),
        ("calls", "forebay.calls"),
        ("because", "forebay.reason"),
    ]:
        if attribute in attributes and (name != "copy" or int(attributes[attribute]) > 0):
            notes.append(f"{name} {attributes[attribute]}".strip())
    if span.get("links"):
        notes.append(f"{len(span['links'])} linked")
    error = span.get("status", {})
    if error.get("code") in (2, "STATUS_CODE_ERROR"):
        notes.append(f"error: {error.get('message', '')}")
    note = f"  ({', '.join(notes)})" if notes else ""
    return f"{(end - start) / 1e6:10.1f} ms  {span['name']}  [{service}]{note}"


def print_trace(trace, spans):
    services = sorted({service for service, _ in spans})
    print(f"trace {trace}: {len(spans)} spans of {len(services)} services: {', '.join(services)}")
    known = {span["spanId"] for _, span in spans}
    children, roots = defaultdict(list), []
    for service, span in sorted(spans, key=lambda it: int(it[1]["startTimeUnixNano"])):
        parent = span.get("parentSpanId")
        (children[parent] if parent in known else roots).append((service, span))
    # A trace that was cut off has more than one root.
    waiting = [(root, 0) for root in reversed(roots)]
    first = min(int(span["startTimeUnixNano"]) for _, span in spans)
    while waiting:
        (service, span), depth = waiting.pop()
        at = (int(span["startTimeUnixNano"]) - first) / 1e9
        print(f"{at:9.3f} s {'  ' * depth}{describe(service, span)}")
        waiting.extend((child, depth + 1) for child in reversed(children[span["spanId"]]))


def main():
    if "--help" in sys.argv:
        sys.exit(__doc__)
    traces = defaultdict(list)
    for number, line in enumerate(fileinput.input(), 1):
        if not line.strip():
            continue
        try:
            message = json.loads(line)
        except ValueError as error:
            sys.exit(f"tree.py: line {number} is not JSON: {error}")
        for service, span in spans_of(message):
            traces[span["traceId"]].append((service, span))
    for trace, spans in traces.items():
        print_trace(trace, spans)


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        sys.exit(0)
    except OSError as error:
        sys.exit(f"tree.py: {error}")
