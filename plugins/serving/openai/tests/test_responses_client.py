"""OpenAI's own client against `/v1/responses`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

openai = pytest.importorskip("openai")
pydantic = pytest.importorskip("pydantic")


class Weather(pydantic.BaseModel):
    city: str


@pytest.fixture(scope="module")
def responses(server) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client.responses


@pytest.fixture
def model(server) -> str:
    return server.service.model_names[0]


CLOCK = {"type": "function", "name": "clock", "parameters": {"type": "object", "properties": {}}, "strict": False}


def test_create(responses, model: str) -> None:
    answer = responses.create(
        model=model, input="<say>(hm)Hello.</say>", include=["message.output_text.logprobs"], top_logprobs=1
    )
    assert answer.output_text == "Hello."
    reasoning, message = answer.output
    assert reasoning.content[0].text == "hm"
    assert message.content[0].logprobs[0].top_logprobs[0].token == "("
    assert (answer.status, answer.usage.output_tokens_details.reasoning_tokens) == ("completed", 2)
    cut = responses.create(model=model, input="<say>Hello.</say>", max_output_tokens=2)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def test_raw_stream(responses, model: str) -> None:
    events = list(responses.create(model=model, input="<say>(hm)Hello.</say>", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == "Hello."
    assert "".join(e.delta for e in events if e.type == "response.reasoning_text.delta") == "hm"
    assert events[-1].response.output_text == "Hello."


def test_stream(responses, model: str) -> None:
    said = "(hm)It is <<clock|{}>> now"
    with responses.stream(model=model, input=f"<say>{said}</say>", tools=[CLOCK]) as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert snapshots[-1] == " now"
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call", "message"]
    assert final.output_text == "It is  now"


def test_parse(responses, model: str) -> None:
    answer = responses.parse(model=model, input='<say>{"city":"Rome"}</say>', text_format=Weather)
    assert answer.output_parsed == Weather(city="Rome")
    with responses.stream(model=model, input='<say>{"city":"Rome"}</say>', text_format=Weather) as stream:
        assert stream.get_final_response().output_parsed == Weather(city="Rome")
    tool = openai.pydantic_function_tool(Weather)
    flat = {"type": "function", **tool["function"]}
    listed = '<say>[{"name":"Weather","arguments":{"city":"Bern"}}]</say>'
    called = responses.parse(model=model, input=listed, tools=[flat], tool_choice="required")
    assert called.output[0].parsed_arguments == {"city": "Bern"}


def test_a_conversation_with_tools(responses, model: str) -> None:
    items: list[Any] = [{"role": "user", "content": "<say>(hm)I look: <<clock|{}>></say>"}]
    answer = responses.create(model=model, input=items, tools=[CLOCK])
    items += answer.output
    (call,) = [item for item in answer.output if item.type == "function_call"]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "noon"})
    items.append({"role": "user", "content": "<say>It is noon.</say>"})
    assert responses.create(model=model, input=items, tools=[CLOCK]).output_text == "It is noon."


def test_errors_are_the_clients_own(responses, model: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        responses.create(model=model, input="x", previous_response_id="resp_1")
    assert caught.value.param == "previous_response_id"
    with pytest.raises(openai.NotFoundError):
        responses.create(model="gpt-0", input="x")
