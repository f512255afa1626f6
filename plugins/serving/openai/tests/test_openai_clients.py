"""The official client of OpenAI against the server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

openai = pytest.importorskip("openai")
pydantic = pytest.importorskip("pydantic")


@pytest.fixture(scope="module")
def client(server) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def say(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"<say>{text}</say>"}]


def test_models_and_completions(client, server) -> None:
    assert [model.id for model in client.models.list()] == list(server.service.model_names)
    model = client.models.retrieve(server.service.model_names[0]).id
    answer = client.completions.create(model=model, prompt="<say>ok</say>", logprobs=1, echo=True)
    assert answer.choices[0].text == "<say>ok</say>ok"
    assert answer.choices[0].logprobs.tokens[-1] == "<eos>"
    stream = client.completions.create(model=model, prompt="<say>ok</say>", stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == "ok"


def test_chat(client, server) -> None:
    model = server.service.model_names[0]
    answer = client.chat.completions.create(model=model, messages=say("hello"), logprobs=True, top_logprobs=1)
    assert answer.choices[0].message.content == "hello"
    assert answer.choices[0].logprobs.content[0].token == "h"
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    with client.chat.completions.stream(
        model=model, messages=say("hello"), stream_options={"include_usage": True}
    ) as stream:
        assert "".join(event.delta for event in stream if event.type == "content.delta") == "hello"
        assert stream.get_final_completion().usage.completion_tokens == 6


def test_tools(client, server, weather) -> None:
    model = server.service.model_names[0]
    messages = say('<<get_weather|{"city": "Oslo"}>><<clock|{}>>')
    whole = client.chat.completions.create(model=model, messages=messages, tools=weather).choices[0]
    with client.chat.completions.stream(model=model, messages=messages, tools=weather) as stream:
        streamed = stream.get_final_completion().choices[0]
    for choice in (whole, streamed):
        assert choice.finish_reason == "tool_calls"
        assert [(call.function.name, call.function.arguments) for call in choice.message.tool_calls] == [
            ("get_weather", '{"city": "Oslo"}'),
            ("clock", "{}"),
        ]
    results = [{"role": "tool", "tool_call_id": call.id, "content": "x"} for call in whole.message.tool_calls]
    history = [*messages, whole.message, *results, *say("done")]
    assert client.chat.completions.create(model=model, messages=history).choices[0].message.content == "done"


def test_parsed_answers(client, server) -> None:
    class Answer(pydantic.BaseModel):
        city: str

    model = server.service.model_names[0]
    answer = client.chat.completions.parse(model=model, messages=say('{"city":"Rome"}'), response_format=Answer)
    assert answer.choices[0].message.parsed == Answer(city="Rome")
    tool = openai.pydantic_function_tool(Answer)
    listed = say('[{"name":"Answer","arguments":{"city":"Bern"}}]')
    called = client.chat.completions.parse(model=model, messages=listed, tools=[tool], tool_choice="required")
    (call,) = called.choices[0].message.tool_calls
    assert call.function.parsed_arguments == Answer(city="Bern")


def test_errors_are_the_clients_own(client, server) -> None:
    model = server.service.model_names[0]
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=model, messages=say("x"), temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-0", messages=say("x"))
    assert missing.value.code == "model_not_found"
    long = {"prompt": "<say>never ending</say>", "max_tokens": 3000, "extra_body": {"ignore_eos": True}}
    with pytest.raises(openai.APITimeoutError):
        client.completions.create(model=model, n=8, timeout=0.3, **long)
    server.until_idle(seconds=2)
