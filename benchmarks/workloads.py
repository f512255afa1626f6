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
    """Random ids; 32 to 512 of them in, 32 to 256 out, both uniform."""
    draw = random.Random(seed)
    sizes = [(draw.randint(32, 512), draw.randint(32, 256)) for _ in range(num_requests)]
    return [RandomRequest(tuple(draw.randrange(vocab_size) for _ in range(i)), o) for i, o in sizes]


def _lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]
