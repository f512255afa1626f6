"""Requests from a file, one JSON object a line.

Owns: the fields and the errors that name file and line. Must never know: engines, clocks.

    {"prompt": "Hello", "max_tokens": 16}
    {"messages": [{"role": "user", "content": "Hello"}], "output_len": 32}
    {"prompt_token_ids": [1, 2, 3]}
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import msgspec

from octavo.errors import ConfigError, OctavoError
from octavo.spec import Tokenizer
from octavo_bench.workload import BenchRequest, Lengths

PROMPT_FIELDS = ("prompt", "messages", "prompt_token_ids")
LENGTH_FIELDS = ("max_tokens", "output_len")


def read_requests(
    path: str, tokenizer: Tokenizer | None, output_len: Lengths, num_prompts: int | None, seed: int
) -> list[BenchRequest]:
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
        try:
            requests.append(_request(msgspec.json.decode(line), tokenizer, length))
        except (msgspec.DecodeError, ValueError, TypeError, OctavoError) as error:
            raise ConfigError(f"{path}, line {number}: {error}") from error
    return requests


def _request(record: Any, tokenizer: Tokenizer | None, output_len: int) -> BenchRequest:
    if not isinstance(record, Mapping):
        raise ConfigError(f"must be an object with one of {', '.join(PROMPT_FIELDS)}, got {type(record).__name__}")
    given = [name for name in PROMPT_FIELDS if record.get(name) is not None]
    if len(given) != 1:
        raise ConfigError(f"must have exactly one of {', '.join(PROMPT_FIELDS)}; it has {', '.join(given) or 'none'}")
    ids = _token_ids(given[0], record[given[0]], tokenizer)
    if not ids:
        raise ConfigError(f"{given[0]} is empty; give at least one token")
    length = next((record[name] for name in LENGTH_FIELDS if record.get(name) is not None), output_len)
    if type(length) is not int or length < 1:
        raise ConfigError(f"max_tokens (or output_len) must be a whole number of at least 1, got {length!r}")
    return BenchRequest(tuple(ids), length)


def _token_ids(field: str, value: Any, tokenizer: Tokenizer | None) -> list[int]:
    if field == "prompt_token_ids":
        if not isinstance(value, list) or any(type(i) is not int for i in value):
            raise ConfigError("prompt_token_ids must be a list of whole numbers")
        return value
    if tokenizer is None:
        raise ConfigError(f"{field} needs a tokenizer, and this model has none; give prompt_token_ids")
    if field == "prompt":
        if not isinstance(value, str):
            raise ConfigError(f"prompt must be text, got {type(value).__name__}")
        return tokenizer.encode(value)
    if not isinstance(value, list) or not all(isinstance(message, Mapping) for message in value):
        raise ConfigError("messages must be a list of objects with role and content")
    return tokenizer.encode(tokenizer.apply_chat_template(value), add_special_tokens=False)
