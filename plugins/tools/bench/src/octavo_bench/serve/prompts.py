"""What is sent: the bench's workloads as bodies of completion requests.

Owns: prompts as token ids, text or messages, and the fields of a request. Must never know: HTTP, clocks, tokenizers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from octavo.errors import ConfigError
from octavo_bench.jsonl import FileRequest, read_lines
from octavo_bench.serve.exchange import Exchange
from octavo_bench.workload import Workload, random_requests

DEFAULT_VOCAB_SIZE = 49_000
"""Where neither the server nor an option says more: all ids that `random_requests` draws stay as they are."""
RESERVED_FIELDS = ("stream", "stream_options", "n", "best_of")
"""Without these as they are nothing could be measured."""
_TEXT = (
    "the of and to in is was for on that with as by at from his an were are which this be had also but has not or "
    "one their its they who have first all been after other two more when time some into only most between many about "
    "during these three part under years both city such then later world used over work where there known state four "
    "made out would people new may being second through year no will can early up him well like so however while she "
    "back game series even music several group life team number water high long small large still house name great "
    "much before same very until set since war against own each because end"
)
WORDS = tuple(_TEXT.split())
"""Common enough that each is one token of most vocabularies, together with the space before it."""


@dataclass(frozen=True, slots=True)
class Prompt:
    content: str | Sequence[int] | Sequence[Mapping[str, Any]]
    """Text, token ids, or messages."""
    num_output_tokens: int


def random_prompts(
    workload: Workload, num_prompts: int, *, as_text: bool, vocab_size: int | None, seed: int
) -> list[Prompt]:
    """The requests of `random_requests`, as token ids or with a common word for each id."""
    requests = random_requests(workload, num_prompts, vocab_size or DEFAULT_VOCAB_SIZE, seed)
    return [
        Prompt(_words(r.prompt_token_ids) if as_text else r.prompt_token_ids, r.num_output_tokens) for r in requests
    ]


def _words(ids: Sequence[int]) -> str:
    return " ".join(WORDS[i % len(WORDS)] for i in ids)


def file_prompts(path: str, workload: Workload, endpoint: str, seed: int) -> list[Prompt]:
    """The requests of a file. Raises `ConfigError` for lines that cannot be used or do not suit the endpoint."""
    lines = read_lines(path, workload.output_len, workload.num_prompts, seed)
    return [Prompt(_content(line, endpoint), line.num_output_tokens) for line in lines]


def _content(line: FileRequest, endpoint: str) -> Any:
    if line.field == "messages" and endpoint == "completions":
        raise ConfigError(f"{line.where}: messages need --endpoint chat")
    if line.field == "prompt_token_ids" and endpoint == "chat":
        raise ConfigError(f"{line.where}: prompt_token_ids need --endpoint completions")
    return line.value


def exchanges_of(prompts: Sequence[Prompt], endpoint: str, fields: Mapping[str, Any]) -> list[Exchange]:
    """Requests ready to be sent, with `fields` in each of them. Text becomes the message of a user for `chat`."""
    return [
        Exchange(body=msgspec.json.encode({**_own_fields(p, endpoint), **fields}), max_tokens=p.num_output_tokens)
        for p in prompts
    ]


def _own_fields(prompt: Prompt, endpoint: str) -> dict[str, Any]:
    content: Any = prompt.content
    if endpoint == "chat" and isinstance(content, str):
        content = [{"role": "user", "content": content}]
    return {
        "messages" if endpoint == "chat" else "prompt": content,
        "max_tokens": prompt.num_output_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
