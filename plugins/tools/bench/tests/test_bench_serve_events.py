"""Server-sent events however they are cut, and what is read of chunks."""

from __future__ import annotations

import random

import msgspec
import pytest

from octavo_bench.serve.events import Event, EventParser, decode_chunk, error_message

STREAM = (
    ': ping\n\ndata: {"a": 1}\n\ndata:no space\r\n\r\nevent: error\ndata: one\ndata: two\nid: 3\n\n'
    "retry: 5\n\nerror: {}\n\ndata:  é€😀\n\ndata: [DONE]\n\ndata: never ended"
).encode()
EVENTS = [
    Event(b"message", b'{"a": 1}'),
    Event(b"message", b"no space"),
    Event(b"error", b"one\ntwo"),
    Event(b"error", b"{}"),
    Event(b"message", " é€😀".encode()),
    Event(b"message", b"[DONE]"),
]


def test_events_do_not_depend_on_how_the_bytes_are_cut() -> None:
    assert EventParser().feed(STREAM) == EVENTS
    whole = EventParser()
    assert [event for i in range(len(STREAM)) for event in whole.feed(STREAM[i : i + 1])] == EVENTS
    draw = random.Random(0)
    for _ in range(50):
        cuts = sorted(draw.randrange(len(STREAM)) for _ in range(draw.randrange(8)))
        parser = EventParser()
        parts = [STREAM[a:b] for a, b in zip([0, *cuts], [*cuts, len(STREAM)], strict=True)]
        assert [event for part in parts for event in parser.feed(part)] == EVENTS


@pytest.mark.parametrize(
    ("choice", "has_text"),
    [
        ('{"text": "a"}', True),
        ('{"text": ""}', False),
        ('{"delta": {"role": "assistant", "content": null}}', False),
        ('{"delta": {"content": "a"}}', True),
        ('{"delta": {"reasoning": "a"}}', True),
        ('{"delta": {"reasoning_content": "a"}}', True),
        ('{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}}', True),
        ('{"delta": {}, "finish_reason": "stop", "logprobs": null, "unknown": [1]}', False),
    ],
)
def test_what_counts_as_text(choice: str, has_text: bool) -> None:
    (found,) = decode_chunk(b'{"id": "x", "choices": [%s], "usage": null}' % choice.encode()).choices or ()
    assert found.has_text is has_text


def test_usage_and_errors_of_chunks() -> None:
    chunk = decode_chunk(b'{"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}}')
    assert chunk.usage is not None
    assert (chunk.usage.prompt_tokens, chunk.usage.completion_tokens) == (3, 5)
    assert decode_chunk(b'{"error": "x"}').error == "x"
    for wrong in (b"", b"{", b"[]", b'{"choices": 3}', b'{"usage": {"completion_tokens": "5"}}'):
        with pytest.raises(msgspec.DecodeError):
            decode_chunk(wrong)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "no such model", "code": 404}}', "no such model"),
        (b'{"object": "error", "message": "too long"}', "too long"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b'{"error": "busy"}', "busy"),
        (b"<html>\n  502 </html>", "<html> 502 </html>"),
        (b"\xff" * 1000, "\ufffd" * 300),
        (b"[1, 2]", "[1, 2]"),
        (b"", ""),
    ],
)
def test_what_servers_say_of_errors(body: bytes, message: str) -> None:
    assert error_message(body) == message
