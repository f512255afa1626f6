"""Chat messages to text, through the Jinja template that comes with a model or is given instead.

Templates are data of unknown origin: they run in a sandbox, and within limits of time and size, so that a hostile or
broken one ends its own request and nothing else.
Owns: the messages' shape, the sandbox and its limits. Must never know: token ids.
"""

from __future__ import annotations

import datetime
import json
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import make_attrgetter
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from octavo.errors import ConfigError, InvalidRequestError, one_line, quoted

MAX_RENDERED_CHARS = 10_000_000
MAX_SECONDS = 5.0
"""Of CPU."""

_FILTERS = (
    *("abs", "capitalize", "count", "d", "default", "dictsort", "first", "float", "int", "items", "join", "last"),
    *("length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "replace", "reverse", "safe", "select"),
    *("selectattr", "sort", "string", "title", "tojson", "trim", "unique", "upper"),
)
_GLOBALS = ("range", "dict", "namespace")
"""What chat templates use. Jinja's others can make much text or work out of little, and are left out."""
_WIDENING = frozenset({"center", "expandtabs", "format", "format_map", "ljust", "rjust", "translate", "zfill"})
"""Methods of `str` whose result may be of any length."""
_MAX_INTEGER_BITS = 4096


def read_chat_template(given: str) -> str:
    """The source of a configured template: `given` itself if it has Jinja's braces, else what that file holds.

    Raises `ConfigError` for a file that cannot be read, and for a source that is no template.
    """
    key = "model.chat_template"
    is_source = "{{" in given or "{%" in given
    try:
        source = given if is_source else Path(given).expanduser().read_text(encoding="utf-8-sig")
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: a home folder that is unknown
        reason = error.strerror if isinstance(error, OSError) else error
        advice = "name a file that holds a Jinja template, or give the template itself"
        raise ConfigError(f"{key}: {quoted(given)} cannot be read: {reason}; {advice}") from error
    if not source.strip():
        raise ConfigError(f"{key}: {given} is empty; write a Jinja template into it, or leave the option out")
    try:
        ChatTemplate(source, {}).compile()
    except jinja2.TemplateSyntaxError as error:
        where = f"line {error.lineno}" if is_source else f"{given}, line {error.lineno}"
        reason = (error.message or "").rstrip(".")
        raise ConfigError(f"{key}: {where}: {reason}; mend the template, or leave the option out") from error
    except Exception as error:  # what Jinja lets through, Python may refuse: a break outside of loops, much nesting
        what = "the template" if is_source else given
        raise ConfigError(f"{key}: {what}: {one_line(error)}; mend the template, or leave the option out") from error
    return source


class ChatTemplate:
    """A compiled template. Rendering is thread-safe."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._special_tokens = dict(special_tokens)
        self._environment = _Environment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag]
        )
        self._source = source
        self._template: jinja2.Template | None = None

    def compile(self) -> jinja2.Template:
        """Compile it, once: `render` does so by itself, but only when the first chat comes.

        Raises `jinja2.TemplateSyntaxError` for a template that is broken or needs what is not offered.
        """
        if self._template is None:
            self._template = self._environment.from_string(self._source)
        return self._template

    def render(self, messages: Any, add_generation_prompt: bool, variables: Mapping[str, Any]) -> str:
        """The text for `messages`. Raises `InvalidRequestError` for bad messages, and whenever the template fails."""
        checked = _checked_messages(messages)
        taken = sorted(set(variables) & {"messages", "add_generation_prompt", *self._special_tokens})
        if taken:
            raise InvalidRequestError("chat_template_kwargs", f"{', '.join(taken)} cannot be overridden")
        given = {"tools": None, "documents": None, **self._special_tokens, **variables}
        try:
            return self._environment.render_within_limits(
                self.compile(), {**given, "messages": checked, "add_generation_prompt": add_generation_prompt}
            )
        except jinja2.TemplateAssertionError as error:
            message = f"the model's chat template needs what is not offered: {error} There is: {', '.join(_FILTERS)}"
            raise InvalidRequestError("messages", message) from error
        except jinja2.TemplateSyntaxError as error:
            raise InvalidRequestError("messages", f"the model's chat template is broken: {error}") from error
        except jinja2.TemplateError as error:
            raise InvalidRequestError("messages", f"the model's chat template refuses them: {error}") from error
        except Exception as error:  # a template's expressions can raise anything
            raise InvalidRequestError("messages", f"the model's chat template failed on them: {error!r}") from error


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with a budget for each rendering.

    Every loop round and macro call looks at the clock; every operation that can multiply text looks at the size
    of its result first.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._local = threading.local()
        self._growing: dict[str, Any] = {"join": self._join_text, "replace": self._replace_text}
        self.filters = {name: made for name, made in self.filters.items() if name in _FILTERS}
        self.filters |= {"tojson": _tojson, "join": self._join_items, "replace": self._replace_text}
        functions: Any = {name: made for name, made in self.globals.items() if name in _GLOBALS}
        self.globals = functions | {"raise_exception": _raise_exception, "strftime_now": _strftime_now}

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return not (isinstance(obj, str) and attr in _WIDENING) and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:
        """None: Jinja would take `str.format` for safe."""

    def call(self, context: Any, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        text = getattr(called, "__self__", None)
        if isinstance(text, str) and called.__name__ in self._growing:
            return self._growing[called.__name__](text, *args, **kwargs)
        return super().call(context, called, *args, **kwargs)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return _Limits().visit(super()._parse(source, name, filename))

    def render_within_limits(self, template: jinja2.Template, variables: Mapping[str, Any]) -> str:
        self._local.deadline = time.thread_time() + MAX_SECONDS
        pieces: list[str] = []
        size = 0
        for piece in template.generate(variables):
            size += len(piece)
            self.check_size(size)
            pieces.append(piece)
        return "".join(pieces)

    def tick(self) -> str:
        if time.thread_time() > self._local.deadline:
            raise jinja2.TemplateRuntimeError(f"it took more than {MAX_SECONDS:g} s of CPU")
        return ""

    def join(self, *parts: Any) -> str:
        texts = [str(part) for part in parts]
        self.check_size(sum(map(len, texts)))
        return "".join(texts)

    def _join_text(self, separator: Any, items: Iterable[Any]) -> str:
        texts = [str(item) for item in items]
        self.check_size(sum(map(len, texts)) + len(separator) * len(texts))
        return separator.join(texts)

    def _join_items(self, items: Iterable[Any], d: Any = "", attribute: Any = None) -> str:
        """Jinja's filter `join`."""
        return self._join_text(str(d), items if attribute is None else map(make_attrgetter(self, attribute), items))

    def _replace_text(self, text: Any, old: Any, new: Any, count: int | None = None) -> str:
        text, old, new = str(text), str(old), str(new)
        self.check_size(len(text) + text.count(old) * (len(new) - len(old)))
        return text.replace(old, new, -1 if count is None else count)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and not (abs(left) <= 2**32 and abs(right) <= 64):
            raise jinja2.TemplateRuntimeError("its powers are too large")
        if operator == "%" and isinstance(left, str):
            numbers = "".join(c if c.isdigit() else " " for c in left).split()
            stars = [n for n in right if isinstance(n, int)] if "*" in left and isinstance(right, tuple) else []
            if any(len(digits) > 4 for digits in numbers) or any(abs(width) > 9999 for width in stars):
                raise jinja2.TemplateRuntimeError("its format strings are too wide")
        elif operator in "+*":
            sizes = [len(side) if hasattr(side, "__len__") else None for side in (left, right)]
            if isinstance(left, int) and isinstance(right, int):
                if left.bit_length() + right.bit_length() > _MAX_INTEGER_BITS:
                    raise jinja2.TemplateRuntimeError("its numbers are too large")
            elif operator == "+":
                self.check_size(sum(size or 0 for size in sizes))
            elif any(size is not None for size in sizes):
                factors = [side if size is None else size for side, size in zip((left, right), sizes, strict=True)]
                self.check_size(factors[0] * factors[1])
        return super().call_binop(context, operator, left, right)

    def check_size(self, size: int) -> None:
        if size > MAX_RENDERED_CHARS:
            raise jinja2.TemplateRuntimeError(f"the text passes {MAX_RENDERED_CHARS} characters")


class _Limits(NodeTransformer):
    """Puts the budget's checks into a parsed template."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        return self._ticking(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return self._ticking(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return nodes.Call(nodes.EnvironmentAttribute("join"), node.nodes, [], None, None, lineno=node.lineno)

    def _ticking(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        call = nodes.Call(nodes.EnvironmentAttribute("tick"), [], [], None, None, lineno=node.lineno)
        node.body.insert(0, nodes.ExprStmt(call, lineno=node.lineno))
        return node


class _GenerationTag(Extension):
    """`{% generation %}` marks what a model is trained to say; for inference its body is ordinary text."""

    tags = {"generation"}  # noqa: RUF012 - declared so by jinja2

    def parse(self, parser: Any) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(
    value: Any, indent: int | None = None, ensure_ascii: bool = False, separators: Any = None, sort_keys: bool = False
) -> str:
    """Plain JSON; Jinja's own filter would escape it for HTML."""
    if isinstance(indent, int) and indent > 64:
        raise jinja2.TemplateRuntimeError("its JSON is indented too far")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)


def _checked_messages(messages: Any) -> list[dict[str, Any]]:
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise InvalidRequestError("messages", "must be a list of mappings with role and content")
    if not messages:
        raise InvalidRequestError("messages", "must hold at least one message")
    return [_checked_message(i, message) for i, message in enumerate(messages)]


def _checked_message(index: int, message: Any) -> dict[str, Any]:
    where = f"message {index}"
    if not isinstance(message, Mapping):
        raise InvalidRequestError(
            "messages", f"{where} is {type(message).__name__}, not a mapping with role and content"
        )
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidRequestError("messages", f"{where} has no role")
    if "content" not in message and not message.get("tool_calls"):
        raise InvalidRequestError("messages", f"{where} has no content")
    return {**message, "content": _content_text(where, message.get("content"))}


def _content_text(where: str, content: Any) -> str | None:
    """The content as text; a list of text parts becomes one text, a part a line."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise InvalidRequestError("messages", f"{where}: content must be text or a list of text parts")
    texts = []
    for part in content:
        text = part if isinstance(part, str) else part.get("text") if isinstance(part, Mapping) else None
        kind = part.get("type", "text") if isinstance(part, Mapping) else "text"
        if kind != "text" or not isinstance(text, str):
            raise InvalidRequestError("messages", f"{where}: this model takes text parts only, not {kind!r}")
        texts.append(text)
    return "\n".join(texts)
