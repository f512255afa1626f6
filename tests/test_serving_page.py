"""The page at `/` with the server behind it: a conversation, and the engine at work, in a real browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from serving_process import LONG, ServerProcess, stream_post, until

PATIENCE = 20
ENTER = "\ue007"  # as WebDriver writes it


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    made = ServerProcess("--no-log-requests")
    yield made
    made.close()


@pytest.fixture
def browser() -> Iterator[Any]:
    browser, driver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("needs Chromium and its driver (Debian: chromium, chromium-driver)")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1280,800"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    made = webdriver.Chrome(options, webdriver.ChromeService(driver))
    yield made
    made.quit()


def test_a_conversation_with_the_server_and_a_look_at_its_engine(server: ServerProcess, browser: Any) -> None:
    def text_of(selector: str) -> str:
        return browser.execute_script("return document.querySelector(arguments[0])?.innerText ?? ''", selector)

    browser.get(server.url)
    prompt = browser.find_element("id", "prompt")
    prompt.send_keys("<say>A page says hello.</say>" + ENTER)
    until(lambda: "A page says hello." in text_of(".answer"), PATIENCE)
    until(lambda: "tokens" in text_of(".facts"), PATIENCE)
    with server.connect() as other:
        other.sendall(stream_post({**LONG, "n": 8}))
        until(lambda: "8 running" in text_of("#pulse"), PATIENCE)
    until(server.is_idle, 5)
    until(lambda: "running" not in text_of("#pulse"), PATIENCE)
    browser.find_element("id", "settings-button").click()
    browser.find_element("id", "more").send_keys('{"ignore_eos": true}')
    prompt.send_keys(f"{LONG['prompt']}{ENTER}")
    until(lambda: browser.find_element("id", "send").get_attribute("data-action") == "stop", PATIENCE)
    until(lambda: not server.is_idle(), PATIENCE)
    browser.find_element("id", "send").click()
    until(server.is_idle, 5)
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
