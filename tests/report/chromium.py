"""A real Chromium without a screen, driven over a pipe by the DevTools protocol: no package needed."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
]  # fmt: skip
_PATIENCE_SECONDS = 300.0


def find_browser() -> str | None:
    """The program, or None on a machine without one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Chromium:
    """One browser with one page. Everything the page logs or asks for is kept."""

    def __init__(self, program: str, profile: Path) -> None:
        self.console: list[str] = []
        self.requests: list[str] = []
        self._number = 0
        self._events: list[str] = []
        self._unread = b""
        self._session: str | None = None
        # The browser reads orders from descriptor 3 and answers on 4; ours must not be in their way.
        order_out, self._orders = (_move_up(end) for end in os.pipe())
        self._answers, answer_in = (_move_up(end) for end in os.pipe())

        def wire() -> None:
            os.dup2(order_out, 3)
            os.dup2(answer_in, 4)

        self._process = subprocess.Popen(
            [program, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            close_fds=False, preexec_fn=wire,
        )  # fmt: skip
        os.close(order_out)
        os.close(answer_in)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._orders)
        os.close(self._answers)

    def show(self, address: str, *, width: int, dark: bool) -> None:
        """Load a page as a screen of this width would show it."""
        self.console.clear()
        self.requests.clear()
        self._events.clear()
        metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=address)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while "Page.loadEventFired" not in self._events:
            self._handle(self._receive(deadline))

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page; the page's own policy does not bind us."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send an order and wait for its answer."""
        self._number += 1
        order = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            order["sessionId"] = self._session
        os.write(self._orders, json.dumps(order).encode() + b"\0")
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while (message := self._receive(deadline)).get("id") != self._number:
            self._handle(message)
        assert "error" not in message, message
        result: dict[str, Any] = message["result"]
        return result

    def _handle(self, message: dict[str, Any]) -> None:
        method, parameters = message.get("method", ""), message.get("params", {})
        self._events.append(method)
        if method == "Log.entryAdded":
            self.console.append(parameters["entry"]["text"])
        elif method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
            self.console.append(json.dumps(parameters))
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(self._answers, 2**20) if ready else b""
            if not data:
                raise TimeoutError("Chromium does not answer")
            self._unread += data
        answer, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(answer)
        return message


def _move_up(descriptor: int) -> int:
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return moved
