"""The report in a real Chromium: silent, alone, as wide as the screen, readable, deaf to its documents."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fineweb_shards.output.folder_store import FolderStore
from fineweb_shards.output.manifest_file import save_manifest
from fineweb_shards.report import contents
from fineweb_shards.report.contents import Facts
from fineweb_shards.report.page import render_page, write_report
from fineweb_shards.types import Quarantined
from fineweb_shards.watching.run_files import Heartbeat, History, Invocation, Mark
from fineweb_shards.watching.status import Status
from tests.report.chromium import NAMES, Chromium, find_browser
from tests.report.page_payloads import MARK, PAYLOADS
from tests.support import runs
from tests.support.example_run import SNAPSHOT, mix_manifest
from tests.support.inputs import write_jsonl

pytestmark = pytest.mark.full

VIEWS = [(1280, False), (1280, True), (360, False), (360, True)]

# The lowest contrast between a text and what lies behind it, as WCAG counts it, and where that is.
CONTRAST = """(() => {
  const luminance = rgb => {
    const [r, g, b] = rgb.map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const parse = text => text.match(/[0-9.]+/g).map(Number);
  const behind = element => {
    for (; element; element = element.parentElement) {
      const colour = parse(getComputedStyle(element).backgroundColor);
      if (colour.length < 4 || colour[3] === 1) return colour.slice(0, 3);
    }
    return [255, 255, 255];
  };
  let worst = [21, ""];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some(n => n.nodeType === 3 && n.data.trim());
    if (!own || !element.getClientRects().length) continue;
    const style = getComputedStyle(element);
    const ink = parse(element instanceof SVGElement ? style.fill : style.color).slice(0, 3);
    const [a, b] = [luminance(ink), luminance(behind(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < worst[0]) worst = [ratio, element.outerHTML.slice(0, 80)];
  }
  return worst;
})()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    program = find_browser()
    if program is None:
        pytest.skip(f"no browser on this machine: none of {', '.join(NAMES)} (apt-get install chromium)")
    chromium = Chromium(program, tmp_path_factory.mktemp("profile"))
    yield chromium
    chromium.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Everything a page can show, and payloads wherever text comes from elsewhere."""
    folder = tmp_path_factory.mktemp("hostile") / "out"
    documents = [*PAYLOADS, "x" * 3000, "a very long line of words " * 300]
    manifest = runs.build_inline(folder, write_jsonl(folder.parent / "a.jsonl", documents), shard_tokens=400)
    names = [{**manifest.files[0], "name": PAYLOADS[2]}]
    lost = tuple(Quarantined(0, 0, 0, 1, text, 1, "ab" * 32, text, text) for text in PAYLOADS)
    part = replace(manifest.parts[0], files=names)
    save_manifest(replace(manifest, parts=(part,), quarantined=lost, complete=False), FolderStore(folder))
    begin = time.time() - 600
    waits = [Mark(begin + 60, "wait", PAYLOADS[0], "network", begin + 120)]
    faults = [Mark(begin + 10 * i, "worker", text) for i, text in enumerate(PAYLOADS)]
    History(waits + faults).save(folder)
    snapshot = replace(SNAPSHOT, reason=PAYLOADS[0])
    Heartbeat(time.time(), Invocation(PAYLOADS[2] * 9, "/", 1, 0.0), snapshot, 3).save(folder)
    few_samples, contents._SAMPLES = contents._SAMPLES, 400
    try:
        return write_report(FolderStore(folder)).as_uri()
    finally:
        contents._SAMPLES = few_samples


@pytest.mark.parametrize(("width", "dark"), VIEWS)
def test_the_page_is_silent_and_asks_nobody(browser: Chromium, page: str, width: int, dark: bool) -> None:
    """No message in the console, no request but for the page itself."""
    browser.show(page, width=width, dark=dark)
    browser.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    browser.evaluate("document.querySelectorAll('pre, td').forEach(one => one.click())")
    assert browser.console == []
    assert browser.requests == [page]


@pytest.mark.parametrize(("width", "dark"), VIEWS)
def test_the_page_is_as_wide_as_the_screen(browser: Chromium, page: str, width: int, dark: bool) -> None:
    """Also with everything opened."""
    browser.show(page, width=width, dark=dark)
    browser.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert browser.evaluate("innerWidth") == width
    assert browser.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [1280, 360])
def test_tiles_and_tables_fill_the_width(browser: Chromium, page: str, width: int) -> None:
    """No row of figures and no table ends before its neighbours do."""
    browser.show(page, width=width, dark=False)
    browser.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    edge = browser.evaluate("document.querySelector('main').getBoundingClientRect().right")
    assert browser.evaluate(
        "[...document.querySelectorAll('.figure')].filter((one, i, all) => i == all.length - 1 ||"
        " all[i + 1].offsetTop != one.offsetTop).map(one => one.getBoundingClientRect().right)"
    ) == pytest.approx([edge] * browser.evaluate(
        "new Set([...document.querySelectorAll('.figure')].map(one => one.offsetTop)).size"
    ), abs=1)  # fmt: skip
    tables = browser.evaluate("[...document.querySelectorAll('table')].map(one => one.getBoundingClientRect().right)")
    assert tables
    assert min(tables) >= edge - 1


def test_wide_tables_scroll_on_a_phone(browser: Chromium, page: str) -> None:
    """In a frame of their own: the columns keep their words on one line, and the page does not move."""
    browser.show(page, width=400, dark=False)
    frames = browser.evaluate(
        "[...document.querySelectorAll('.scroll')].filter(one => one.scrollWidth > one.clientWidth)"
        ".map(one => { one.scrollLeft = 1e6; return [one.scrollLeft, one.scrollWidth - one.clientWidth]; })"
    )
    assert frames
    assert all(moved == pytest.approx(hidden, abs=1) for moved, hidden in frames)
    assert browser.evaluate("document.documentElement.scrollWidth") <= 400


def test_bars_are_as_long_as_their_share(browser: Chromium, page: str) -> None:
    """The first token is the most frequent one; its bar fills the column."""
    browser.show(page, width=1280, dark=False)
    bars, shares = browser.evaluate(
        "(rows => [rows.map(row => row.querySelector('.bar path').getBoundingClientRect().width),"
        " rows.map(row => parseInt(row.children[2].textContent.replaceAll(',', '')))])"
        "([...document.querySelectorAll('[aria-labelledby=most-frequent-tokens] tbody tr')])"
    )
    assert len(bars) > 3
    for bar, share in zip(bars, shares, strict=True):
        assert bar / bars[0] == pytest.approx(share / shares[0], abs=0.01)


@pytest.mark.parametrize(("width", "dark"), VIEWS)
def test_every_text_can_be_read(browser: Chromium, page: str, width: int, dark: bool) -> None:
    """Contrast of at least 4.5 to 1 (WCAG AA), in both schemes."""
    browser.show(page, width=width, dark=dark)
    browser.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    ratio, where = browser.evaluate(CONTRAST)
    assert ratio >= 4.5, where


@pytest.mark.parametrize(("width", "dark"), VIEWS)
def test_a_mix_can_be_read(browser: Chromium, tmp_path: Path, width: int, dark: bool) -> None:
    """Six parts with long names: requested and achieved shares are inside the screen, each part has its own colour."""
    manifest = mix_manifest([40, 25, 15, 10, 8, 2], [40, 25, 15, 10, 8, 2], [80, 50, 15, 20, 16, 2])
    for part in manifest.parts:
        part.settings["dataset"] += "/a-name-without-any-space" * 3
    status = Status(FolderStore(tmp_path), "stopped", manifest, None, [])
    (tmp_path / "page.html").write_text(render_page(Facts(status, History())))
    browser.show((tmp_path / "page.html").as_uri(), width=width, dark=dark)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    table = "document.querySelector('[aria-labelledby=parts-of-the-mix] table')"
    assert browser.evaluate(f"{table}.rows[6].cells[3].getBoundingClientRect().right") <= width
    fills = browser.evaluate("[...document.querySelectorAll('.area')].map(area => getComputedStyle(area).fill)")
    keys = browser.evaluate(
        f"[...{table}.querySelectorAll('.key')].map(key => getComputedStyle(key, '::before').backgroundColor)"
    )
    assert keys == fills
    assert len(set(fills)) == 6
    ratio, where = browser.evaluate(CONTRAST)
    assert ratio >= 4.5, where


def test_payloads_stay_text(browser: Chromium, page: str) -> None:
    """Nothing was run, no element was made; the payloads can be read."""
    browser.show(page, width=1280, dark=False)
    assert browser.evaluate(f"typeof window.{MARK}") == "undefined"
    assert browser.evaluate("document.querySelectorAll('script, img, iframe, form, a, link, object').length") == 0
    assert browser.evaluate("document.body.textContent.includes('<script>window.pwned=1</script>')")


def test_the_policy_holds_where_escaping_would_not(browser: Chromium, page: str, tmp_path: Path) -> None:
    """The same page with a payload put into it by force: the policy alone keeps it from acting."""
    text = Path(page.removeprefix("file://")).read_text()
    forced = text.replace("</main>", "<script>window.pwned=1</script><img src=x onerror=window.pwned=1></main>")
    assert forced != text
    (tmp_path / "forced.html").write_text(forced)
    browser.show((tmp_path / "forced.html").as_uri(), width=1280, dark=False)
    assert browser.evaluate(f"typeof window.{MARK}") == "undefined"
    assert any("Content Security Policy" in line for line in browser.console)
