"""The laws of tool and reasoning parsers, asked of each."""

from __future__ import annotations

import json

from octavo.testing import ParserSample, ReasoningParserSuite, ToolParserSuite
from octavo_parsers import plugin

WEATHER = ("get_weather", {"city": 'Zürich "Nord" \\ 東京', "days": [1, 2, {"deep": [[]]}], "unit": None})
STOP = ("stop", {})
RICH = json.dumps(WEATHER[1])
"""With escapes and nesting."""
HERMES = "{% if tools %}<tools>{{ tools }}</tools> answer within <tool_call></tool_call> tags{% endif %}"
SMOLLM2 = "You are a helpful AI assistant named SmolLM, trained by Hugging Face{{ message['content'] }}"
LLAMA3 = 'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.'


def call(key: str = "arguments", arguments: str = RICH, name: str = "get_weather") -> str:
    return f'{{"name": "{name}", "{key}": {arguments}}}'


class TestHermes(ToolParserSuite):
    plugin = plugin
    name = "hermes"
    samples = (
        ParserSample(f"<tool_call>\n{call()}\n</tool_call>", calls=(WEATHER,)),
        ParserSample(
            f" Now:\n\n<tool_call>{call()}</tool_call>\n<tool_call>{call(arguments='{}', name='stop')}</tool_call> ok",
            content=" Now:\n\n\n ok",
            calls=(WEATHER, STOP),
        ),
        ParserSample(f'<tool_call>{{"arguments": {RICH}, "name": "get_weather"}}</tool_call>', calls=(WEATHER,)),
        ParserSample(f"<tool_call>{call(arguments=json.dumps(RICH))}</tool_call>", calls=(WEATHER,)),
        ParserSample('<tool_call>{"name": "stop"}</tool_call>', calls=(STOP,)),
        ParserSample("Write <tool_call> and </tool_call>.", content="Write <tool_call> and </tool_call>."),
        ParserSample("<tool_call></tool_call>", content="<tool_call></tool_call>"),
        ParserSample('<tool_call>{"name": 3}</tool_call> ', content='<tool_call>{"name": 3}</tool_call> '),
    )
    templates = (HERMES,)


class TestSmolLM2(ToolParserSuite):
    plugin = plugin
    name = "smollm2"
    samples = (
        ParserSample(f"<tool_call>[{call()}]</tool_call>", calls=(WEATHER,)),
        ParserSample(
            f"<tool_call>[\n{call()},\n{call(arguments='{}', name='stop')}\n]</tool_call>", calls=(WEATHER, STOP)
        ),
        ParserSample("<tool_call>[]</tool_call>"),
        ParserSample("I cannot do that.\n<tool_call>[ ]</tool_call>\n", content="I cannot do that."),
        ParserSample("<tool_call>[1]</tool_call>", content="<tool_call>[1]</tool_call>"),
        ParserSample("<tool_call>[</tool_call>", content="<tool_call>[</tool_call>"),
    )
    templates = (SMOLLM2,)


class TestLlama3JSON(ToolParserSuite):
    plugin = plugin
    name = "llama3_json"
    samples = (
        ParserSample(call("parameters"), calls=(WEATHER,)),
        ParserSample(
            f"{call('parameters')}; {call('parameters', '{}', 'stop')}\n{call('parameters')} ok",
            content="ok",
            calls=(WEATHER, STOP, WEATHER),
        ),
        ParserSample(
            f"One moment. <|python_tag|>{call('parameters')};{call('parameters', '{}', 'of_nobody')}",
            content="One moment.",
            calls=(WEATHER, ("of_nobody", {})),
        ),
        ParserSample('{"name": "Ada", "parameters": {}}', content='{"name": "Ada", "parameters": {}}'),
        ParserSample('{"name": "stop", "time": 3}', content='{"name": "stop", "time": 3}'),
        ParserSample("<|python_tag|>print(1)", content="<|python_tag|>print(1)"),
    )
    templates = (LLAMA3, "{{ '<|python_tag|>' + tool_call }}")

    @property
    def tools(self):
        return [tool for tool in super().tools if tool["function"]["name"] != "of_nobody"]


class TestThink(ReasoningParserSuite):
    plugin = plugin
    name = "think"
    samples = (
        ParserSample("<think>\nTwo is even.\n</think>\n\nYes.", reasoning="Two is even.", content="Yes."),
        ParserSample("\nTwo is even.</think>Yes.", reasoning="Two is even.", content="Yes.", prompt="Go.<think>\n"),
        ParserSample("<think>Even.</think>Yes.", reasoning="Even.", content="Yes.", prompt="Go.<think>"),
        ParserSample(" <think>\n\n</think>\n\nYes.", content="Yes."),
        ParserSample("Yes.</think>", content="Yes.</think>", prompt="Go.<think>\n\n</think>\n\n"),
        ParserSample("<think>It goes on </thin", reasoning="It goes on </thin"),
        ParserSample("Write <think>this</think>.", content="Write <think>this</think>."),
    )
    templates = ("{% set content = content.split('</think>')[-1] %}", "<think>\\n\\n</think>\\n\\n")
