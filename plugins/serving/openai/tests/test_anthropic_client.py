"""Anthropic's own client against `/v1/messages`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

anthropic = pytest.importorskip("anthropic")
pydantic = pytest.importorskip("pydantic")


class Weather(pydantic.BaseModel):
    city: str


@pytest.fixture(scope="module")
def messages(server) -> Iterator[Any]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client.messages


@pytest.fixture
def model(server) -> str:
    return server.service.model_names[0]


def say(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"<say>{text}</say>"}]


CLOCK = {"name": "clock", "input_schema": {"type": "object", "properties": {"zone": {"type": "string"}}}}


def test_create(messages, model: str) -> None:
    answer = messages.create(model=model, max_tokens=99, messages=say("(hm)Hello."), system="Be brief.")
    thinking, text = answer.content
    assert (thinking.thinking, text.text) == ("hm", "Hello.")
    assert (answer.stop_reason, answer.usage.output_tokens) == ("end_turn", 11)
    stopped = messages.create(model=model, max_tokens=99, messages=say("Hello."), stop_sequences=["lo"])
    assert (stopped.content[0].text, stopped.stop_reason, stopped.stop_sequence) == ("Hel", "stop_sequence", "lo")


def test_raw_stream(messages, model: str) -> None:
    events = list(messages.create(model=model, max_tokens=99, messages=say("Hello."), stream=True))
    assert "".join(e.delta.text for e in events if e.type == "content_block_delta") == "Hello."
    assert [events[0].type, events[-2].type, events[-1].type] == ["message_start", "message_delta", "message_stop"]


@pytest.mark.parametrize(
    "said",
    [
        '(hm)It is <<clock|{"zone": "é\\n", "more": [1, null]}>> now <<clock|{}>>',
        'So <<clock|{"zone": Oslo}>>',
        "So <<clock|",
        "",
    ],
)
def test_stream(messages, model: str, said: str) -> None:
    body = {"model": model, "max_tokens": 500, "messages": say(said), "tools": [CLOCK]}
    whole = messages.create(**body)
    with messages.stream(**body) as stream:
        texts = "".join(stream.text_stream)
        final = stream.get_final_message()
    ignored = {"id", "parsed_output", "usage"}
    told = [[block.model_dump(exclude=ignored) for block in message.content] for message in (whole, final)]
    assert told[0] == told[1]
    assert texts == "".join(block.text for block in whole.content if block.type == "text")
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)


def test_a_conversation_with_tools(messages, model: str) -> None:
    history: list[Any] = say('(hm)I look: <<clock|{"zone": "Oslo"}>>')
    answer = messages.create(model=model, max_tokens=99, messages=history, tools=[CLOCK])
    assert answer.stop_reason == "tool_use"
    (call,) = [block for block in answer.content if block.type == "tool_use"]
    assert (call.name, call.input) == ("clock", {"zone": "Oslo"})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "noon"}
    history += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    history += say("It is noon.")
    last = messages.create(model=model, max_tokens=99, messages=history, tools=[CLOCK])
    assert (last.content[0].text, last.stop_reason) == ("It is noon.", "end_turn")
    forced = messages.create(
        model=model,
        max_tokens=99,
        messages=say('{"zone":"Bern"}'),
        tools=[CLOCK],
        tool_choice={"type": "tool", "name": "clock"},
    )
    assert (forced.content[0].input, forced.stop_reason) == ({"zone": "Bern"}, "tool_use")


def test_parse(messages, model: str) -> None:
    body = {"model": model, "max_tokens": 99, "messages": say('{"city":"Rome"}'), "output_format": Weather}
    assert messages.parse(**body).parsed_output == Weather(city="Rome")
    with messages.stream(**body) as stream:
        assert stream.get_final_message().parsed_output == Weather(city="Rome")


def test_count_tokens(messages, model: str) -> None:
    body = {"model": model, "messages": say("Hello."), "tools": [CLOCK], "system": "Be brief."}
    usage = messages.create(**body, max_tokens=9).usage
    assert messages.count_tokens(**body).input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def test_errors_are_the_clients_own(messages, model: str, start) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        messages.create(model=model, max_tokens=0, messages=say("x"))
    assert caught.value.type == "invalid_request_error"
    assert caught.value.api_message.startswith("max_tokens: ")
    with pytest.raises(anthropic.NotFoundError):
        messages.create(model="claude", max_tokens=9, messages=say("x"))
    url = start(api_key=("secret",)).url
    for credentials in ({"api_key": "secret"}, {"auth_token": "secret"}):
        with anthropic.Anthropic(base_url=url, max_retries=0, **credentials) as client:
            assert client.messages.create(model=model, max_tokens=9, messages=say("x")).content[0].text == "x"
    with (
        anthropic.Anthropic(base_url=url, max_retries=0, api_key="wrong") as client,
        pytest.raises(anthropic.AuthenticationError),
    ):
        client.messages.create(model=model, max_tokens=9, messages=say("x"))
