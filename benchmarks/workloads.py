"""What the benchmarks run: prompts and schemas that ship with the tests, and random ids.

Owns: reading `tests/data`, and W1. Must never know: how anything is measured.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "tests" / "data"
Message = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    name: str
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class NamedSchema:
    name: str
    schema: dict[str, Any]
    instances: tuple[Any, ...]
    """Values that satisfy the schema, their keys in the order of its properties."""


@dataclass(frozen=True, slots=True)
class RandomRequest:
    prompt_token_ids: tuple[int, ...]
    num_output_tokens: int


def chat_prompts(task: str) -> list[ChatPrompt]:
    """The prompts of `repeat`, `open` or `agent`; those of `agent` must run in this order."""
    if task == "agent":
        return [prompt for session in _lines("agent_sessions.jsonl") for prompt in _session_prompts(session)]
    file = {"repeat": "repeat_input_prompts.jsonl", "open": "open_chat_prompts.jsonl"}[task]
    return [ChatPrompt(line["name"], tuple(line["messages"])) for line in _lines(file)]


def _session_prompts(session: dict[str, Any]) -> list[ChatPrompt]:
    """A prompt a turn: the system text, examples, earlier turns if the session has a history, and the turn."""
    prompts: list[ChatPrompt] = []
    messages: list[Message] = [{"role": "system", "content": session["system"]}]
    for example in session["examples"]:
        messages += _exchange(example["user"], example["answer"])
    for i, turn in enumerate(session["turns"]):
        name = f"{session['name']}/{i + 1}"
        prompts.append(ChatPrompt(name, (*messages, {"role": "user", "content": turn["user"]})))
        if session["history"]:
            messages += _exchange(turn["user"], turn["expected"])
    return prompts


def _exchange(asked: str, answered: str) -> list[Message]:
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]


def schemas() -> list[NamedSchema]:
    lines = _lines("json_schemas.jsonl")
    return [NamedSchema(line["name"], line["schema"], tuple(line["instances"])) for line in lines]


def w1(num_requests: int, vocab_size: int, seed: int = 0) -> list[RandomRequest]:
    """32 to 511 random ids in, 32 to 255 out, both uniform; 18,983 and 9,469 for 64 requests of seed 0.

    Drawn as `octavo bench` and `benchmarks/compare` draw it: ids from 50 on, at most 48,999.
    """
    draw, requests = random.Random(seed), []
    for _ in range(num_requests):
        num_ids = draw.randrange(32, 512)
        ids = tuple(draw.randrange(50, min(vocab_size, 49_000)) for _ in range(num_ids))
        requests.append(RandomRequest(ids, draw.randrange(32, 256)))
    return requests


def _lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]
