"""A page in headless Chromium, driven over the pipe of its DevTools protocol."""

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import time

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_SECONDS = 120
# The protocol is on 3 and 4; copies first, as these numbers may be in use.
_START = """
import os, sys
files = [os.dup(int(number)) for number in sys.argv[1:3]]
for place, file in enumerate(files, start=3):
    os.dup2(file, place)
    os.set_inheritable(place, True)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """One page.

    Args:
        profile: folder for the files of the browser.
        width, height: of the page in pixels.
        is_phone: whether the page is laid out as on a phone.
    """

    def __init__(self, profile, width=1000, height=800, is_phone=False):
        (their_input, commands), (answers, their_output) = os.pipe(), os.pipe()
        self._commands, self._answers = os.fdopen(commands, "wb", 0), answers
        options = (
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--remote-debugging-pipe",
        )
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-ISc", _START, str(their_input), str(their_output)),
                *(CHROMIUM, *options, f"--user-data-dir={profile}", "about:blank"),
            ],
            pass_fds=(their_input, their_output),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(their_input)
        os.close(their_output)
        self._numbers, self._rest, self._session = itertools.count(1), b"", None
        self.errors = []
        targets = self._call("Target.getTargets")["targetInfos"]
        [target] = [x["targetId"] for x in targets if x["type"] == "page"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "DOM", "Log"):
            self._call(f"{domain}.enable")
        self._call(
            "Emulation.setDeviceMetricsOverride",
            **{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone},
        )

    def open(self, url):
        """Loads a page."""
        self._call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def run(self, expression):
        """The value of a JavaScript expression."""
        answer = self._call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, expression):
        """Waits until a JavaScript expression is true."""
        end = time.monotonic() + _SECONDS
        while not self.run(expression):
            assert time.monotonic() < end, f"{expression} did not become true"
            time.sleep(0.05)

    def upload(self, selector, path):
        """Chooses a file in an `<input>`, as a person does."""
        root = self._call("DOM.getDocument")["root"]["nodeId"]
        node = self._call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self._call("DOM.setFileInputFiles", files=[str(path)], nodeId=node)

    def screenshot(self) -> bytes:
        """The whole page as PNG."""
        options = {"format": "png", "captureBeyondViewport": True}
        return base64.b64decode(self._call("Page.captureScreenshot", **options)["data"])

    def close(self):
        """Ends the browser."""
        self._process.kill()
        self._process.wait()
        self._commands.close()
        os.close(self._answers)

    def _call(self, method, **parameters):
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session and not method.startswith(("Target.", "Browser.")):
            message["sessionId"] = self._session
        self._commands.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]
            if answer.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.errors.append(answer["params"])

    def _next(self):
        while b"\0" not in self._rest:
            assert select.select([self._answers], [], [], _SECONDS)[0], "no answer"
            part = os.read(self._answers, 2**16)
            assert part, "the browser ended"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)
