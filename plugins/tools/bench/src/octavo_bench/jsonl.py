"""Requests from a file, one JSON object a line.

Owns: the fields and the errors that name file and line. Must never know: engines, servers, clocks.

    {"prompt": "Hello", "max_tokens": 16}
    {"messages": [{"role": "user", "content": "Hello"}], "output_len": 32}
    {"prompt_token_ids": [1, 2, 3]}
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from octavo.errors import ConfigError, OctavoError
from octavo.spec import Tokenizer
from octavo_bench.workload import BenchRequest, Lengths

PROMPT_FIELDS = ("prompt", "messages", "prompt_token_ids")
LENGTH_FIELDS = ("max_tokens", "output_len")


@dataclass(frozen=True, slots=True)
class FileRequest:
    """One line of a file, as it stands there."""

    where: str
    """File and line, for errors."""
    field: str
    """Which of `PROMPT_FIELDS` it has."""
    value: Any
    """Text, a list of messages or a list of token ids; not empty."""
    num_output_tokens: int


def read_lines(path: str, output_len: Lengths, num_prompts: int | None, seed: int) -> list[FileRequest]:
    """The first `num_prompts` requests of a file, or all. Blank lines and fields that mean nothing here are skipped.

    A line without a length of its own gets one of `output_len`, drawn with `seed`.
    Raises `ConfigError` naming the line that cannot be used, or if there are fewer requests than wanted.
    """
    try:
        with open(path, encoding="utf-8-sig") as file:
            lines = [(number, line) for number, line in enumerate(file, 1) if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--dataset-path: cannot read {path!r}: {error}") from error
    if len(lines) < (num_prompts or 1):
        wanted = f"--num-prompts asks for {num_prompts}; lower it" if num_prompts else "write one JSON object a line"
        raise ConfigError(f"--dataset-path: {path!r} holds {len(lines)} requests, and {wanted}")
    draw = random.Random(seed)
    requests = []
    for number, line in lines[:num_prompts]:
        length = draw.randint(output_len.low, output_len.high)  # drawn for every line, used or not
        where = f"{path}, line {number}"
        try:
            requests.append(_request(where, msgspec.json.decode(line), length))
        except (msgspec.DecodeError, ConfigError) as error:
            raise ConfigError(f"{where}: {error}") from error
    return requests


def read_requests(
    path: str, tokenizer: Tokenizer | None, output_len: Lengths, num_prompts: int | None, seed: int
) -> list[BenchRequest]:
    """What `read_lines` gives, as token ids. Raises `ConfigError` as it does, or where a tokenizer is missing."""
    requests = []
    for line in read_lines(path, output_len, num_prompts, seed):
        try:
            ids = _token_ids(line, tokenizer)
        except (ValueError, TypeError, OctavoError) as error:
            raise ConfigError(f"{line.where}: {error}") from error
        requests.append(BenchRequest(tuple(ids), line.num_output_tokens))
    return requests


def _request(where: str, record: Any, output_len: int) -> FileRequest:
    if not isinstance(record, Mapping):
        raise ConfigError(f"must be an object with one of {', '.join(PROMPT_FIELDS)}, got {type(record).__name__}")
    given = [name for name in PROMPT_FIELDS if record.get(name) is not None]
    if len(given) != 1:
        raise ConfigError(f"must have exactly one of {', '.join(PROMPT_FIELDS)}; it has {', '.join(given) or 'none'}")
    field, value = given[0], record[given[0]]
    _check(field, value)
    length = next((record[name] for name in LENGTH_FIELDS if record.get(name) is not None), output_len)
    if type(length) is not int or length < 1:
        raise ConfigError(f"max_tokens (or output_len) must be a whole number of at least 1, got {length!r}")
    return FileRequest(where, field, value, length)


def _check(field: str, value: Any) -> None:
    if field == "prompt_token_ids" and (not isinstance(value, list) or any(type(i) is not int for i in value)):
        raise ConfigError("prompt_token_ids must be a list of whole numbers")
    if field == "prompt" and not isinstance(value, str):
        raise ConfigError(f"prompt must be text, got {type(value).__name__}")
    if field == "messages" and not (isinstance(value, list) and all(isinstance(m, Mapping) for m in value)):
        raise ConfigError("messages must be a list of objects with role and content")
    if not value:
        raise ConfigError(f"{field} is empty; give at least one token")


def _token_ids(line: FileRequest, tokenizer: Tokenizer | None) -> list[int]:
    if line.field == "prompt_token_ids":
        return line.value
    if tokenizer is None:
        raise ConfigError(f"{line.field} needs a tokenizer, and this model has none; give prompt_token_ids")
    if line.field == "prompt":
        ids = tokenizer.encode(line.value)
    else:
        ids = tokenizer.encode(tokenizer.apply_chat_template(line.value), add_special_tokens=False)
    if not ids:
        raise ConfigError(f"{line.field} is empty; give at least one token")
    return ids
