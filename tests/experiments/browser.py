"""A real browser without a network, over its own protocol and two pipes: what it loads, logs and downloads."""

import json
import os
import queue
import shutil
import subprocess
import threading
import time
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = ("--headless", "--disable-gpu", "--no-sandbox", "--disable-dev-shm-usage", "--no-first-run", "--mute-audio")
PATIENCE_S = 60.0


def browser_path():
    """The first browser that is installed; None without one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page of it. `events` are all that it told so far."""

    def __init__(self, program, folder: Path):
        to_browser, from_us = os.pipe()
        from_browser, to_us = os.pipe()
        # The protocol is spoken on the file descriptors 3 and 4.
        command = f'exec "$@" 3<&{to_browser} 4>&{to_us}'
        words = (program, *FLAGS, "--remote-debugging-pipe", f"--user-data-dir={folder / 'profile'}", "about:blank")
        self._process = subprocess.Popen(
            ["bash", "-c", command, "browser", *words],
            pass_fds=(to_browser, to_us),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(to_us)
        self._writes, self._reads = from_us, from_browser
        self._answers: queue.Queue = queue.Queue()
        self.events, self._count = [], 0
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        target = self.ask("Target.createTarget", {"url": "about:blank"}, session=None)["targetId"]
        attached = self.ask("Target.attachToTarget", {"targetId": target, "flatten": True}, session=None)
        self._session = attached["sessionId"]
        self.downloads = folder / "downloads"
        self.ask(
            "Browser.setDownloadBehavior",
            {"behavior": "allow", "downloadPath": str(self.downloads), "eventsEnabled": True},
            session=None,
        )
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        self.ask("Network.emulateNetworkConditions", offline)

    def _listen(self):
        data = b""
        while piece := os.read(self._reads, 1 << 16):
            data += piece
            *whole, data = data.split(b"\0")
            for text in whole:
                message = json.loads(text)
                (self._answers.put(message) if "id" in message else self.events.append(message))

    def ask(self, method, params=None, session="page"):
        """The result of one call."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params or {}}
        if session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._writes, data) :]
        while (answer := self._answers.get(timeout=PATIENCE_S))["id"] != self._count:
            pass
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def open(self, path: Path):
        """Loads a file of this machine."""
        self.events.clear()
        told = self.ask("Page.navigate", {"url": path.as_uri()})
        assert "errorText" not in told, told
        self.wait_for("Page.loadEventFired")

    def wait_for(self, method, where=lambda params: True):
        """The first such event."""
        return self.wait_for_any((method, where))

    def wait_for_any(self, *kinds):
        """The first event of any of these (method, condition)."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            for event in list(self.events):
                if any(event["method"] == method and where(event["params"]) for method, where in kinds):
                    return event["params"]
            time.sleep(0.01)
        raise AssertionError(f"none of {[method for method, _ in kinds]} within {PATIENCE_S} s")

    def value_of(self, script):
        """What a script of ours gives in the page."""
        told = self.ask("Runtime.evaluate", {"expression": script, "returnByValue": True, "userGesture": True})
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def complaints(self):
        """Errors and warnings of the console, exceptions, and loads that failed."""
        found = []
        for event in list(self.events):
            method, params = event["method"], event["params"]
            if method == "Runtime.exceptionThrown":
                found.append(str(params["exceptionDetails"]["text"]))
            elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                found.append(str(params["args"]))
            elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(params["entry"]["text"])
            elif method == "Network.loadingFailed" and not params.get("canceled"):
                found.append(params["errorText"])
        return found

    def requested(self):
        """Every address that it asked for."""
        return [
            event["params"]["request"]["url"]
            for event in list(self.events)
            if event["method"] == "Network.requestWillBeSent"
        ]

    def close(self):
        """Ends the browser and what it started."""
        try:
            self.ask("Browser.close", session=None)
            self._process.wait(PATIENCE_S)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._writes)
            self._listener.join(PATIENCE_S)
            os.close(self._reads)
