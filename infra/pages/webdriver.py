"""A Chromium over WebDriver, with the standard library only."""

import base64
import json
import os
import re
import subprocess
import tempfile
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Browser:
    """A headless window at a size in pixels, in the light or dark theme."""

    def __init__(self, base, width=1280, height=900, dark=False):
        self.base = base
        command = [ROOT / ".tools/bin/chromedriver", "--port=0"]
        self.temporary = tempfile.TemporaryDirectory(prefix="forebay-browser-", ignore_cleanup_errors=True)
        env = os.environ | {"TMPDIR": self.temporary.name}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True, env=env)
        for line in self.process.stdout:
            if found := re.search(r"started successfully on port (\d+)", line):
                self.url = f"http://127.0.0.1:{found[1]}"
                break
        arguments = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars",
                     f"--window-size={width},{height}"]
        if dark:
            arguments.append("--blink-settings=preferredColorScheme=0")
        options = {"args": arguments, "binary": str(ROOT / ".tools/bin/chromium")}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options}
        session = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.session = f"/session/{session['sessionId']}"

    def _call(self, method, path, body=None):
        data = None if method == "GET" else json.dumps(body or {}).encode()
        request = urllib.request.Request(self.url + path, method=method, data=data,
                                         headers={"content-type": "application/json"})
        with urllib.request.urlopen(request) as reply:
            return json.load(reply)["value"]

    def open(self, path):
        self._call("POST", self.session + "/url", {"url": self.base + path})

    def run(self, script):
        return self._call("POST", self.session + "/execute/sync", {"script": script, "args": []})

    def wait(self, script):
        """Runs a script that calls its last argument when it is done, and returns what it passes."""
        return self._call("POST", self.session + "/execute/async", {"script": script, "args": []})

    def tool(self, command, parameters=None):
        """Sends a command of the Chrome DevTools Protocol."""
        body = {"cmd": command, "params": parameters or {}}
        return self._call("POST", self.session + "/goog/cdp/execute", body)

    def picture(self):
        return base64.b64decode(self._call("GET", self.session + "/screenshot"))

    def close(self):
        try:
            self._call("DELETE", self.session)
        finally:
            self.process.terminate()
            self.process.wait()
            self.temporary.cleanup()
