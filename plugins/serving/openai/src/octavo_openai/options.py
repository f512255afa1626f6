"""The server's options: one section of the configuration, and a flag of `octavo serve` for each of them.

Owns: names, defaults, ranges and help texts; how flags win over the configuration. Must never know: what is done with
an option.
"""

from __future__ import annotations

import argparse
import os
import typing
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from octavo.config import EngineConfig, Section
from octavo.errors import ConfigError, suggestion

PLUGIN = "openai"
"""This plugin's name, under which the configuration has its options."""
API_KEY_VARIABLE = "OCTAVO_API_KEY"


def _doc(text: str) -> Meta:
    return Meta(description=text)


NotNegative = Annotated[float, Meta(ge=0)]
PositiveInt = Annotated[int, Meta(ge=1)]
Positive = Annotated[float, Meta(gt=0)]


class ServerOptions(Section, frozen=True):
    """`plugins.openai.…`"""

    host: Annotated[str, _doc("Address to listen on; 0.0.0.0 for every one, of which anybody can then send.")] = (
        "127.0.0.1"
    )
    port: Annotated[int, Meta(ge=0, le=65535), _doc("TCP port; 0 takes a free one.")] = 8000
    uds: Annotated[str | None, _doc("Path of a Unix socket to listen on instead.")] = None
    ssl_certfile: Annotated[str | None, _doc("Certificate (PEM) to speak HTTPS with.")] = None
    ssl_keyfile: Annotated[str | None, _doc("Private key of the certificate.")] = None
    api_key: Annotated[
        tuple[str, ...],
        Meta(
            description=f"Keys that clients must send one of; none: no key is asked for. {API_KEY_VARIABLE} adds one.",
            extra={"secret": True},
        ),
    ] = ()
    open_metrics: Annotated[bool, _doc("Answer GET /metrics without a key.")] = False
    allow_origins: Annotated[
        tuple[str, ...], _doc("Origins whose web pages may call the server from a browser (CORS); * for all.")
    ] = ()
    served_model_name: Annotated[
        tuple[str, ...], _doc("Names that requests may call the model by; none: the file's or folder's name.")
    ] = ()
    tool_parser: Annotated[str, _doc("Parser of tool calls; auto: what suits the chat template; none: no parser.")] = (
        "auto"
    )
    reasoning_parser: Annotated[
        str, _doc("Parser that sets reasoning apart; auto: what suits the chat template; none: no parser.")
    ] = "auto"
    usage_in_streams: Annotated[bool, _doc("End every stream with its usage, asked for or not.")] = False
    unknown_fields: Annotated[
        Literal["warn", "refuse", "ignore"],
        _doc("What to do about fields of a request that nobody knows; warn: in the log and in a header."),
    ] = "warn"
    max_n: Annotated[PositiveInt, _doc("Most completions of one prompt.")] = 128
    max_prompts: Annotated[PositiveInt, _doc("Most prompts, and most completions of all prompts, of a request.")] = 1024
    max_logprobs: Annotated[int, Meta(ge=0), _doc("Most log probabilities at one position.")] = 20
    max_logprob_entries: Annotated[
        PositiveInt, _doc("Most log probabilities that an answer may hold; each takes some 400 bytes of memory.")
    ] = 750_000
    max_live_logprob_entries: Annotated[
        PositiveInt, _doc("Most that all answers under way may hold; who comes when there is no room is refused (429).")
    ] = 3_000_000
    max_stop_strings: Annotated[int, Meta(ge=0), _doc("Most stop strings of a request.")] = 64
    max_tools: Annotated[int, Meta(ge=0), _doc("Most tools of a request.")] = 128
    max_items: Annotated[
        PositiveInt, _doc("Most items of all lists and objects of a request; numbers and prompts do not count.")
    ] = 50_000
    max_body_bytes: Annotated[PositiveInt, _doc("Longest body of a request in bytes.")] = 8 * 2**20
    max_queued_requests: Annotated[
        PositiveInt, _doc("Requests that wait to be computed; while there are more, new ones are refused (429).")
    ] = 4096
    request_timeout: Annotated[
        Positive | None, _doc("Seconds that a request may take; then it is aborted (504). None: any time.")
    ] = None
    timeout_client: Annotated[
        Positive, _doc("Seconds in which a client must send a whole request, or read some of an answer.")
    ] = 60.0
    timeout_keep_alive: Annotated[Positive, _doc("Seconds that an idle connection is kept open between requests.")] = (
        30.0
    )
    drain_timeout: Annotated[
        NotNegative, _doc("Seconds that running requests may take to end after the signal to stop.")
    ] = 30.0
    log_requests: Annotated[bool, _doc("Log a line for each request; never its text.")] = True
    log_stats_interval: Annotated[
        Positive | None,
        _doc("Seconds between log lines of the throughput, while requests run. None: no such lines."),
    ] = 10.0
    log_format: Annotated[Literal["text", "json"], _doc("Form of log lines: text, or a JSON object each.")] = "text"
    in_process: Annotated[
        bool, _doc("Run the engine in a thread of the server's process instead of one of its own.")
    ] = False


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The model by its place, and a flag for each option; what is not given stays out of the namespace."""
    parser.add_argument("model", nargs="?", metavar="MODEL", help="as --model: a folder, a GGUF file or a hub id")
    group = parser.add_argument_group("server options")
    for field in msgspec.structs.fields(ServerOptions):
        flag = _flag(field.name)
        settings: dict[str, Any] = {"dest": _dest(field.name), "default": argparse.SUPPRESS, "help": _help(field)}
        if _plain(field.type) is bool:
            settings["action"] = argparse.BooleanOptionalAction
        else:
            settings["metavar"] = "VALUE"
            settings["action"] = "append" if _is_list(field.type) else "store"
        group.add_argument(flag, **settings)


def read_options(arguments: argparse.Namespace) -> ServerOptions:
    """The options in force: flags win over file and environment. Raises `ConfigError`."""
    given = dict(arguments.engine_config.plugins.get(PLUGIN, {}))
    said = {name: f"plugins.{PLUGIN}.{name}" for name in given}
    for name in ServerOptions.__struct_fields__:
        if hasattr(arguments, _dest(name)):
            given[name], said[name] = getattr(arguments, _dest(name)), _flag(name)
    options = ServerOptions(**{name: _convert(name, value, said[name]) for name, value in given.items()})
    key = os.environ.get(API_KEY_VARIABLE)
    if key and key not in options.api_key:
        options = msgspec.structs.replace(options, api_key=(*options.api_key, key))
    if (options.ssl_certfile is None) != (options.ssl_keyfile is None):
        raise ConfigError(f"plugins.{PLUGIN}: ssl_certfile and ssl_keyfile go together; give both or none")
    if not all(options.api_key):
        raise ConfigError(f"plugins.{PLUGIN}.api_key: a key cannot be empty")
    return options


def read_engine_config(arguments: argparse.Namespace) -> EngineConfig:
    """The engine's configuration, with the model that was given by its place."""
    config: EngineConfig = arguments.engine_config
    if arguments.model is None:
        return config
    return msgspec.structs.replace(config, model=msgspec.structs.replace(config.model, path=arguments.model))


def _convert(name: str, value: Any, said: str) -> Any:
    """An option's value, which may be written as text, as flags and environment have it; `said`: how it was named."""
    types = {field.name: field.type for field in msgspec.structs.fields(ServerOptions)}
    if name not in types:
        raise ConfigError(f"plugins.{PLUGIN}: no option is called {name!r}{suggestion(name, types)}")
    kind = _plain(types[name])
    if isinstance(value, str) and _is_list(types[name]):
        value = [part.strip() for part in value.split(",") if part.strip()]
    elif isinstance(value, str) and value.lower() == "none" and type(None) in typing.get_args(kind):
        value = None
    try:
        return msgspec.convert(value, types[name], strict=False)
    except msgspec.ValidationError as error:
        reason = str(error).replace("`", "").replace("Expected", "must be")
        if typing.get_origin(kind) is Literal:
            reason = f"must be one of {', '.join(typing.get_args(kind))}"
        raise ConfigError(f"{said}: {reason}") from None


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _dest(name: str) -> str:
    return f"server_{name}"


def _plain(annotated: Any) -> Any:
    return typing.get_args(annotated)[0] if typing.get_origin(annotated) is Annotated else annotated


def _is_list(annotated: Any) -> bool:
    return typing.get_origin(_plain(annotated)) is tuple


def _help(field: msgspec.structs.FieldInfo) -> str:
    text = next(meta.description for meta in field.type.__metadata__ if meta.description)
    if _is_list(field.type):
        return f"{text} Repeatable.".replace("%", "%%")
    default = {None: "none", True: "yes", False: "no"}.get(field.default, field.default)
    kind = _plain(field.type)
    choices = f"{'|'.join(typing.get_args(kind))}; " if typing.get_origin(kind) is Literal else ""
    return f"{text} ({choices}default: {default})".replace("%", "%%")
