"""The page in a real browser: ten images labelled by keyboard, over undo, reload and a killed server."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evenhand.data.labels import read_answers

pytest.importorskip("selenium", reason="browser tests need selenium")
pytest.importorskip("fastapi", reason="the labelling page needs the extra: pip install 'evenhand[label]'")

webdriver = importlib.import_module("selenium.webdriver")
By = importlib.import_module("selenium.webdriver.common.by").By
Keys = webdriver.Keys
WebDriverWait = importlib.import_module("selenium.webdriver.support.ui").WebDriverWait
DRIVER, BROWSER = shutil.which("chromedriver"), shutil.which("chromium")
pytestmark = pytest.mark.skipif(not (DRIVER and BROWSER), reason="needs Debian's chromium and chromium-driver")


@pytest.fixture
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER or ""
    for option in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1200,900"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    yield chrome
    chrome.quit()


class Served:
    def __init__(self, picks: Path, *more: str) -> None:
        command = [sys.executable, "-m", "evenhand", "label", str(picks), "--no-browser", *more]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        said = ""
        while not (found := re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", said)):
            line = self.process.stdout.readline()
            assert line, "the server ended"
            said += line
        self.address = found[0]

    def end(self, how: signal.Signals) -> None:
        os.kill(self.process.pid, how)
        self.process.wait(30)


@pytest.fixture
def serve(picks: Path) -> Iterator[Callable[..., Served]]:
    started: list[Served] = []

    def start(*more: str) -> Served:
        started.append(Served(picks, *more))
        return started[-1]

    yield start
    for served in started:
        served.process.kill()


def on(browser: Any, rank: int | None) -> None:
    """Wait until the page shows this pick, or that nothing is left."""
    if rank is None:
        WebDriverWait(browser, 20).until(lambda b: b.find_element(By.ID, "ready").is_displayed())
    else:
        WebDriverWait(browser, 20).until(lambda b: b.find_element(By.ID, "name").text == f"a/{rank}.png")


def press(browser: Any, *keys: str) -> None:
    for key in keys:
        browser.switch_to.active_element.send_keys(key)


def test_ten_images_by_keyboard_with_undo_reload_and_a_kill(browser: Any, serve, picks: Path) -> None:
    served = serve()
    browser.get(served.address)
    on(browser, 1)
    assert "token" not in browser.current_url
    press(browser, "1")  # the first guess, lynx
    on(browser, 2)
    press(browser, "3")  # the first class that is not guessed, quail
    on(browser, 3)
    press(browser, "u")
    on(browser, 2)
    browser.refresh()
    on(browser, 2)
    press(browser, "u")  # also after a reload
    on(browser, 1)
    press(browser, "2")
    on(browser, 2)
    press(browser, "/", *"tap", Keys.ENTER)
    on(browser, 3)
    press(browser, "n")
    on(browser, 4)
    press(browser, "s")
    on(browser, 5)
    for rank in (5, 6):
        press(browser, "1")
        on(browser, rank + 1)
    served.end(signal.SIGKILL)
    press(browser, "1")
    WebDriverWait(browser, 20).until(lambda b: b.find_element(By.ID, "error").is_displayed())
    assert "start evenhand label again" in browser.find_element(By.ID, "error").text
    log = [entry for entry in browser.get_log("browser") if "ERR_CONNECTION" not in entry["message"]]
    assert log == []
    again = serve()
    browser.get(again.address)
    on(browser, 7)  # nothing was lost, nothing is asked twice
    for rank in (7, 8, 9):
        press(browser, "1")
        on(browser, rank + 1)
    press(browser, "1")
    on(browser, None)
    browser.find_element(By.ID, "finish").click()
    WebDriverWait(browser, 20).until(lambda b: "labels.csv" in b.find_element(By.ID, "written").text)
    labels = [row.label for row in read_answers(picks.with_name("labels.csv"))]
    assert labels == ["otter", "tapir", "#none", "", *["lynx"] * 6]
    assert browser.get_log("browser") == []
    again.end(signal.SIGINT)


def test_a_new_class_a_second_labeller_and_a_conflict_on_a_narrow_screen(browser: Any, serve, picks: Path) -> None:
    browser.set_window_size(420, 900)
    served = serve("--new-classes", "--answers", "2")
    browser.get(served.address)
    on(browser, 1)
    width = "return [document.documentElement.scrollWidth, window.innerWidth]"
    needed, given = browser.execute_script(width)
    assert needed <= given
    press(browser, "/", *"zebra")
    browser.find_element(By.ID, "add").click()
    WebDriverWait(browser, 20).until(lambda b: len(b.find_elements(By.CSS_SELECTOR, "#classes li")) == 1)
    browser.find_element(By.CSS_SELECTOR, "#classes button").click()
    on(browser, 2)
    name = browser.find_element(By.ID, "labeller")
    name.clear()
    name.send_keys("ben", Keys.TAB)
    on(browser, 1)
    browser.find_element(By.TAG_NAME, "body").send_keys("1")
    on(browser, 2)
    first, second = browser.find_elements(By.CSS_SELECTOR, "#conflicts button")
    assert {first.text, second.text} == {"zebra (me)", "lynx (ben)"}
    settled = second.text.split()[0]
    second.click()
    WebDriverWait(browser, 20).until(lambda b: not b.find_element(By.ID, "differ").is_displayed())
    assert browser.get_log("browser") == []
    served.end(signal.SIGINT)
    assert [row.label for row in read_answers(picks.with_name("labels.csv"))] == [settled]
