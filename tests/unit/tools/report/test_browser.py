"""The page as a browser shows it: on a phone and on a desk, by day and by night, with no network."""

import os
import shutil
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

import pytest
from plotly.offline import get_plotlyjs
from test_page import contrast

from ckptkit.storage import LocalStorage
from ckptkit.tools.report.history import read_story
from ckptkit.tools.report.page import PLOTLY, page_of

pytestmark = pytest.mark.browser

NOW = datetime(2026, 3, 3, 12, tzinfo=timezone.utc)
VIEWS = [(1280, 900, "light"), (1280, 900, "dark"), (390, 844, "light"), (390, 844, "dark")]
OVERFLOWING = """() => [...document.querySelectorAll('body *')].filter(
    (one) => !one.closest('.scroll') && !one.closest('svg') && one.getBoundingClientRect().right > innerWidth + 1
).map((one) => one.tagName + '.' + one.className)"""
COLOURS_SHOWN = """() => [
    ...document.querySelectorAll('h1, h2, p, td, th, .label, .value, .more, footer, .notes li')
].map((one) => [
    getComputedStyle(one).color, getComputedStyle(one.closest('section, .card') || document.body).backgroundColor
])"""


class Shown(NamedTuple):
    page: object
    said: list[str]
    asked: list[str]


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    from playwright.sync_api import sync_playwright

    chromium = os.environ.get("CKPTKIT_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    assert chromium is not None, "no chromium here; name one by CKPTKIT_CHROMIUM"
    with sync_playwright() as playwright:
        # Root has no sandbox in a container; the only page that is opened here is one's own.
        launched = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def show(request, browser):
    """Opens a page in one of the views, and keeps what it says on the console and asks of anybody."""
    width, height, scheme = request.param
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, offline=True, has_touch=width < 500
    )

    def opened(file: Path) -> Shown:
        page = context.new_page()
        shown = Shown(page, [], [])
        page.on("console", lambda message: shown.said.append(message.text))
        page.on("pageerror", lambda error: shown.said.append(str(error)))
        page.on("request", lambda asked: shown.asked.append(asked.url))
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-drawn]", state="attached", timeout=60_000)
        page.wait_for_function(
            "() => [...document.querySelectorAll('.plot')].every((one) => one.querySelector('svg .scatterlayer path'))"
        )
        return shown

    opened.view = request.param
    yield opened
    context.close()


@pytest.fixture(scope="module")
def file(grown: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page_of(read_story(LocalStorage(grown), NOW)), encoding="utf-8")
    path.with_name(PLOTLY).write_text(get_plotlyjs(), encoding="utf-8")
    return path


@pytest.mark.parametrize("show", VIEWS, ids=lambda view: f"{view[0]}-{view[2]}", indirect=True)
def test_page_renders_without_errors_and_is_readable(show, file):
    page, said, asked = show(file)
    width, _, _ = show.view
    assert said == []
    assert asked == [file.as_uri(), file.with_name(PLOTLY).as_uri()]
    assert page.evaluate("() => document.documentElement.scrollWidth") == width
    assert page.evaluate(OVERFLOWING) == []
    assert page.locator(".plot").count() == 5
    assert page.locator(".plot svg .scatterlayer path").count() > 100
    pairs = page.evaluate(COLOURS_SHOWN)
    assert len(pairs) > 100
    assert min(contrast(*pair) for pair in pairs) >= 4.5
