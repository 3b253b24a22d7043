"""The page in Chromium: what a reader does with mouse and keyboard, and what the page must not do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from evenhand.data.stream import Memory, Stream
from evenhand.measure.classification import Evaluation
from evenhand.measure.examples import files_of
from evenhand.report.page import write_report
from evenhand.run.measuring import write_array

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: pip install 'evenhand[dev]'")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="Chromium is missing: apt-get install chromium chromium-driver"
)
CLASSES = 14  # enough to be filtered


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Classes whose order by count is not that of their names or numbers; class k has k of ten right."""
    folder = tmp_path_factory.mktemp("browser") / "ce"
    folder.mkdir()
    names = [f"kind {(5 * k) % CLASSES:02d}" for k in range(CLASSES)]
    counts = [10 + 7 * ((3 * k) % CLASSES) for k in range(CLASSES)]
    truth = torch.arange(CLASSES).repeat_interleave(10)
    hit = torch.arange(10).repeat(CLASSES) < truth.clamp(max=9)
    logits = torch.nn.functional.one_hot(torch.where(hit, truth, (truth + 1) % CLASSES), CLASSES) * 4.0
    found = Evaluation.of(logits, truth)
    images = truth.byte().view(-1, 1, 1, 1).expand(-1, 1, 40, 60)
    samples = Memory(images, [f"test/{names[k]}/{i}.png" for i, k in enumerate(truth.tolist())])
    for name, content in files_of(found, Stream(samples, truth, tuple(names), "test")).items():
        (folder / name).write_bytes(content)
    table = found.table({"head": [0], "tail": [1]})
    write_array(folder / "confusion.npz", "confusion", table.pop("confusion"))
    facts = {"task": "classify", "split": "test", "select": "last", "classes": names, "train_counts": counts}
    (folder / "measure.json").write_text(json.dumps({**facts, **table}))
    (folder / "recipe.toml").write_text("[run]\nseed = 0\n")
    return write_report([folder], folder / "report.html").as_uri()


@pytest.fixture
def opened(browser: Any, page: str) -> Any:
    browser.set_window_size(1280, 900)
    browser.get(page)
    return browser


def css(driver: Any, selector: str) -> Any:
    return driver.find_element("css selector", selector)


def column(driver: Any, number: int) -> list[str]:
    """The visible texts of the class table's column."""
    script = """return [...document.querySelectorAll("#classes table.browsed tbody tr")]
      .filter((row) => !row.hidden).map((row) => row.cells[arguments[0]].textContent.trim())"""
    return list(driver.execute_script(script, number))


def focused(driver: Any, script: str) -> Any:
    return driver.execute_script(f"const it = document.activeElement; return {script}")


def test_it_is_silent_and_asks_the_network_for_nothing(opened: Any, page: str) -> None:
    assert opened.get_log("browser") == []
    sent = (json.loads(entry["message"])["message"] for entry in opened.get_log("performance"))
    asked = {m["params"]["request"]["url"] for m in sent if m["method"] == "Network.requestWillBeSent"}
    assert {url for url in asked if not url.startswith("data:")} == {page}
    assert opened.execute_script("return [...document.images].every((image) => image.naturalWidth > 0)")
    assert len(opened.find_elements("css selector", ".cards img")) > 20


def test_rows_are_sorted_by_keyboard(opened: Any) -> None:
    counts = [int(text) for text in column(opened, 2)]
    assert counts == sorted(counts, reverse=True)
    opened.execute_script("document.querySelector('#classes table.browsed thead th:nth-child(5) button').focus()")
    opened.switch_to.active_element.send_keys("\ue007")  # Enter
    recalls = [float(text) for text in column(opened, 4)]
    assert recalls == sorted(recalls)
    assert len(set(recalls)) == 10
    names = column(opened, 0)
    assert focused(opened, "it.closest('th').getAttribute('aria-sort')") == "ascending"
    opened.switch_to.active_element.send_keys(" ")
    assert [float(text) for text in column(opened, 4)] == sorted(recalls, reverse=True)
    assert column(opened, 0) != names
    opened.execute_script("document.querySelector('#classes table.browsed thead button').click()")
    assert column(opened, 0) == sorted(names)
    assert len(opened.find_elements("css selector", "#classes [aria-sort]")) == 1
    numbers = dict(zip(column(opened, 0), column(opened, 4), strict=True))
    assert numbers["kind 05"] == "10.0"  # class 1: a row stays together


def test_rows_are_filtered_and_esc_brings_them_back(opened: Any) -> None:
    field = css(opened, "#classes .filter input")
    field.send_keys("KIND 1")
    assert sorted(column(opened, 0)) == ["kind 10", "kind 11", "kind 12", "kind 13"]
    assert css(opened, "#classes .filter output").text == "4 of 14"
    field.send_keys("\ue00c")
    assert len(column(opened, 0)) == CLASSES
    assert field.get_attribute("value") == ""
    assert css(opened, "#classes .filter output").text == ""


def test_a_cell_opens_its_images_and_esc_goes_back_to_it(opened: Any) -> None:
    link = css(opened, "#to-cell-0-0-1")  # class 0 is taken for class 1 ten times
    assert link.text == "10"
    link.send_keys("\ue007")
    dialog = css(opened, "dialog[open]")
    assert dialog.get_attribute("id") == "cell-0-0-1"
    assert "kind 00 taken for kind 05: 10 of 10 (100.0 %)" in dialog.text
    shown = [image.get_attribute("alt") for image in dialog.find_elements("css selector", "img")]
    assert shown
    assert all(name.startswith("test/kind 00/") for name in shown)
    assert focused(opened, "it.closest('dialog') !== null")
    opened.switch_to.active_element.send_keys("\ue00c")
    assert opened.find_elements("css selector", "dialog[open]") == []
    assert focused(opened, "it.id") == "to-cell-0-0-1"
    opened.execute_script("document.querySelector('#to-cell-0-0-1').click()")
    css(opened, "dialog[open] .close").click()
    assert opened.find_elements("css selector", "dialog[open]") == []
    assert opened.get_log("browser") == []


def test_it_all_works_without_a_script(browser: Any, page: str) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(page)
        assert browser.find_elements("css selector", "thead button, .filter") == []
        dialog, link = css(browser, "#cell-0-0-1"), css(browser, "#to-cell-0-0-1")
        assert not dialog.is_displayed()
        link.send_keys("\ue007")
        assert dialog.is_displayed()
        assert "taken for kind 05" in dialog.text
        dialog.find_element("css selector", ".close").click()
        assert not dialog.is_displayed()
        assert css(browser, "#classes table.browsed tbody tr").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_phone_shows_it_without_scrolling_sideways(browser: Any, page: str, theme: str) -> None:
    size = {"width": 420, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    scheme = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", scheme)
    try:
        browser.get(page)
        assert browser.execute_script("return document.documentElement.scrollWidth") == 420
        ink, paper = browser.execute_script(
            "const s = getComputedStyle(document.body); return [s.color, s.backgroundColor]"
        )
        bright = [sum(map(int, colour[4:-1].split(","))) for colour in (ink, paper)]
        assert (bright[0] > bright[1]) == (theme == "dark")
        assert abs(bright[0] - bright[1]) > 450
        browser.execute_script("document.querySelector('#to-cell-0-0-1').click()")
        assert css(browser, "dialog[open]").rect["width"] <= 420
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
