"""A person at the page: a real Chromium, driven. It talks to loopback and to nothing else."""

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.chrome.webdriver import WebDriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

PATIENCE = 60.0
"""Seconds for what takes one on an idle machine."""

_SWITCHES = (
    "--headless=new",
    "--no-sandbox",  # as root it has none to offer
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-domain-reliability",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--no-proxy-server",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)


@contextmanager
def chromium(*more: str) -> Iterator[WebDriver]:
    """One browser; about a second. Everything that it kept is gone afterwards. `more`: switches."""
    driver = shutil.which("chromedriver")
    assert driver is not None  # selenium would go and look for one elsewhere
    options = Options()
    options.binary_location = str(shutil.which("chromium"))
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        for switch in (*_SWITCHES, *more, f"--user-data-dir={profile}"):
            options.add_argument(switch)
        browser = webdriver.Chrome(options=options, service=Service(driver))
        try:
            browser.set_window_size(1280, 900)
            yield browser
        finally:
            browser.quit()


class Person:
    """Looks and clicks; blocks, so call it in a thread of its own."""

    def __init__(self, browser: WebDriver) -> None:
        self.browser = browser

    def start_over(self) -> None:
        """Nobody knows this browser; what it said before is forgotten."""
        self.browser.get("about:blank")
        self.browser.execute_cdp_cmd("Network.clearBrowserCookies", {})
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
        self.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        self.complaints()

    def open(self, url: str) -> None:
        self.browser.get("about:blank")  # what differs behind # only would not be loaded anew
        self.browser.get(url)

    def find(self, css: str) -> WebElement:
        """Once it is there and can be seen."""
        return self.until(lambda: next(each for each in self.all(css) if each.is_displayed()))

    def all(self, css: str) -> list[WebElement]:
        return self.browser.find_elements(By.CSS_SELECTOR, css)

    def click(self, css: str) -> None:
        """As soon as it can be: lists are written anew under our hands."""

        def clicked() -> bool:
            self.find(css).click()
            return True

        self.until(clicked, f"a click on {css}")

    def type(self, css: str, text: str) -> None:
        self.find(css).send_keys(text)

    def text(self, css: str) -> str:
        return str(
            self.browser.execute_script("return document.querySelector(arguments[0])?.innerText ?? ''", css)
        )

    def reads(self, css: str, words: str) -> str:
        """The text, once it has `words` in it, however they are capitalised."""

        def found() -> str:
            text = self.text(css)
            return text if words.lower() in text.lower() else ""

        return self.until(found, f"{words!r} in {css}")

    def until[V](self, look: Callable[[], V], what: str = "") -> V:
        """What `look` gives, once that is something; what it raises until then is not there yet."""
        end, last = time.monotonic() + PATIENCE, ""
        while True:
            try:
                if found := look():
                    return found
            except (WebDriverException, StopIteration) as error:
                last = str(error)
            assert time.monotonic() < end, f"no {what} ({last}); the page says: {self.text('body')}"
            time.sleep(0.05)

    def run(self, script: str, *values: Any) -> Any:
        return self.browser.execute_script(script, *values)

    def complaints(self) -> list[str]:
        """What the console has said since this was last asked: errors, and what the CSP stopped."""
        entries = self.browser.execute("getLog", {"type": "browser"})["value"]
        return [json.dumps(each) for each in entries if each["level"] in ("SEVERE", "WARNING")]
