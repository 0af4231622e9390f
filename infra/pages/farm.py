"""A farm on free ports, in a temporary folder."""

import http.client
import json
import os
import signal
import subprocess
import time

from webdriver import ROOT


class Farm:
    """`forebay up`, and calls of its HTTP API."""

    def __init__(self, binary, folder, workspaces, **settings):
        self.folder, self.binary = folder, binary
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
        self.env["PATH"] = f"{ROOT}/.tools/bin:{self.env.get('PATH', os.defpath)}"
        self.env.update({f"FOREBAY_{name.upper()}": str(value) for name, value in settings.items()})
        ports = [word for name in ("nats", "redis", "http", "grpc") for word in (f"--{name}-port", "0")]
        command = [binary, "up", "--data", folder / "data", "--workspaces", str(workspaces), *ports]
        with (folder / "up.log").open("wb") as output:
            self.process = subprocess.Popen(command, env=self.env, stdout=output, stderr=output, start_new_session=True)
        file = folder / "data/endpoints.json"
        end = time.monotonic() + 60
        while not file.exists():
            if time.monotonic() > end or self.process.poll() is not None:
                raise SystemExit(f"the farm did not start: {(folder / 'up.log').read_text()}")
            time.sleep(0.1)
        endpoints = json.loads(file.read_text())
        self.http = endpoints["http"]
        self.gateway = endpoints["processes"]["gateway"]

    def connect(self):
        return http.client.HTTPConnection(self.http.removeprefix("http://"))

    def submit(self, group, command, connection=None, **request):
        """Submits a build and returns its id."""
        connection = connection or self.connect()
        body = json.dumps({"command": command, **request} if command else request)
        connection.request("POST", f"/v1/builds/{group}", body, {"content-type": "application/json"})
        reply = connection.getresponse()
        found = json.load(reply)
        if reply.status != 201:
            raise SystemExit(f"a build was refused: {found}")
        return found["id"]

    def read(self, path):
        connection = self.connect()
        connection.request("GET", path)
        return json.load(connection.getresponse())

    def run(self, *words):
        """Runs a command of the binary against this farm; fails if it fails."""
        command = [self.binary, "--data", self.folder / "data", *words]
        subprocess.run(command, env=self.env, stdout=subprocess.DEVNULL, check=True)

    def wait(self, what, holds, seconds=3600):
        end = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > end:
                raise SystemExit(f"waited too long for {what}")
            time.sleep(0.2)

    def wait_for_end(self, group, key):
        self.wait(f"build {key}", lambda: self.read(f"/v1/builds/{group}/{key}")["state"] == "FINISHED", 120)

    def stop(self):
        os.kill(self.process.pid, signal.SIGINT)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
