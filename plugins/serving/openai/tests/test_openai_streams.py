"""A stream says what the whole answer says, for every option; what its chunks look like."""

from __future__ import annotations

from typing import Any

import pytest

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
NAMED = {"type": "function", "function": {"name": "get_weather"}}
LISTED = '[{"name":"get_weather","arguments":{"city":"Ås\\n"}},{"name":"clock","arguments":{}}]'

COMPLETIONS = {
    "plain": {},
    "several": {"n": 3},
    "prompts": {"prompt": ["<say>é😀</say>", "<say>b</say>"], "n": 2},
    "echo": {"echo": True, "n": 2},
    "echo logprobs": {"echo": True, "logprobs": 2},
    "logprobs": {"logprobs": 0},
    "stop": {"stop": ["cd", "ef"]},
    "stop kept": {"stop": ["cd"], "include_stop_str_in_output": True},
    "cut": {"max_tokens": 2},
    "empty": {"prompt": "nothing to say"},
    "ids": {"return_token_ids": True, "prompt_logprobs": 1, "echo": True},
    "special": {"skip_special_tokens": False, "ignore_eos": True, "max_tokens": 12, "logprobs": 1},
    "scoring": {"echo": True, "max_tokens": 0, "logprobs": 1},
    "sampled": {"temperature": 5, "seed": 7, "max_tokens": 30, "logprobs": 1, "ignore_eos": True},
}
CHATS = {
    "plain": {},
    "several": {"n": 3},
    "logprobs": {"logprobs": True, "top_logprobs": 2},
    "ids": {"return_token_ids": True, "prompt_logprobs": 0},
    "reasoning": {"say": "(hm, é)yes"},
    "only reasoning": {"say": "(hm, é and no end"},
    "tools": {"say": 'so <<get_weather|{"city": "Å"}>> and <<clock|{}>>.', "tools": True},
    "one tool": {"say": "<<clock|{}>><<clock|{}>>", "tools": True, "parallel_tool_calls": False},
    "half a tool": {"say": 'so <<get_weather|{"city"', "tools": True},
    "no tool": {"say": "so <", "tools": True},
    "required": {"say": LISTED, "tools": True, "tool_choice": "required", "n": 2},
    "required, cut": {"say": LISTED, "tools": True, "tool_choice": "required", "max_tokens": 40},
    "named": {"say": '{"city":"\\u00e9"}', "tools": True, "tool_choice": NAMED},
    "either": {"say": LISTED, "tools": True, "response_format": {"type": "json_object"}},
    "or": {"say": ' {"a": [1]}', "tools": True, "response_format": {"type": "json_object"}},
    "stop": {"stop": ["d"]},
    "empty": {"say": ""},
}


def merged(first: Any, second: Any) -> Any:
    """Two pieces joined: texts and lists are appended, calls of tools by their index, other values stay."""
    if isinstance(first, dict) and isinstance(second, dict):
        return {
            key: merged(first.get(key), second.get(key)) for key in [*first, *(k for k in second if k not in first)]
        }
    if isinstance(first, list) and isinstance(second, list):
        pieces = {item["index"]: item for item in first if isinstance(item, dict) and "index" in item}
        if not (second and isinstance(second[0], dict) and "index" in second[0]):
            return first + second
        for item in second:
            pieces[item["index"]] = merged({**pieces.get(item["index"], {}), "index": None}, item)
        return list(pieces.values())
    if isinstance(first, str) and isinstance(second, str):
        return first + second
    return second if first is None else first


def joined(events: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """The choices that a stream's chunks make, by index."""
    choices: dict[int, dict[str, Any]] = {}
    for event in events:
        for piece in event["choices"]:
            assert choices.get(piece["index"], {}).get("finish_reason") is None, "it has ended before"
            index = piece.pop("index")
            choices[index] = merged(choices.get(index, {}), piece)
    return choices


@pytest.mark.parametrize("name", COMPLETIONS)
def test_completions(server, name: str) -> None:
    body = {"prompt": "a é <say>ab cd ef</say>", "temperature": 0, "max_tokens": 50, **COMPLETIONS[name]}
    whole = server.post(TEXT, **body).json()
    events = server.events(TEXT, **body, stream_options={"include_usage": True})
    assert joined(events) == {choice.pop("index"): choice for choice in whole["choices"]}
    usage = [event["usage"] for event in events]
    assert usage[:-1] == [None] * (len(events) - 1)
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [usage[-1][count] for count in counts] == [whole["usage"][count] for count in counts]
    assert events[-1]["choices"] == []
    assert {event["id"] for event in events} == {events[0]["id"]} != {whole["id"]}


@pytest.mark.parametrize("name", CHATS)
def test_chats(server, weather, name: str) -> None:
    options = dict(CHATS[name])
    messages = [{"role": "user", "content": f"<say>{options.pop('say', 'ab cd')}</say>"}]
    if options.pop("tools", False):
        options["tools"] = weather
    body = {"messages": messages, "temperature": 0, **options}
    whole = server.post(CHAT, **body).json()
    events = server.events(CHAT, **body, stream_options={"include_usage": True})
    streamed = joined(events)
    assert len(streamed) == len(whole["choices"])
    for choice in whole["choices"]:
        choice["message"].pop("refusal")
        made = streamed[choice.pop("index")]
        made["message"] = made.pop("delta")
        for calls in (made["message"].get("tool_calls", []), choice["message"].get("tool_calls", [])):
            for call in calls:
                assert call.pop("id").startswith("call_")
                call.pop("index", None)
        if choice["message"]["content"] is None:
            assert made["message"].pop("content") == ""
            choice["message"].pop("content")
        assert made == choice
    for usage in (events[-1]["usage"], whole["usage"]):
        usage.pop("prompt_tokens_details")  # the second request finds the first one's prompt in the cache
    assert events[-1]["usage"] == whole["usage"]
    for field in ("prompt_token_ids", "prompt_logprobs"):
        assert [event[field] for event in events if field in event] == [whole[f] for f in (field,) if f in whole]


def test_chunks_of_a_chat(server) -> None:
    first, *rest = server.events(CHAT, messages=[{"role": "user", "content": "<say>ab</say>"}], n=1)
    (begun,) = first["choices"]
    assert begun["delta"] == {"role": "assistant", "content": ""}
    assert begun["finish_reason"] is None
    assert all("role" not in event["choices"][0]["delta"] for event in rest)
    *before, last = (event["choices"][0]["finish_reason"] for event in rest)
    assert last == "stop"
    assert all(reason is None for reason in before)  # there may be none: a slow reader gets all in one chunk
    assert {event["object"] for event in rest} == {"chat.completion.chunk"}
    assert all("usage" not in event for event in [first, *rest])


def test_pieces_of_a_call(server, weather) -> None:
    body = {"messages": [{"role": "user", "content": "<say><<clock|{}>></say>"}], "tools": weather}
    pieces = [
        call for event in server.events(CHAT, **body) for call in event["choices"][0]["delta"].get("tool_calls", [])
    ]
    first, *rest = pieces
    assert first.keys() == {"index", "id", "type", "function"}
    assert first["function"]["name"] == "clock"
    assert all(piece.keys() == {"index", "function"} and "name" not in piece["function"] for piece in rest)


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("asked", ["absent", None, {}, {"include_usage": False}, {"include_usage": None}])
def test_usage_comes_only_where_it_was_asked_for(server, path: str, asked: Any) -> None:
    body: dict[str, Any] = (
        {"prompt": "<say>ab</say>"} if path == TEXT else {"messages": [{"role": "user", "content": "x"}]}
    )
    if asked != "absent":
        body["stream_options"] = asked
    events = server.events(path, **body)
    assert all("usage" not in event and event["choices"] for event in events)


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_continuous_usage_rises(server, path: str) -> None:
    say = f"<say>{'ab' * 250}</say>"
    body: dict[str, Any] = {"prompt": say} if path == TEXT else {"messages": [{"role": "user", "content": say}]}
    body["max_tokens"] = 1000
    options = {"include_usage": True, "continuous_usage_stats": True}
    num_tokens, counts = 0, [0]
    for event in server.events(path, **body, stream_options=options, return_token_ids=True):
        added = sum(len(choice.get("token_ids") or ()) for choice in event["choices"])
        num_tokens += added
        counts.append(event["usage"]["completion_tokens"])
        assert counts[-1] == num_tokens or not added
    assert counts == sorted(counts)
    assert counts[-1] == num_tokens == 501


def test_usage_in_every_stream(start) -> None:
    server = start(usage_in_streams=True)
    assert server.events(TEXT, prompt="<say>a</say>")[-1]["usage"]["completion_tokens"] == 2


def test_many_streams_do_not_mix(server) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def ask(i: int) -> str:
        events = server.events(TEXT, prompt=f"<say>{i} is {i} and nothing else than {i}</say>", max_tokens=99)
        return "".join(event["choices"][0]["text"] for event in events)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(40))) == [f"{i} is {i} and nothing else than {i}" for i in range(40)]
