"""One window of chromium, driven by selenium: its size, its colours, what it asked for and complained about."""

from __future__ import annotations

import base64
import json
import shutil
import urllib.parse
from pathlib import Path
from typing import Any

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

# The last: nothing outside of this machine is reachable, whatever a page asks for.
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # there is none for root in a container
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


class Window:
    def __init__(self) -> None:
        options = ChromeOptions()
        options.binary_location = _installed("chromium")
        for flag in FLAGS:
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = Chrome(options, Service(_installed("chromedriver")))
        self.driver.set_script_timeout(60)
        self._do("Network.enable")

    def close(self) -> None:
        self.driver.quit()

    def show(self, url: str, width: int = 1280, mode: str = "light", height: int = 900) -> None:
        """Opens a page in a window of this size. What the page before has asked for is forgotten."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self._do("Emulation.setDeviceMetricsOverride", **size)
        self._do("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": mode}])
        self.driver.get("about:blank")
        self.complaints()
        self.requests()
        self.driver.get(url)

    def scripts(self, on: bool) -> None:
        """Whether pages may run scripts."""
        self._do("Emulation.setScriptExecutionDisabled", value=not on)

    def run(self, script: str, *arguments: Any) -> Any:
        """What the body of this function returns, or its promise."""
        return self.driver.execute_script(f"return (async () => {{ {script} }})()", *arguments)

    def complaints(self) -> list[str]:
        """The messages of the console since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """The addresses that were asked for since the last call, the page's own included."""
        found = []
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                found.append(urllib.parse.unquote(message["params"]["request"]["url"]))
        return found

    def move_to(self, x: float, y: float) -> None:
        self._do("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def picture(self, path: Path, clip: dict[str, float] | None = None) -> bytes:
        """A picture of the whole page, or of a part of it (x, y, width, height), also written to `path`."""
        part = {} if clip is None else {"clip": {**clip, "scale": 1}}
        found = self._do("Page.captureScreenshot", format="png", captureBeyondViewport=True, **part)
        data = base64.b64decode(found["data"])
        path.write_bytes(data)
        return data

    def _do(self, command: str, **arguments: Any) -> Any:
        return self.driver.execute_cdp_cmd(command, arguments)


def _installed(name: str) -> str:
    path = shutil.which(name)
    assert path is not None, f"{name} is not installed: apt-get install chromium chromium-driver"
    return path
