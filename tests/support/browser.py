"""A page in headless Chromium: what it asks for, what it says on the console, and how large its parts come out."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)

# The width, and what of the page is cut off, too small or too faint.
FAULTS = """(() => {
  document.querySelectorAll("details").forEach(part => { part.open = true })
  const faults = []
  if (document.documentElement.scrollWidth > innerWidth) faults.push("the page scrolls aside")
  const light = colour => {
    const [r, g, b] = colour.match(/[\\d.]+/g).map(v => v / 255).map(
      v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b
  }
  const below = node => {
    const colour = getComputedStyle(node).backgroundColor
    return colour.endsWith(", 0)") ? below(node.parentElement) : colour
  }
  const contrast = (one, other) => {
    const [low, high] = [light(one), light(other)].sort((a, b) => a - b)
    return (high + 0.05) / (low + 0.05)
  }
  for (const node of document.querySelectorAll("h1,h2,h3,p,td,th,dt,dd,summary,a,pre,figcaption,strong,span")) {
    if (contrast(getComputedStyle(node).color, below(node)) < 4.5) faults.push(`faint: ${node.textContent}`)
  }
  for (const svg of document.querySelectorAll("figure svg")) {
    const box = svg.getBoundingClientRect(), scale = box.width / svg.viewBox.baseVal.width
    for (const text of svg.querySelectorAll("text")) {
      const own = text.getBoundingClientRect(), style = getComputedStyle(text)
      if (!(own.width > 0 && own.left >= box.left - 2 && own.right <= box.right + 2 && own.top >= box.top - 2
            && own.bottom <= box.bottom + 2)) faults.push(`cut off: ${text.textContent}`)
      if (parseFloat(style.fontSize) * scale < 9) faults.push(`small: ${text.textContent}`)
      if (contrast(style.fill, below(svg)) < 4.5) faults.push(`faint: ${text.textContent}`)
    }
    for (const line of svg.querySelectorAll("[style*='stroke: var(--c']")) {
      const stroke = getComputedStyle(line).stroke
      if (stroke.startsWith("rgb(") && contrast(stroke, below(svg)) < 3) faults.push(`faint line: ${stroke}`)
    }
  }
  return faults
})()"""


class Page:
    """A page that is open, spoken to by the DevTools protocol over two pipes.

    `requests` are addresses that were asked for, the page's own first; `said` are texts on the console, and errors.
    """

    def __init__(self, write: int, read: int) -> None:
        self.requests: list[str] = []
        self.said: list[str] = []
        self._write, self._read = os.fdopen(write, "wb", buffering=0), os.fdopen(read, "rb")
        self._number = 0
        self._session: str | None = None
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Network", "Runtime", "Log", "Page"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **values: Any) -> dict[str, Any]:
        """The answer to a command; what is reported before it is kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": values}
        if self._session is not None:
            message["sessionId"] = self._session
        self._write.write(json.dumps(message).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("id") == self._number:
                assert "error" not in found, found
                return found["result"]

    def open(self, path: Path, width: int) -> None:
        """Loads a file in a window of so many pixels, and waits until it is loaded."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.ask("Page.navigate", url=path.as_uri())
        while self._next().get("method") != "Page.loadEventFired":
            pass

    def value(self, expression: str) -> Any:
        """What an expression of JavaScript is on the page."""
        return self.ask("Runtime.evaluate", expression=expression, returnByValue=True)["result"]["value"]

    def _next(self) -> dict[str, Any]:
        text = bytearray()
        while not text.endswith(b"\0"):
            byte = self._read.read(1)
            assert byte, "the browser has ended"
            text += byte
        found = json.loads(text[:-1])
        values = found.get("params", {})
        if found.get("method") == "Network.requestWillBeSent":
            self.requests.append(values["request"]["url"])
        if found.get("method") in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.said.append(json.dumps(values))
        return found


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """A browser with a profile in a new folder, which ends with the block."""
    to_read, to_write = os.pipe(), os.pipe()

    def pipes() -> None:
        # It reads commands from descriptor 3 and answers on 4.
        first, second = os.dup(to_read[0]), os.dup(to_write[1])
        os.dup2(first, 3)
        os.dup2(second, 4)

    process = subprocess.Popen(
        [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
         f"--user-data-dir={profile}"],
        preexec_fn=pipes, close_fds=False, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(to_read[0])
    os.close(to_write[1])
    try:
        yield Page(to_read[1], to_write[0])
    finally:
        process.kill()
        process.wait()
