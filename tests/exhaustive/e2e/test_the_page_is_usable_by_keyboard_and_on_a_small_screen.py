"""The page is for everybody: with a keyboard alone, on a small screen, in the dark."""

import asyncio

import pytest
from selenium.webdriver.common.keys import Keys

from tests.browser import Person
from tests.planes.wire import http_client
from tests.system.control.conftest import Control, control, ground, short_dir
from tests.system.e2e.on_call import browser, log_in, person
from tests.system.e2e.story import bearer

__all__ = ["browser", "control", "ground", "person", "short_dir"]

pytestmark = pytest.mark.needs_debian("chromedriver")


async def test_everything_can_be_done_with_the_keyboard(person: Person, control: Control) -> None:
    """Tab and Enter alone: log in, look at a session, revoke it; focus comes back to where it was."""
    sandbox = await control.daemon.sandbox()

    def press(*keys: str) -> None:
        person.browser.switch_to.active_element.send_keys(*keys)

    def tab_to(condition: str) -> None:
        for _ in range(40):
            if person.run(f"const e = document.activeElement; return {condition}"):
                return
            press(Keys.TAB)
        raise AssertionError(f"no way by Tab to {condition}")

    def story() -> None:
        from tests.system.control.conftest import token_of

        person.open(f"{control.url}/page/")
        person.until(lambda: person.run("return document.activeElement.id") == "token")
        press(token_of("operator"), Keys.ENTER)
        person.reads("#sessions-list", "acme / agent")
        person.browser.refresh()
        person.reads("#sessions-list", "acme / agent")
        press(Keys.TAB)
        assert person.text(":focus") == "Skip to content"
        tab_to("e.textContent === 'Details'")
        press(Keys.ENTER)
        person.reads("#details-pairs", "acme / agent")
        press(Keys.ESCAPE)
        person.until(lambda: not person.all("dialog[open]"))
        assert person.text(":focus") == "Details"
        ring = person.run("return getComputedStyle(document.activeElement).outlineStyle")
        assert ring == "solid"
        person.until(lambda: person.text("#sessions-list").count("ses_") == 1)
        tab_to("e.textContent === 'Revoke'")
        press(Keys.ENTER)
        assert person.run("return document.activeElement.id") == "confirm-no"
        tab_to("e.id === 'confirm-yes'")
        press(Keys.ENTER)
        person.reads("#sessions", "No sandbox has a session")

    await asyncio.to_thread(story)
    assert control.daemon.state.status(sandbox.session.id) == "revoked"


async def test_the_list_is_written_anew_without_taking_the_focus(person: Person, control: Control) -> None:
    """Sessions come and go around the button under somebody's finger."""
    await control.daemon.sandbox(subject="first")

    def focus() -> None:
        log_in(person, control)
        person.reads("#sessions-list", "acme / first")
        person.run("document.querySelector('#sessions-list .danger').focus()")

    await asyncio.to_thread(focus)
    for number in range(3):
        await control.daemon.sandbox(subject=f"later-{number}")

    def look() -> None:
        person.reads("#sessions-list", "acme / later-2")
        assert "first" in person.run("return document.activeElement.closest('li').innerText")

    await asyncio.to_thread(look)


HUGE = "x" * 200


async def test_it_fits_a_small_screen_and_the_dark(person: Person, control: Control) -> None:
    """360 px wide without scrolling sideways, with the longest names and paths; readable in both schemes."""
    sandbox = await control.daemon.sandbox(tenant=HUGE, subject=HUGE)
    async with http_client(control.daemon, sandbox) as http:
        await http.get(f"https://upstream.example/{HUGE}{HUGE}", headers=bearer(sandbox))

    def emulate(feature: str, value: str) -> None:
        media = {"features": [{"name": feature, "value": value}]}
        person.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)

    def story() -> None:
        for width in (360, 768, 1280):
            person.browser.execute_cdp_cmd(
                "Emulation.setDeviceMetricsOverride",
                {"width": width, "height": 740, "deviceScaleFactor": 1, "mobile": width == 360},
            )
            if width == 360:
                log_in(person, control)
                person.reads("#alarms-list", HUGE)
            assert person.run("window.scrollTo(0, 0); return window.innerWidth") == width
            assert person.run("return document.documentElement.scrollWidth") <= width
            person.click("#sessions-list .danger")
            box = person.run(BOX)
            assert box[0] >= 0 and box[1] <= width
            person.click("#confirm-no")
        for scheme in ("light", "dark"):
            emulate("prefers-color-scheme", scheme)
            # Colours of buttons take a moment to change.
            person.until(lambda: not person.run(CONTRAST), f"contrast, {scheme}")
        emulate("prefers-reduced-motion", "reduce")
        pause = "getComputedStyle(document.querySelector('#pause')).transitionDuration"
        assert person.run(f"return {pause}") == "0s"

    await asyncio.to_thread(story)


BOX = "const box = document.querySelector('#confirm').getBoundingClientRect(); return [box.left, box.right]"

CONTRAST = """
const numbers = (css) => css.match(/[\\d.]+/g).map(Number);
const solid = (css) => !/^rgba\\(.*, 0\\)$|transparent/.test(css);
const linear = (value) => value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
const light = (css) => {
  const most = css.startsWith('color(') ? 1 : 255;
  const [r, g, b] = numbers(css).slice(0, 3).map((value) => linear(value / most));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ground = (node) => {
  for (; node; node = node.parentElement) {
    const css = getComputedStyle(node).backgroundColor;
    if (solid(css)) return css;
  }
  return 'rgb(255, 255, 255)';
};
const texts = (node) => [...node.childNodes].some((each) => each.nodeType === 3 && each.textContent.trim());
return [...document.querySelectorAll('header *, main *')]
  .filter((node) => node.checkVisibility() && !node.disabled && texts(node))
  .map((node) => {
    const [a, b] = [light(getComputedStyle(node).color), light(ground(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    return [ratio, node.className || node.id || node.localName, node.textContent.slice(0, 20)];
  })
  .filter(([ratio]) => ratio < 4.5);
"""
