"""How a conversation may use its tools, and what that means for its output.

Owns: `tool_choice`, the JSON schema that makes a call certain, which parser reads the calls. Must never know: messages,
what an answer looks like.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from octavo.errors import InvalidRequestError
from octavo.spec import MakeToolParser, MessageParser, SpellOut, Tool, ToolParserEntry, load_factory
from octavo_openai.pipeline.constrained_calls import (
    ARGUMENTS,
    NAME,
    ArgumentsParser,
    CallListParser,
    CallsOrContentParser,
)
from octavo_openai.pipeline.messages import tell_tools

if TYPE_CHECKING:
    from octavo.extensions import Offer

Constraint = Mapping[str, Any]
"""Fields of `StructuredOutputsParams`."""


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether the model may, must or must not call tools."""

    mode: Literal["auto", "none", "required"] = "auto"
    name: str | None = None
    """With `required`: the one tool that must be called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """What a choice comes down to."""

    tools: Sequence[Tool] = ()
    """Those that the prompt tells of."""
    constraint: Constraint | None = None
    """The form of the whole output, if it has one."""
    make_parser: Callable[[], MessageParser] | None = None
    """Of the calls in the output; None: there are none."""
    spell_out: SpellOut | None = None
    """For a chat template that has no word for tools."""
    keep_special_tokens: bool = False
    most_calls: int | None = None
    ends_with_calls: bool = True
    """Whether an output with calls ends with the reason `tool_calls`; to OpenAI a call that was named is `stop`."""


def read_tool_choice(given: str | Mapping[str, Any] | None, tools: Sequence[Tool]) -> tuple[Sequence[Tool], ToolChoice]:
    """The tools that may be called and the choice among them, as OpenAI's APIs say it.

    Some have a function's name in `function`, some beside `type`. Raises `InvalidRequestError`.
    """
    match given:
        case None | "auto":
            return tools, ToolChoice("auto")
        case "none" | "required":
            return tools, ToolChoice(given)
        case {"type": "function", "function": {"name": str(name)}} | {"type": "function", "name": str(name)}:
            return tools, ToolChoice("required", name)
        case {"type": "allowed_tools", "allowed_tools": {"mode": "auto" | "required" as mode, "tools": [*allowed]}} | {
            "type": "allowed_tools",
            "mode": "auto" | "required" as mode,
            "tools": [*allowed],
        }:
            names = [tool["function"]["name"] for tool in tools]
            wanted = [_name_of(tool) for tool in allowed]
            if missing := next((name for name in wanted if name not in names), None):
                raise InvalidRequestError("tool_choice", f"no tool is called {missing!r}; there is: {', '.join(names)}")
            return [tool for tool in tools if tool["function"]["name"] in wanted], ToolChoice(mode)
    raise InvalidRequestError(
        "tool_choice", "must be 'auto', 'none', 'required', a function with its name, or allowed_tools"
    )


def _name_of(tool: Any) -> str:
    match tool:
        case {"type": "function", "function": {"name": str(name)}} | {"type": "function", "name": str(name)}:
            return name
    raise InvalidRequestError("tool_choice", "each of the allowed tools must be a function with its name")


def plan_tool_use(
    tools: Sequence[Tool],
    choice: ToolChoice,
    parallel: bool,
    constraint: Constraint | None,
    parser: Offer[ToolParserEntry] | None,
    template: str,
) -> ToolUse:
    """What is to be done about `tools`; `constraint` is the client's own, for content.

    Raises `InvalidRequestError` for a choice that cannot be met.
    """
    names = _checked_names(tools)
    spell_out: SpellOut | None = None
    if "tools" not in template and parser is not None and parser.entry.spell_out is not None:
        spell_out = load_factory(parser.entry.spell_out)
    if choice.mode == "none" or not tools:
        if choice.mode == "required":
            raise InvalidRequestError("tool_choice", "needs tools")
        return ToolUse(constraint=constraint, spell_out=spell_out)
    if choice.name is not None and choice.name not in names:
        raise InvalidRequestError("tool_choice", f"no tool is called {choice.name!r}; there is: {', '.join(names)}")
    if choice.mode == "required" and constraint is not None:
        raise InvalidRequestError("tool_choice", "a call that must come leaves no room for other structured output")
    most_calls = None if parallel else 1
    if choice.mode == "auto" and constraint is None:
        return _free_use(tools, parser, template, spell_out, most_calls)
    if "tools" not in template and spell_out is None:
        spell_out = tell_tools
    if choice.name is not None:
        return ToolUse(
            tools=tools,
            constraint={"json": _parameters(tools[names.index(choice.name)])},
            make_parser=functools.partial(ArgumentsParser, choice.name),
            spell_out=spell_out,
            ends_with_calls=False,
        )
    if constraint is None:
        schema, parse = _call_list(tools, most_calls), CallListParser
    else:
        schema, parse = _calls_or(_object_schema(constraint), tools, most_calls), CallsOrContentParser
    return ToolUse(tools=tools, constraint={"json": schema}, make_parser=parse, spell_out=spell_out)


def _checked_names(tools: Sequence[Tool]) -> list[str]:
    """Those of the tools. Raises `InvalidRequestError` for tools that nobody could call."""
    names = [tool["function"]["name"] for tool in tools]
    if "" in names:
        raise InvalidRequestError("tools", "one of them has an empty name")
    if len(set(names)) < len(names):
        raise InvalidRequestError("tools", "two of them have the same name")
    for name, tool in zip(names, tools, strict=True):
        if _parameters(tool).get("type", "object") != "object":
            raise InvalidRequestError("tools", f"the parameters of {name[:40]!r} must have the type 'object'")
    return names


def _free_use(
    tools: Sequence[Tool],
    parser: Offer[ToolParserEntry] | None,
    template: str,
    spell_out: SpellOut | None,
    most_calls: int | None,
) -> ToolUse:
    """The model decides, and calls in its own format."""
    if parser is None:
        raise InvalidRequestError(
            "tools",
            "no tool parser is known for this model's way to call them; start the server with --tool-parser, or send "
            "tool_choice 'required' or 'none'",
        )
    if "tools" not in template and spell_out is None:
        raise InvalidRequestError(
            "tools",
            f"the model's chat template does not tell of tools, and tool parser {parser.entry.name!r} cannot either",
        )
    make_parser: MakeToolParser = parser.make
    return ToolUse(
        tools=tools,
        make_parser=functools.partial(make_parser, tools),
        spell_out=spell_out,
        keep_special_tokens=parser.entry.keep_special_tokens,
        most_calls=most_calls,
    )


def _parameters(tool: Tool) -> Mapping[str, Any]:
    """The schema of a tool's arguments; without one it takes none."""
    return tool["function"].get("parameters") or {"type": "object", "properties": {}, "additionalProperties": False}


def _call_list(tools: Sequence[Tool], most_calls: int | None) -> dict[str, Any]:
    """The schema of a list of calls, with the tools' own schemas as definitions."""
    definitions = {f"tool{i}": _moved(_parameters(tool), f"tool{i}") for i, tool in enumerate(tools)}
    calls = [
        {
            "type": "object",
            "properties": {NAME: {"const": tool["function"]["name"]}, ARGUMENTS: {"$ref": f"#/$defs/tool{i}"}},
            "required": [NAME, ARGUMENTS],
            "additionalProperties": False,
        }
        for i, tool in enumerate(tools)
    ]
    schema: dict[str, Any] = {"type": "array", "items": {"anyOf": calls}, "minItems": 1, "$defs": definitions}
    return schema if most_calls is None else schema | {"maxItems": most_calls}


def _calls_or(content: Mapping[str, Any], tools: Sequence[Tool], most_calls: int | None) -> dict[str, Any]:
    """The schema of either a list of calls, or an object."""
    calls = _call_list(tools, most_calls)
    definitions = calls.pop("$defs") | {"content": _moved(content, "content")}
    return {"anyOf": [calls, {"$ref": "#/$defs/content"}], "$defs": definitions}


def _object_schema(constraint: Constraint) -> Mapping[str, Any]:
    """The schema of content that can be told from a list of calls by its first character."""
    if constraint.get("json_object"):
        return {"type": "object"}
    schema = constraint.get("json")
    if not isinstance(schema, Mapping) or schema.get("type") != "object":
        raise InvalidRequestError(
            "structured_outputs",
            "beside tools the output must be a JSON object (a schema of type object); or send tool_choice 'none'",
        )
    return schema


_OF_DATA = frozenset({"const", "enum", "default", "example", "examples"})
"""Keywords of values, in which nothing is a reference."""
_OF_NAMES = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"})
"""Keywords of schemas by name; such a name may be spelt as a keyword."""


def _moved(schema: Any, name: str) -> Any:
    """A schema as the definition `name` of another one: references into itself follow it."""
    moved: list[Any] = [schema]
    pending: list[tuple[Any, Any, bool]] = [(moved, 0, False)]  # no recursion: a client decides how deep it goes
    while pending:
        holder, key, is_keyword = pending.pop()
        value = holder[key]
        if is_keyword and key in _OF_DATA:
            continue
        if isinstance(value, Mapping):
            holder[key] = copy = dict(value)
            holds_keywords = not (is_keyword and key in _OF_NAMES)
            pending += [(copy, inner, holds_keywords) for inner in copy]
        elif isinstance(value, list):
            holder[key] = copy = list(value)
            pending += [(copy, i, False) for i in range(len(copy))]
        elif is_keyword and key == "$ref" and isinstance(value, str) and value.startswith("#"):
            holder[key] = f"#/$defs/{name}{value[1:]}"
    return moved[0]
