"""Parts that need no server: options, bodies, constrained calls, schemas of calls, spelling, the log."""

from __future__ import annotations

import argparse
import json
import logging
import random
from typing import Any

import msgspec
import pytest

from octavo import SamplingParams
from octavo.config import EngineConfig
from octavo.errors import ConfigError, InvalidRequestError
from octavo.spec import MessageDelta, MessageParser
from octavo.testing.echo_model import EchoSource
from octavo_openai.apis.logprobs import Spelling
from octavo_openai.errors import APIError
from octavo_openai.http.bodies import decode_body
from octavo_openai.http.request_log import JSONFormatter, TextFormatter, configure_logging, log_request
from octavo_openai.options import ServerOptions, add_flags, read_engine_config, read_options
from octavo_openai.pipeline.constrained_calls import ArgumentsParser, CallListParser, CallsOrContentParser
from octavo_openai.pipeline.tool_choice import ToolChoice, plan_tool_use


def options(*flags: str, **configured: Any) -> ServerOptions:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_flags(parser)
    arguments = parser.parse_args(flags)
    arguments.engine_config = EngineConfig(plugins={"openai": configured})
    return read_options(arguments)


def test_every_option_is_a_flag_with_help() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    text = parser.format_help()
    for name in ServerOptions.__struct_fields__:
        assert f"--{name.replace('_', '-')} " in text
    assert "(warn|refuse|ignore; default: warn)" in " ".join(text.split())


def test_flags_win_over_the_configuration(monkeypatch) -> None:
    monkeypatch.delenv("OCTAVO_API_KEY", raising=False)
    assert options() == ServerOptions()
    assert options(port="9000", host="::1").port == 9000, "as text, as the environment has it"
    made = options("--port", "0", "--no-log-requests", port=9000, max_n=3, log_requests=True)
    assert (made.port, made.max_n, made.log_requests) == (0, 3, False)
    assert options("--request-timeout", "none", request_timeout=5).request_timeout is None
    assert options("--log-stats-interval", "none").log_stats_interval is None
    names = options("--served-model-name", "a", "--served-model-name", "b", served_model_name=["c"])
    assert names.served_model_name == ("a", "b")
    assert options(served_model_name="a, b").served_model_name == ("a", "b")


def test_keys_come_from_the_environment_too(monkeypatch) -> None:
    monkeypatch.setenv("OCTAVO_API_KEY", "secret")
    assert options().api_key == ("secret",)
    assert options("--api-key", "other").api_key == ("other", "secret")


@pytest.mark.parametrize(
    ("flags", "configured", "named"),
    [
        (["--port", "x"], {}, "--port: must be int"),
        (["--port", "70000"], {}, "--port: must be int <= 65535"),
        (["--max-n", "0"], {}, "--max-n: must be int >= 1"),
        (["--unknown-fields", "hide"], {}, "--unknown-fields: must be one of warn, refuse, ignore"),
        ([], {"port": "x"}, "plugins.openai.port: must be int"),
        (["--api-key", ""], {}, "plugins.openai.api_key"),
        (["--ssl-keyfile", "k.pem"], {}, "ssl_certfile"),
        ([], {"prot": 1}, "'prot'; did you mean 'port'"),
    ],
)
def test_bad_options(flags: list[str], configured: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        options(*flags, **configured)


def test_the_model_may_be_given_by_its_place() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    arguments = parser.parse_args(["some/model", "--port", "0"])
    arguments.engine_config = EngineConfig()
    assert read_engine_config(arguments).model.path == "some/model"
    arguments = parser.parse_args([])
    arguments.engine_config = EngineConfig()
    assert read_engine_config(arguments) is arguments.engine_config


class Inner(msgspec.Struct):
    a: int
    b: list[str] | None = None


class Outer(msgspec.Struct):
    inner: Inner | None = None
    many: list[Inner] | None = None
    free: dict[str, Any] | None = None
    numbers: dict[int, float] | None = None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"inner": {"a": "x"}}, "inner.a"),
        ({"inner": {}}, "inner.a"),
        ({"many": [{"a": 1}, {"a": 1, "b": [1]}]}, "many[1].b[0]"),
        ({"numbers": {"x": 1}}, "numbers"),
        ({"numbers": {"1": "x"}}, "numbers[...]"),
        ([], None),
    ],
)
def test_errors_of_bodies_name_the_place(body: Any, param: str | None) -> None:
    with pytest.raises(APIError) as caught:
        decode_body(json.dumps(body).encode(), Outer, max_items=100)
    assert caught.value.param == param
    assert "`" not in caught.value.message
    assert caught.value.message.startswith(param or "the body")


def test_unknown_fields_are_found_where_they_are() -> None:
    body = {
        "inner": {"a": 1, "c": 1, "gone": None},
        "many": [{"a": 1}, {"a": 2, "d": 0}],
        "free": {"anything": {"goes": 1}},
        "e": [],
    }
    record, unknown = decode_body(json.dumps(body).encode(), Outer, max_items=100)
    assert unknown == ["inner.c", "many[1].d", "e"]
    assert record.free == {"anything": {"goes": 1}}


def parsed(parser: MessageParser, pieces: list[str]) -> tuple[str, list[list[str]]]:
    """Content, and name and arguments of each call."""
    content, calls = "", []
    for delta in [*map(parser.push, pieces), parser.flush()]:
        content += delta.content
        for call in delta.tool_calls:
            if call.name is not None:
                assert call.index == len(calls)
                calls.append([call.name, ""])
            calls[call.index][1] += call.arguments
    assert parser.flush() == MessageDelta()
    return content, calls


ARGUMENTS = ["{}", "[]", '"]}\\\\"', '{"a":"}]\\"","b":[1,{"c":"\\\\"}]}', "12", '{"name":"x","arguments":{}}', "null"]


@pytest.mark.parametrize("seed", range(20))
def test_lists_of_calls_in_any_pieces(seed: int) -> None:
    rng = random.Random(seed)
    wanted = [[rng.choice(["f", 'a"b', "x,y:z", "é]}"]), rng.choice(ARGUMENTS)] for _ in range(rng.randint(1, 4))]
    space = rng.choice(["", " ", "\n  "])
    items = [f'{{{space}"name":{space}{json.dumps(n)},{space}"arguments":{a}}}' for n, a in wanted]
    text = f"[{space}" + f",{space}".join(items) + f"{space}]"
    cuts = sorted(rng.choices(range(len(text) + 1), k=rng.randint(0, 30)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parsed(CallListParser(), pieces) == ("", wanted)
    assert parsed(CallsOrContentParser(), [space, *pieces]) == ("", wanted)
    assert parsed(CallListParser(), list(text)) == ("", wanted)
    content = space + '{"a": [1]}'
    assert parsed(CallsOrContentParser(), list(content)) == (content, [])
    assert parsed(ArgumentsParser("f"), pieces) == ("", [["f", text]])


def test_calls_that_are_cut_off() -> None:
    assert parsed(CallListParser(), ['[{"name":"f']) == ("", [])
    assert parsed(CallListParser(), ['[{"name":"f","argu']) == ("", [["f", ""]])
    assert parsed(CallListParser(), ['[{"name":"f","arguments":{"a":']) == ("", [["f", '{"a":']])
    assert parsed(CallsOrContentParser(), [" ", "\n"]) == (" \n", [])
    assert parsed(ArgumentsParser("f"), []) == ("", [])


def schema_of(tools: list[dict[str, Any]], choice: ToolChoice, **options: Any) -> Any:
    wanted = {"parallel": True, "constraint": None, "parser": None, "template": "tools", **options}
    use = plan_tool_use(tools, choice, **wanted)
    assert use.constraint is not None
    return use.constraint["json"]


TREE = {
    "type": "object",
    "properties": {"node": {"$ref": "#/$defs/node"}, "again": {"$ref": "#"}, "$ref": {"const": "#"}},
    "required": ["node"],
    "additionalProperties": False,
    "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
}


def function(name: str, parameters: Any = None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **({"parameters": parameters} if parameters else {})}}


def test_schemas_of_calls_keep_their_references() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = schema_of([function("plant", TREE), function("wait")], ToolChoice("required"))
    check = jsonschema.Draft202012Validator(schema)
    good = [
        [{"name": "wait", "arguments": {}}],
        [{"name": "plant", "arguments": {"node": {"next": {"next": {}}}, "again": {"node": {}}, "$ref": "#"}}],
    ]
    bad = [
        [],
        [{"name": "plant", "arguments": {}}],
        [{"name": "plant", "arguments": {"node": {"next": {"next": 1}}}}],
        [{"name": "plant", "arguments": {"node": {}, "again": {}}}],
        [{"name": "wait", "arguments": {"x": 1}}],
        [{"name": "fly", "arguments": {}}],
        [{"name": "wait"}],
    ]
    assert all(check.is_valid(value) for value in good)
    assert not any(check.is_valid(value) for value in bad)
    one = jsonschema.Draft202012Validator(schema_of([function("wait")], ToolChoice("required"), parallel=False))
    assert [one.is_valid([{"name": "wait", "arguments": {}}] * n) for n in (1, 2)] == [True, False]
    assert "node" in TREE["properties"], "the client's own is not changed"
    assert TREE["properties"]["again"] == {"$ref": "#"}


def test_what_looks_like_a_reference_in_data_is_none() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    data = {"$ref": "#/x"}
    node = {"type": "object", "required": ["$ref"], "properties": {"$ref": {"type": "string"}}}
    names = {"const": {"$ref": "#/$defs/node"}, "properties": {"$ref": "#/$defs/node"}}
    tree = {
        "type": "object",
        "properties": {"a": {"const": data, "default": data}, "b": {"enum": [data], "examples": [data]}, **names},
        "$defs": {"node": node, "enum": {"$ref": "#/$defs/node"}},
    }
    schema = schema_of([function("f", tree)], ToolChoice("required"))
    check = jsonschema.Draft202012Validator(schema)
    told = {"a": data, "b": data, "const": {"$ref": "x"}, "properties": {"$ref": "y"}}
    assert check.is_valid([{"name": "f", "arguments": told}])
    for wrong in ({"a": {"$ref": "#/$defs/tool0/x"}}, {"const": {}}, {"properties": {"$ref": 1}}):
        assert not check.is_valid([{"name": "f", "arguments": told | wrong}])
    moved = schema["$defs"]["tool0"]
    assert moved["properties"]["b"] == tree["properties"]["b"]
    assert moved["$defs"]["enum"] == {"$ref": "#/$defs/tool0/$defs/node"}


def test_either_calls_or_an_object() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = schema_of([function("wait")], ToolChoice(), constraint={"json": TREE})
    check = jsonschema.Draft202012Validator(schema)
    assert [check.is_valid(v) for v in ({"node": {}}, [{"name": "wait", "arguments": {}}], {}, [])] == [
        *(True, True),
        *(False, False),
    ]


def test_one_call_has_the_schema_of_its_arguments() -> None:
    assert schema_of([function("plant", TREE), function("wait")], ToolChoice("required", "plant")) == TREE


def test_a_schema_however_deep_is_no_fault_of_ours() -> None:
    deep: Any = {"$ref": "#"}
    for _ in range(900):
        deep = {"not": deep}
    schema = schema_of([function("f", deep)], ToolChoice("required"))
    with pytest.raises(InvalidRequestError, match="nested"):
        SamplingParams(structured_outputs={"json": schema})


def test_spelling() -> None:
    from octavo.loading.tokenizer import HFTokenizer

    tokenizer = HFTokenizer(EchoSource("").tokenizer())
    spelling = Spelling(tokenizer)
    ids = tokenizer.encode("the é<say>")
    texts = [spelling.text(i) for i in ids]
    assert texts == ["the", " ", "bytes:\\xc3", "bytes:\\xa9", "<say>"]
    assert [spelling.num_chars(i, True) for i in ids] == [3, 1, 1, 0, 5]
    assert spelling.num_chars(ids[-1], False) == 0
    assert Spelling(tokenizer, as_token_ids=True).text(7) == "token_id:7"


@pytest.mark.parametrize("request_id", ["plain", 'two words " and quotes', "a\nb"])
def test_a_log_line_is_one_line(request_id: str) -> None:
    record = logging.LogRecord("octavo_openai", logging.INFO, "", 0, "request", (), None)
    record.fields = {"request_id": request_id, "finish_reasons": ["stop", "length"], "status": 200}
    text, line = TextFormatter().format(record), JSONFormatter().format(record)
    assert "\n" not in text + line
    assert "finish_reasons=stop,length" in text
    parsed = json.loads(line)
    assert {name: parsed[name] for name in ("request_id", "level", "message", "status")} == {
        "request_id": request_id,
        "level": "info",
        "message": "request",
        "status": 200,
    }


@pytest.mark.parametrize(
    ("is_polled", "status", "error", "level"),
    [
        (True, 200, None, "DEBUG"),
        (True, 503, "model_loading", "DEBUG"),
        (True, 503, "draining", "INFO"),
        (False, 200, None, "INFO"),
        (False, 503, "model_loading", "INFO"),
    ],
)
def test_what_is_polled_while_the_model_is_loaded_is_no_news(
    caplog, is_polled: bool, status: int, error: str | None, level: str
) -> None:
    with caplog.at_level("DEBUG", "octavo_openai"):
        log_request(
            request_id="a",
            method="GET",
            path="/health",
            status=status,
            duration=0.001,
            prompt_tokens=None,
            completion_tokens=None,
            finish_reasons=[],
            error=error,
            is_polled=is_polled,
        )
    assert [record.levelname for record in caplog.records] == [level]


@pytest.mark.parametrize(
    ("core", "log_requests", "level"),
    [("WARNING", True, "INFO"), ("DEBUG", True, "DEBUG"), ("DEBUG", False, "WARNING")],
)
def test_lines_for_debugging_are_written_where_core_writes_them(
    monkeypatch, caplog, core: str, log_requests: bool, level: str
) -> None:
    monkeypatch.setattr(logging, "basicConfig", lambda **settings: None)  # it would end what pytest captures
    caplog.set_level(core, "octavo")
    for name in ("octavo_openai", "octavo_openai.throughput"):
        caplog.set_level("ERROR", name)
    configure_logging("text", log_requests)
    assert logging.getLevelName(logging.getLogger("octavo_openai").level) == level
    assert logging.getLogger("octavo_openai.throughput").isEnabledFor(logging.INFO), "which has an option of its own"
