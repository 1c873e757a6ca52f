"""A real Chromium, spoken to in the WebDriver protocol: no more of it than the tests need."""

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

AXE = Path(__file__).parent / "vendor" / "axe.min.js"
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the protocol's name for a reference to an element
PATIENCE = 600  # seconds, which only a machine that is stuck takes
KEYS = {"tab": "\ue004", "enter": "\ue007", "space": " "}


class Browser:
    """One headless Chromium with a profile of its own."""

    def __init__(self, driver, chromium):
        self.folder = tempfile.mkdtemp(prefix="chromium-")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.driver = subprocess.Popen([driver, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.base = f"http://127.0.0.1:{port}"
        self._wait()
        options = {
            "binary": chromium,
            "args": [
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--hide-scrollbars",
                f"--user-data-dir={self.folder}",
            ],
        }
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        found = self._send("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.base += f"/session/{found['sessionId']}"
        self._send("POST", "/timeouts", {"script": 1000 * PATIENCE, "pageLoad": 1000 * PATIENCE})
        # no page remembers the colours of the one before
        self.devtools("Page.addScriptToEvaluateOnNewDocument", source="try { localStorage.clear() } catch (e) {}")

    def _wait(self):
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            try:
                if self._send("GET", "/status")["ready"]:
                    return
            except OSError:
                time.sleep(0.1)
        raise RuntimeError("chromedriver did not start")

    def _send(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE + 60) as reply:
                return json.load(reply)["value"]
        except urllib.error.HTTPError as error:
            with error:
                raise RuntimeError(error.read().decode()) from None

    def close(self):
        try:
            self._send("DELETE", "")
        finally:
            self.driver.terminate()
            self.driver.wait(PATIENCE)
            shutil.rmtree(self.folder, ignore_errors=True)

    def open(self, path, *, width=1280, height=900, dark=False):
        """Open a file at a width, in light or dark, with the logs emptied before."""
        self.devtools("Emulation.setEmulatedMedia", features=[_scheme(dark)])
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self._send("POST", "/url", {"url": "about:blank"})
        self.logs("browser")
        self.logs("performance")
        self._send("POST", "/url", {"url": Path(path).resolve().as_uri()})

    def devtools(self, command, **parameters):
        return self._send("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def run(self, script, *arguments):
        """The value of a script's return."""
        return self._send("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def logs(self, kind):
        return self._send("POST", "/se/log", {"type": kind})

    def find(self, selector):
        return self._send("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]

    def click(self, selector):
        self._send("POST", f"/element/{self.find(selector)}/click", {})

    def type(self, selector, text):
        self._send("POST", f"/element/{self.find(selector)}/value", {"text": text})

    def press(self, key):
        """A key, pressed wherever the focus is."""
        actions = [{"type": kind, "value": KEYS[key]} for kind in ("keyDown", "keyUp")]
        self._send("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def requests(self):
        """Addresses asked for since the page was opened, but for the page itself and data in it."""
        events = [json.loads(entry["message"])["message"] for entry in self.logs("performance")]
        asked = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
        return [url for url in asked if not url.startswith(("data:", "about:"))]

    def errors(self):
        return [entry["message"] for entry in self.logs("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def violations(self):
        """What axe-core finds that is serious or critical."""
        self.run(AXE.read_text(encoding="utf-8"))
        script = "const done = arguments[arguments.length - 1]; axe.run().then(r => done(r.violations), e => done(String(e)));"
        found = self._send("POST", "/execute/async", {"script": script, "args": []})
        assert isinstance(found, list), found
        return [
            (one["id"], [node["html"][:120] + " " + node["failureSummary"] for node in one["nodes"][:3]])
            for one in found
            if one["impact"] in ("serious", "critical")
        ]


def _scheme(dark):
    return {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}


def start():
    """A browser; without Chromium the test is skipped, except where everything must run."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver):
        reason = "no chromium and chromedriver: apt-get install chromium chromium-driver"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return Browser(driver, chromium)
