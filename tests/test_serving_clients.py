"""Clients that nobody here wrote, against `octavo serve` with the packaged model, as it comes and unchanged."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from pydantic import BaseModel
from serving_process import ServerProcess

MODEL = "SmolLM2-135M-Instruct"
CAPITAL = [{"role": "user", "content": "What is the capital of France? Answer with one word."}]
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["celsius", "fahrenheit"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}


class City(BaseModel):
    name: str
    is_capital: bool


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server that an operator started."""
    command = [sys.executable, "-m", "octavo", "serve", "--port", "0", "--api-key", "sesame", "--no-log-requests"]
    options = ["--dtype", "float32", "--scheduler.max-num-seqs", "16", "--cache.memory", "512MiB"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = next((m for line in process.stdout if (m := re.search(r"http://\S+", line))), None)
        assert found is not None, "the server did not start"
        yield found[0]
        process.terminate()
        assert process.wait(20) == 0


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="sesame", max_retries=0, timeout=120) as made:
        yield made


def test_openai_models_and_errors(client: openai.OpenAI, url: str) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "octavo"
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.chat.completions.create(model="gpt-4", messages=CAPITAL)
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=CAPITAL, temperature=-1)
    assert caught.value.param == "temperature"
    with (
        openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()


def test_openai_completions(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": MODEL, "max_tokens": 8, "temperature": 0, "logprobs": 2}
    whole = client.completions.create(prompt=["The capital of France is", "Water boils at"], **options)
    assert [choice.index for choice in whole.choices] == [0, 1]
    assert whole.choices[0].text.startswith(" Paris")
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 16
    with client.completions.create(prompt="The capital of France is", stream=True, **options) as stream:
        chunks = list(stream)
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert chunks[-1].choices[0].finish_reason == "length"


def test_openai_chat(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": MODEL, "messages": CAPITAL, "temperature": 0, "max_completion_tokens": 16}
    whole = client.chat.completions.create(**options, logprobs=True, top_logprobs=3)
    said = whole.choices[0].message.content
    assert said is not None
    assert "Paris" in said
    assert whole.choices[0].logprobs is not None
    assert "".join(token.token for token in whole.choices[0].logprobs.content or []).startswith(said[:5])
    usage = {"include_usage": True}
    with client.chat.completions.create(**options, stream=True, stream_options=usage) as stream:
        chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == said
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    with client.chat.completions.stream(**options) as events:
        assert events.get_final_completion().choices[0].message.content == said


def test_openai_structured_outputs(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "Describe Paris as JSON."}]
    parsed = client.chat.completions.parse(
        model=MODEL, messages=messages, response_format=City, temperature=0, max_tokens=100
    )
    assert isinstance(parsed.choices[0].message.parsed, City)
    anything = client.chat.completions.create(
        model=MODEL, messages=messages, response_format={"type": "json_object"}, temperature=0, max_tokens=200
    )
    if anything.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(anything.choices[0].message.content or ""), dict)
    wrong: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "str"}}}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=messages, response_format=wrong)
    assert caught.value.param == "response_format"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_openai_tools(client: openai.OpenAI, choice: Any) -> None:
    messages: list[Any] = [{"role": "user", "content": "How is the weather in Oslo?"}]
    options: dict[str, Any] = {"model": MODEL, "tools": [WEATHER], "tool_choice": choice, "temperature": 0}
    options |= {"parallel_tool_calls": False, "max_tokens": 200}
    whole = client.chat.completions.create(messages=messages, **options)
    (call,) = whole.choices[0].message.tool_calls or []
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments).keys() == {"city", "unit"}
    with client.chat.completions.stream(messages=messages, **options) as events:
        final = events.get_final_completion()
    (streamed,) = final.choices[0].message.tool_calls or []
    assert streamed.function.arguments == call.function.arguments
    messages += [
        whole.choices[0].message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "Rain, 4 degrees."},
    ]
    answer = client.chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER], max_tokens=30)
    assert answer.choices[0].message.content


def test_openai_responses(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": MODEL, "input": CAPITAL, "temperature": 0, "max_output_tokens": 16}
    whole = client.responses.create(**options)
    assert "Paris" in whole.output_text
    with client.responses.stream(**options) as events:
        final = events.get_final_response()
    assert final.output_text == whole.output_text
    assert final.usage is not None
    assert whole.usage is not None
    assert final.usage.output_tokens == whole.usage.output_tokens
    parsed = client.responses.parse(
        model=MODEL, input="Describe Paris as JSON.", text_format=City, temperature=0, max_output_tokens=100
    )
    assert isinstance(parsed.output_parsed, City)


def test_anthropic_messages(url: str) -> None:
    with anthropic.Anthropic(base_url=url, api_key="sesame", max_retries=0) as client:
        options: dict[str, Any] = {"model": MODEL, "messages": CAPITAL, "max_tokens": 16}
        options["extra_body"] = {"temperature": 0}
        whole = client.messages.create(**options)
        (block,) = whole.content
        assert block.type == "text"
        assert "Paris" in block.text
        with client.messages.stream(**options) as events:
            assert "".join(events.text_stream) == block.text
        count = client.messages.count_tokens(model=MODEL, messages=CAPITAL)
        assert count.input_tokens == whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)


def test_litellm(url: str) -> None:
    """In a process of its own: importing it changes what warnings mean."""
    script = f"""
import litellm
options = dict(model="openai/{MODEL}", api_base="{url}/v1", api_key="sesame", temperature=0, max_tokens=16)
messages = {CAPITAL!r}
whole = litellm.completion(messages=messages, **options).choices[0].message.content
chunks = litellm.completion(messages=messages, stream=True, **options)
assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole, whole
assert "Paris" in whole, whole
text = litellm.text_completion(model="text-completion-openai/{MODEL}", prompt="The capital of France is",
    api_base="{url}/v1", api_key="sesame", temperature=0, max_tokens=4).choices[0].text
assert text.startswith(" Paris"), text
try:
    litellm.completion(messages=messages, **(options | dict(temperature=-1)))
except litellm.BadRequestError as error:
    print("refused", "temperature" in str(error))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "refused True" in done.stdout


def test_schemathesis_finds_no_server_error(tmp_path: Path) -> None:
    server = ServerProcess("--max-num-seqs", "32", "--no-log-requests")
    try:
        command = ["-m", "schemathesis.cli", "run", f"{server.url}/openapi.json", "--checks", "not_a_server_error"]
        options = ["--max-examples", "20", "--seed", "7", "--request-timeout", "120", "--no-color"]
        done = subprocess.run(
            [sys.executable, *command, *options],
            capture_output=True,
            text=True,
            check=False,
            timeout=280,
            cwd=tmp_path,  # it leaves a folder there
        )
        assert done.returncode == 0, done.stdout
        assert server.say("as before") == "as before"
        assert server.is_idle()
        assert server.stop() == 0
        assert "Traceback" not in server.read_log()
    finally:
        server.close()
