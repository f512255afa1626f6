"""The page in a real browser, against a small backend that is told what to answer."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from octavo_openai.http.static_files import page_routes

PATIENCE = 20
"""Seconds until a wait for the browser fails: long, for the machine may be busy; a test that passes does not wait."""

ENTER, ESCAPE, SHIFT = "\ue007", "\ue00c", "\ue008"  # as WebDriver writes them


class Backend:
    """The page with its real files, a status, and chat answers that each test chooses."""

    def __init__(self) -> None:
        self.reset()
        routes = [Route("/status", self._status), Route("/v1/chat/completions", self._chat, methods=["POST"])]
        self.app = Starlette(routes=[*page_routes(), *routes])

    def reset(self) -> None:
        self.key: str | None = None
        self.unready: str | None = None
        self.requests: list[dict[str, Any]] = []
        self.num_polls = 0
        self.withdrawn = threading.Event()
        self.status = idle_status()
        self.reply: Callable[[], Response] = lambda: stream({"content": "Hello"}, {"content": " there."})

    def _refusal(self, request: Request) -> Response | None:
        if self.key is None or request.headers.get("authorization") == f"Bearer {self.key}":
            return None
        return failure(401, "Send the API key as a bearer token")

    async def _status(self, request: Request) -> Response:
        self.num_polls += 1
        self.status["uptime"] += 1.0
        if self.unready is not None:
            return failure(503, self.unready, Retry_After="1")
        return self._refusal(request) or JSONResponse(self.status)

    async def _chat(self, request: Request) -> Response:
        if (refusal := self._refusal(request)) is not None:
            return refusal
        self.requests.append(await request.json())
        return self.reply()

    def endless(self) -> Response:
        """An answer that goes on until the browser withdraws; then `withdrawn` is set."""

        async def pieces() -> AsyncIterator[str]:
            try:
                while True:
                    yield event({"choices": [{"index": 0, "delta": {"content": "on and "}}]})
                    await asyncio.sleep(0.02)
            finally:
                self.withdrawn.set()

        return StreamingResponse(pieces(), media_type="text/event-stream")


def idle_status() -> dict[str, Any]:
    cells = "." * 64
    return {
        "model": "Tiny-Instruct",
        "version": "0.1.0",
        "uptime": 12.0,
        "description": {"device": "cpu, 2 threads", "attention_backend": "cpu: highest priority"},
        "max_num_seqs": 8,
        "sequences": [],
        "blocks": [blocks(cells)],
        "totals": {
            "prompt_tokens": 0,
            "generation_tokens": 0,
            "prefix_queries": 0,
            "prefix_hits": 0,
            "draft_tokens": 0,
            "accepted_tokens": 0,
            "preemptions": 0,
            "finished": {"stop": 0, "length": 0, "abort": 0, "error": 0},
        },
        "plugins": [plugin("cpu"), plugin("llama")],
    }


def blocks(cells: str, per_cell: int = 1) -> dict[str, Any]:
    names = {"free": ".", "cached": "c", "used": "u", "shared": "s"}
    counts = {name: cells.count(letter) * per_cell for name, letter in names.items()}
    return {"block_size": 16, "total": len(cells) * per_cell, "per_cell": per_cell, "cells": cells, "counts": counts}


def plugin(name: str, reason: str | None = None) -> dict[str, Any]:
    state = "broken" if reason else "loaded"
    return {"name": name, "distribution": f"octavo-{name}", "version": "0.1.0", "state": state, "reason": reason}


def sequence(number: int, state: str = "running", **changes: Any) -> dict[str, Any]:
    figures = {"prompt_tokens": 90, "tokens": 120, "computed": 119, "blocks": 8, "preemptions": 0}
    return {"id": number, "request": f"chatcmpl-{number:024x}", "state": state, **figures, **changes}


def event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data)}\n\n"


def stream(*deltas: dict[str, Any] | threading.Event, finish_reason: str = "stop", done: bool = True) -> Response:
    """An answer of these deltas; at an event, it waits for it."""
    chunks: list[str | threading.Event] = [
        delta
        if isinstance(delta, threading.Event)
        else event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        for delta in deltas
    ]
    chunks.append(event({"choices": [{"index": 0, "delta": {}, "finish_reason": finish_reason}]}))
    usage = {"prompt_tokens": 30, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 16}}
    chunks.append(event({"choices": [], "usage": usage}))
    return raw_stream(*chunks, *(["data: [DONE]\n\n"] if done else []))


def raw_stream(*pieces: str | bytes | threading.Event, pause: float = 0.01) -> Response:
    async def paced() -> AsyncIterator[str | bytes]:
        for piece in pieces:
            if isinstance(piece, threading.Event):
                await asyncio.to_thread(piece.wait, PATIENCE)
                continue
            yield piece
            await asyncio.sleep(pause)  # so that the pieces come one by one

    return StreamingResponse(paced(), media_type="text/event-stream")


def failure(status: int, message: str, param: str | None = None, **headers: str) -> Response:
    error = {"message": message, "type": "error", "param": param, "code": None}
    return JSONResponse({"error": error}, status, {name.replace("_", "-"): value for name, value in headers.items()})


class Page:
    """The page as a user has it before them."""

    def __init__(self, driver: Any, backend: Backend, address: str) -> None:
        self.driver = driver
        self.backend = backend
        self.address = address

    def open(self, width: int = 1280, height: int = 800) -> None:
        self.resize(width, height)
        self.driver.get(self.address)
        # Right after another tab was closed, the driver may go on before the page's scripts have run.
        loaded = f"return document.URL === {self.address!r} && document.readyState === 'complete'"
        self.until(lambda: self.run(loaded))

    def resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 700}
        self.cdp("Emulation.setDeviceMetricsOverride", **size)

    def cdp(self, command: str, **arguments: Any) -> Any:
        return self.driver.execute_cdp_cmd(command, arguments)

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def find_all(self, selector: str) -> list[Any]:
        return self.driver.find_elements("css selector", selector)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def until(self, what: Callable[[], Any]) -> Any:
        """Wait until `what` gives something true; what it gives."""
        from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
        from selenium.webdriver.support.wait import WebDriverWait

        ignored = [NoSuchElementException, StaleElementReferenceException]
        return WebDriverWait(self.driver, PATIENCE, 0.05, ignored_exceptions=ignored).until(lambda _: what())

    def until_text(self, selector: str, text: str) -> None:
        self.until(lambda: text in self.find(selector).text)

    def say(self, text: str) -> None:
        self.find("#prompt").send_keys(text, ENTER)

    def until_answered(self, num_turns: int = 1) -> Any:
        """The last turn, once its answer has ended."""
        ended = ".answer[aria-busy='false']"
        self.until(lambda: len(self.find_all(ended)) == num_turns and not self.find_all("[aria-busy='true']"))
        return self.find_all(".turn")[-1]

    def ask(self, text: str) -> Any:
        num_turns = len(self.find_all(".turn"))
        self.say(text)
        return self.until_answered(num_turns + 1)


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Backend, str]]:
    backend = Backend()
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()  # so that the browser need not wait for the server
    config = uvicorn.Config(backend.app, log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield backend, f"http://127.0.0.1:{listener.getsockname()[1]}/"
    server.should_exit = True
    thread.join()
    listener.close()


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="the page's tests need selenium")
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
    chromedriver = shutil.which("chromedriver")
    if browser is None or chromedriver is None:
        pytest.skip("the page's tests need Chromium and chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(chromedriver))
    yield driver
    driver.quit()


@pytest.fixture
def page(driver: Any, served: tuple[Backend, str]) -> Iterator[Page]:
    """The page, open; at the end it must have logged no error and asked nobody but its own server."""
    backend, address = served
    backend.reset()
    page = Page(driver, backend, address)
    page.open()
    yield page
    assert [entry for entry in driver.get_log("browser") if entry["source"] != "network"] == []
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert any(url.startswith(address) for url in asked)
    assert {urlsplit(url).netloc for url in asked if not url.startswith("data:")} == {urlsplit(address).netloc}
    page.run("sessionStorage.clear()")
    driver.get("about:blank")


def test_an_answer_streams_and_is_shown(page: Page) -> None:
    page.until_text("#model", "Tiny-Instruct")
    go_on = threading.Event()
    page.backend.reply = lambda: stream({"content": "Hello"}, go_on, {"content": " there."})
    page.say("Hi")
    page.until_text(".answer > .text", "Hello")
    assert page.find(".answer").get_attribute("aria-busy") == "true"
    assert not page.find(".facts").is_displayed()
    go_on.set()
    turn = page.until_answered()
    assert turn.find_element("css selector", ".asked p").text == "Hi"
    assert turn.find_element("css selector", ".answer .text:not(.reasoning .text)").text == "Hello there."
    facts = turn.find_element("css selector", ".facts").text
    assert re.fullmatch(
        r"7 tokens · [\d,.]+ tokens/s · first after \d+\.\d\d s · prompt 30 tokens, 16 from the cache", facts
    )
    assert page.find("#announcement").get_attribute("textContent") == "The answer is complete."
    [request] = page.backend.requests
    assert request == {
        "model": "Tiny-Instruct",
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_the_end_stays_in_view_unless_the_reader_goes_up(page: Page) -> None:
    more, last = threading.Event(), threading.Event()
    lines = "".join(f"Line {number}.\n\n" for number in range(60))
    deltas = [{"content": lines}, more, {"content": lines}, last, {"content": lines + "The end."}]
    page.backend.reply = lambda: stream(*deltas)
    page.say("Hi")
    left = """const it = document.querySelector("#conversation");
        return [it.scrollHeight - it.scrollTop - it.clientHeight, it.scrollTop, it.scrollHeight].map(Math.round)"""

    def until_longer_than(height: int) -> list[int]:
        return page.until(lambda: page.run(left)[2] > height and page.run(left))

    first = until_longer_than(1500)
    more.set()
    until_longer_than(first[2] + 500)
    page.until(lambda: page.run(left)[0] < 2)
    page.run("document.querySelector('#conversation').scrollTop = 300")
    page.until(lambda: page.run(left)[1] == 300)
    last.set()
    page.until_answered()
    assert page.run(left)[1] == 300
    page.ask("And now?")
    page.until(lambda: page.run(left)[0] < 2)
    assert page.run("return document.documentElement.scrollHeight - innerHeight") == 0  # the page itself never scrolls


def test_events_are_read_however_they_are_cut(page: Page) -> None:
    whole = (
        ': a comment\r\n\r\nevent: message\r\ndata: {"choices": [{"index": 0,\r\ndata: "delta": {"content": "é€😀"}}]}'
        '\r\n\r\ndata:{"choices":[{"index":1,"delta":{"content":"another choice"}}]}\r\rdata: [DONE]\n\n'
    ).encode()
    page.backend.reply = lambda: raw_stream(*(whole[i : i + 1] for i in range(len(whole))), pause=0.001)
    turn = page.ask("Hi")
    assert turn.find_element("css selector", ".answer > .text").text == "é€😀"


def test_what_a_model_writes_stays_text(page: Page) -> None:
    hostile = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script> & <b>bold</b>"
    page.backend.reply = lambda: stream(
        {"reasoning_content": hostile}, {"content": f"{hostile}\n\n```html\n{hostile}\n```"}
    )
    turn = page.ask(hostile)
    assert turn.find_elements("css selector", "img, script, b") == []
    assert [p.text for p in turn.find_elements("css selector", ".answer > .text p, .answer pre")] == [hostile, hostile]
    assert turn.find_element("css selector", ".asked p").text == hostile
    assert page.driver.title == "Tiny-Instruct · Octavo"


def test_code_headings_and_emphasis(page: Page) -> None:
    text = "# Sorting\nUse `sorted` **now**:\n\n```python\ndef f(x):\n    return x\n\nf(1)\n```\nDone, 2 * 3 * 4."
    text += "\n````\nopen ```"
    page.backend.reply = lambda: stream(*({"content": letter} for letter in text))
    turn = page.ask("Sort")
    parts = [part.text for part in turn.find_elements("css selector", ".answer > .text > *")]
    assert parts[:2] == ["Sorting", "Use sorted now:"]
    assert parts[3] == "Done, 2 * 3 * 4."
    codes = [pre.get_property("textContent") for pre in turn.find_elements("css selector", "pre")]
    assert codes == ["def f(x):\n    return x\n\nf(1)", "open ```"]
    assert [s.text for s in turn.find_elements("css selector", ".answer strong")] == ["now"]
    assert turn.find_element("css selector", "figcaption span").text == "python"


def test_reasoning_is_folded_and_tool_calls_are_shown(page: Page) -> None:
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ""}}
    more = [{"index": 0, "function": {"arguments": piece}} for piece in ('{"city": ', '"Ulm"}')]
    deltas = [{"role": "assistant", "content": ""}, {"reasoning_content": "Let me "}, {"reasoning_content": "see."}]
    deltas += [{"tool_calls": [piece]} for piece in (call, *more)]
    page.backend.reply = lambda: stream(*deltas, finish_reason="tool_calls")
    turn = page.ask("Weather?")
    details = turn.find_element("css selector", "details.reasoning")
    assert details.get_attribute("open") is None
    details.find_element("css selector", "summary").click()
    assert details.find_element("css selector", ".text").text == "Let me see."
    assert turn.find_element("css selector", ".tools").text == 'weather\n{"city": "Ulm"}'
    assert turn.find_element("css selector", ".facts").text.startswith("calls tools · 7 tokens")
    page.ask("And now?")
    said = page.backend.requests[-1]["messages"][1]
    function = {"name": "weather", "arguments": '{"city": "Ulm"}'}
    assert said == {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
    }


def test_settings_go_into_the_request_and_the_conversation_goes_on(page: Page) -> None:
    page.find("#settings-button").click()
    values = {"system": "Be brief.", "temperature": "0.5", "top_p": "0.9", "max_tokens": "64", "seed": "7"}
    for name, value in {**values, "more": '{"stop": ["END"], "stream": false}'}.items():
        page.find(f"#{name}").send_keys(value)
    page.ask("One")
    page.ask("Two" + SHIFT + ENTER + SHIFT + "lines")
    request = page.backend.requests[1]
    assert {name: request[name] for name in ("temperature", "top_p", "max_tokens", "seed", "stop", "stream")} == {
        "temperature": 0.5,
        "top_p": 0.9,
        "max_tokens": 64,
        "seed": 7,
        "stop": ["END"],
        "stream": True,
    }
    assert request["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "One"},
        {"role": "assistant", "content": "Hello there."},
        {"role": "user", "content": "Two\nlines"},
    ]


def test_a_setting_that_makes_no_sense_is_shown_and_nothing_is_sent(page: Page) -> None:
    page.find("#prompt").send_keys("Hi")
    for name, value in (
        ("temperature", "-1"),
        ("top_p", "2"),
        ("max_tokens", "1.5"),
        ("more", "{oops"),
        ("more", "[1]"),
    ):
        page.find("#settings-button").click()
        field = page.find(f"#{name}")
        field.send_keys(value)
        page.find("#settings-button").click()
        assert not field.is_displayed()
        page.say("")
        page.until(field.is_displayed)
        assert page.driver.switch_to.active_element == field
        assert field.get_property("validationMessage")
        assert page.find("#prompt").get_property("value") == "Hi"
        field.clear()
        page.find("#settings-button").click()
    page.say("")
    page.until_answered()
    assert len(page.backend.requests) == 1


@pytest.mark.parametrize("by", ["button", "escape"])
def test_stopping_withdraws_the_request(page: Page, by: str) -> None:
    page.backend.reply = page.backend.endless
    page.say("Go on")
    page.until_text(".answer", "on and on")
    assert not page.backend.withdrawn.is_set()
    assert page.find("#send").text == "Stop"
    if by == "button":
        page.find("#send").click()
    else:
        page.find("#prompt").send_keys(ESCAPE)
    turn = page.until_answered()
    assert page.backend.withdrawn.wait(PATIENCE)
    assert turn.find_element("css selector", ".facts").text.startswith("stopped")
    assert page.find("#send").text == "Send"
    page.backend.reply = stream
    page.ask("More")
    assert page.backend.requests[-1]["messages"][1]["content"].startswith("on and on")


def test_trying_again_replaces_the_last_answer(page: Page) -> None:
    page.ask("One")
    page.ask("Two")
    page.backend.reply = lambda: stream({"content": "Another."})
    [retry] = [button for button in page.find_all(".retry") if button.is_displayed()]
    retry.click()
    page.until_text(".turn:last-child", "Another.")
    page.until_answered(2)
    assert page.backend.requests[2]["messages"] == page.backend.requests[1]["messages"]
    page.ask("Three")
    said = [m["content"] for m in page.backend.requests[-1]["messages"]]
    assert said == ["One", "Hello there.", "Two", "Another.", "Three"]


def test_clearing_begins_anew(page: Page) -> None:
    page.ask("One")
    page.find("#clear").click()
    assert page.find_all(".turn") == []
    page.find(".example").click()
    page.until_answered()
    assert [m["role"] for m in page.backend.requests[-1]["messages"]] == ["user"]
    page.backend.reply = page.backend.endless
    page.say("Go on")
    page.until_text(".turn:last-child .answer", "on and on")
    page.find("#clear").click()
    assert page.backend.withdrawn.wait(PATIENCE)
    assert page.find_all(".turn") == []
    assert not page.find("#clear").is_enabled()


def test_copying(page: Page) -> None:
    page.cdp("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    page.backend.reply = lambda: stream({"content": "See:\n```\nx = 1\n```"})
    turn = page.ask("Hi")
    read = "return navigator.clipboard.readText()"
    page.run("globalThis.setTimeout = () => 0")  # what a button says stays
    for label, text in (("Copy code", "x = 1"), ("Copy answer", "See:\n```\nx = 1\n```")):
        button = turn.find_element("css selector", f"[aria-label='{label}']")
        button.click()
        page.until(lambda button=button: button.text == "Copied")
        assert page.run(read) == text


REFUSALS = {
    "a bad field": (
        lambda: failure(400, "temperature must be at least 0", "temperature"),
        "temperature must be at least 0.",
    ),
    "too many": (
        lambda: failure(429, "128 requests are waiting", Retry_After="3"),
        "128 requests are waiting. Try again in 3 seconds.",
    ),
    "dead": (
        lambda: failure(503, "the engine has stopped", Retry_After="1"),
        "The engine has stopped. Try again in a second.",
    ),
    "no words": (lambda: Response(status_code=502), "The server answered 502 Bad Gateway."),
    "while streaming": (
        lambda: raw_stream(event({"error": {"message": "the grammar does not compile"}})),
        "The grammar does not compile.",
    ),
    "cut off": (
        lambda: stream(done=False),
        "The connection ended before the answer did. Is octavo serve still running?",
    ),
    "no JSON": (lambda: raw_stream("data: oops\n\n"), "The server sent something that is no JSON."),
}


def test_an_error_is_told_in_words_and_its_message_is_left_out(page: Page) -> None:
    told = {}
    for case, (reply, _) in REFUSALS.items():
        page.backend.reply = reply
        told[case] = page.ask("Hi").find_element("css selector", "[role='alert']").text
    left_out = " This message is left out of the conversation."
    assert told == {case: words + left_out for case, (_, words) in REFUSALS.items()}
    page.backend.reply = stream
    page.ask("Again")
    assert page.backend.requests[-1]["messages"] == [{"role": "user", "content": "Again"}]


def test_an_answer_that_breaks_off_stays_in_the_conversation(page: Page) -> None:
    broken = [event({"choices": [{"index": 0, "delta": {"content": "Half"}}]}), event({"error": {"message": "gone"}})]
    page.backend.reply = lambda: raw_stream(*broken)
    turn = page.ask("Hi")
    assert turn.find_element("css selector", ".answer > .text").text == "Half"
    assert turn.find_element("css selector", "[role='alert']").text == "Gone."
    page.backend.reply = stream
    turn = page.ask("Again")
    assert page.backend.requests[-1]["messages"][1] == {"role": "assistant", "content": "Half"}
    assert turn.find_element("css selector", ".silent").text == "The model ended without a word."


def test_the_key_is_asked_for_and_kept_for_the_session(page: Page) -> None:
    page.backend.key = "secret"
    page.open()
    dialog = page.find("#key-dialog")
    page.until(dialog.is_displayed)
    page.find("#key").send_keys("wrong", ENTER)
    page.until_text("#key-message", "does not accept")
    page.until(dialog.is_displayed)
    page.find("#key").send_keys("secret", ENTER)
    page.until_text("#pulse", "Idle")
    assert not dialog.is_displayed()
    page.ask("Hi")
    assert page.run("return [sessionStorage.length, localStorage.length, document.cookie]") == [1, 0, ""]
    page.open()
    page.until_text("#pulse", "Idle")
    assert not page.find("#key-dialog").is_displayed()
    assert page.find("#key-button").is_displayed()


def test_without_the_key_nothing_is_asked_and_the_chat_asks_again(page: Page) -> None:
    page.backend.key = "secret"
    page.open()
    page.until(page.find("#key-dialog").is_displayed)
    page.find("#key-cancel").click()
    page.until_text("#engine-problem", "The server asks for an API key.")
    asked = page.backend.num_polls
    page.say("Hi")
    page.until(page.find("#key-dialog").is_displayed)
    assert page.backend.num_polls == asked
    page.find("#key").send_keys("secret", ENTER)
    turn = page.until_answered()
    assert turn.find_element("css selector", ".answer > .text").text == "Hello there."
    page.until_text("#pulse", "Idle")
    assert not page.find("#engine-problem").is_displayed()


def test_the_engine_is_shown(page: Page) -> None:
    status = page.backend.status
    status["blocks"] = [blocks("uuss" + "c" * 12 + "." * 48), blocks("u" + "." * 15, per_cell=2)]
    status["totals"] |= {"prefix_queries": 200, "prefix_hits": 50, "draft_tokens": 8, "accepted_tokens": 6}
    status["plugins"].append(plugin("flash", "needs a GPU"))
    status["sequences"] = [  # last, for they are what the test waits for
        sequence(1),
        sequence(2, computed=45, prompt_tokens=90, tokens=90, preemptions=2),
        sequence(3, "waiting", computed=0, blocks=0),
        sequence(4, "preparing", computed=0, blocks=0),
    ]
    page.until_text("#pulse", "2 running")
    tiles = {dt.text: dt.find_element("xpath", "following-sibling::dd").text for dt in page.find_all(".tiles dt")}
    assert tiles == {
        "Running": "2",
        "Waiting": "2",
        "KV cache": "6.3%",
        "Prefix hits": "25.0%",
        "Drafts accepted": "75.0%",
        "Finished": "0",
    }
    rows = [[cell.text for cell in row.find_elements("css selector", "th, td")] for row in page.find_all("tbody tr")]
    assert rows == [
        ["…000001", "running", "90", "120", "8", "–"],
        ["…000002", "running", "45 / 90", "90", "8", "2×"],
        ["…000003", "waiting", "0 / 90", "120", "0", "–"],
        ["…000004", "preparing", "0 / 90", "120", "0", "–"],
    ]
    assert [bar.get_property("value") for bar in page.find_all("progress")] == [90, 45, 0, 0]
    assert [title.text for title in page.find_all(".block-map h4")] == [
        "Group 0 · 64 blocks of 16 tokens",
        "Group 1 · 32 blocks of 16 tokens · a cell is 2 blocks",
    ]
    assert "2 shared, 2 used by one sequence, 12 free with cached content, 48 free" in (
        page.find("canvas").get_attribute("aria-label")
    )
    assert page.find("#plugins li").text == "flash\noctavo-flash 0.1.0\nbroken\nneeds a GPU"
    assert "cpu, 2 threads" in page.find("#description").text
    status["sequences"] = []
    page.until_text("#sequences", "None: the engine is idle.")


def test_the_map_paints_each_cell_in_its_colour(page: Page) -> None:
    page.backend.status["blocks"] = [blocks("suc." * 25)]
    page.until(lambda: "100 blocks" in page.find(".block-map h4").text)
    colours = """
        const canvas = document.querySelector("canvas"), style = getComputedStyle(canvas);
        const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, 1).data;
        const hex = (i) => "#" + [0, 1, 2].map((c) => pixels[4 * i + c].toString(16).padStart(2, "0")).join("");
        return [[0, 13, 26, 39, 52].map(hex),
                ["shared", "used", "cached", "free"].map((name) => style.getPropertyValue("--cell-" + name))]"""
    painted, wanted = page.run(colours)
    assert painted == [*wanted, wanted[0]]


def test_speed_is_the_difference_between_two_readings(page: Page) -> None:
    page.until_text("#pulse", "Idle")
    page.backend.status["totals"] |= {"prompt_tokens": 1500, "generation_tokens": 40}
    page.until(lambda: "peak" in page.find(".plot").text)
    assert [p.text for p in page.find_all(".plot .peak")] == ["peak 40.0", "peak 1,500"]  # a poll is one second there
    # another server: its totals begin anew, and nothing goes below zero
    page.backend.status = idle_status()
    page.backend.status["uptime"] = 0.0
    page.until(lambda: page.find(".plot .peak").text == "")


def test_a_server_that_is_away_is_told_and_found_again(page: Page) -> None:
    page.until_text("#pulse", "Idle")
    whole = page.backend.status
    page.backend.status = {"uptime": 0.0}  # an answer that makes no sense
    page.until_text("#pulse", "No connection")
    page.backend.status = whole
    page.until_text("#pulse", "Idle")
    assert not page.find("#engine-problem").is_displayed()


def test_a_hidden_page_does_not_ask(page: Page) -> None:
    def asks_no_more() -> bool:
        asked = page.backend.num_polls  # one more may be on its way
        time.sleep(1.5)  # a page that is seen asks once a second
        return page.backend.num_polls == asked

    page.until_text("#pulse", "Idle")
    shown = page.driver.current_window_handle
    page.driver.switch_to.new_window("tab")
    try:
        page.until(lambda: page.run("return document.visibilityState") == "visible")
        page.until(asks_no_more)
        asked = page.backend.num_polls
    finally:
        page.driver.close()
        page.driver.switch_to.window(shown)
    page.until(lambda: page.backend.num_polls > asked)


def test_everything_works_by_keyboard(page: Page) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    def press(*keys: str) -> str:
        ActionChains(page.driver).send_keys(*keys).perform()
        focused = page.driver.switch_to.active_element
        assert page.run("return getComputedStyle(arguments[0].closest('.box') ?? arguments[0]).outlineStyle", focused)
        return focused.get_attribute("id") or focused.text

    def until_focused(name: str, most: int = 40) -> None:
        assert any(press(Keys.TAB) == name for _ in range(most)), f"Tab does not reach {name}"

    assert page.driver.switch_to.active_element == page.find("#prompt")
    page.backend.reply = page.backend.endless
    assert press("Go on", Keys.ENTER) == "prompt"
    page.until_text(".answer", "on and on")
    until_focused("send")
    press(Keys.ENTER)
    page.until_answered()
    page.backend.reply = stream
    until_focused("engine")
    until_focused("conversation")
    until_focused("Copy")
    until_focused("Retry")
    assert press(Keys.SPACE) == "prompt"
    page.until(lambda: len(page.backend.requests) == 2)
    page.until_answered()
    until_focused("settings-button")
    press(Keys.ENTER)
    assert page.find("#settings").is_displayed()
    until_focused("system")
    until_focused("clear")
    press(Keys.ENTER)
    assert page.find_all(".turn") == []


def test_each_control_and_picture_has_a_name(page: Page) -> None:
    page.find("#settings-button").click()
    page.backend.reply = lambda: stream({"reasoning_content": "Hm."}, {"content": "```\nx\n```"})
    page.ask("Hi")
    page.until_text("#pulse", "Idle")
    named = page.find_all(
        "button, input, textarea, canvas, svg[role], pre, [tabindex], progress, main section, aside, nav"
    )
    assert len(named) > 25
    assert [each.get_attribute("outerHTML") for each in named if each.is_displayed() and not each.accessible_name] == []
    assert page.find("#conversation").aria_role == "log"
    assert page.find("#conversation").get_attribute("aria-live") == "polite"


def test_nothing_is_wider_than_the_screen(page: Page) -> None:
    page.backend.status["sequences"] = [sequence(number, prompt_tokens=123_456) for number in range(1, 9)]
    page.backend.status["model"] = "A-Model-With-A-Name-That-Is-Rather-Long-And-Has-No-Space-In-It-Instruct-GGUF"
    page.until_text("#pulse", "8 running")
    word = "x" * 150
    page.backend.reply = lambda: stream({"content": f"{word}\n\n```\n{word}\n```\n`{word}`"})
    page.ask(word)
    page.find("#settings-button").click()
    too_wide = """return [...document.querySelectorAll("html, body, body > *, main > *, main > * > :not(.unseen)")]
        .filter((each) => each.checkVisibility() && each.scrollWidth > each.clientWidth)
        .map((each) => each.id || each.tagName)"""
    for width, view in [
        (320, "chat"),
        (320, "engine"),
        (390, "chat"),
        (390, "engine"),
        (699, "chat"),
        (700, ""),
        (1024, ""),
    ]:
        page.resize(width, 844)
        page.until(lambda width=width: page.run("return innerWidth") == width)
        if view:
            page.find(f".views [data-view='{view}']").click()
        assert page.find("#chat").is_displayed() == (view != "engine")
        assert page.find("#engine").is_displayed() == (view != "chat")
        assert page.run(too_wide) == [], (width, view)


def test_a_scheme_and_less_motion_are_respected(page: Page) -> None:
    page.backend.reply = page.backend.endless
    page.say("Go on")
    page.until_text(".answer", "on and on")
    look = """const cursor = getComputedStyle(document.querySelector(".answer > .text > p:last-child"), "::after");
        return [getComputedStyle(document.body).backgroundColor, cursor.animationName]"""
    seen = []
    for scheme, motion in (("light", "no-preference"), ("dark", "reduce")):
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": motion},
        ]
        page.cdp("Emulation.setEmulatedMedia", features=features)
        seen.append(page.run(look))
    page.cdp("Emulation.setEmulatedMedia", features=[])
    assert seen == [["rgb(244, 245, 245)", "blink"], ["rgb(18, 21, 23)", "none"]]


def test_a_model_that_is_being_loaded_is_waited_for(page: Page) -> None:
    page.until_text("#pulse", "Idle")
    page.backend.unready = "the model is being loaded"
    page.until_text("#pulse", "Not ready")
    assert page.find("#engine-problem").text == "The model is being loaded. Try again in a second."
    page.backend.unready = None
    page.until_text("#pulse", "Idle")
