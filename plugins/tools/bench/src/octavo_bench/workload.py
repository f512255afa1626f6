"""What is asked of the engine: requests as token ids, the same ones for the same seed.

Owns: the named workloads and the generator of random requests. Must never know: engines, tokenizers, clocks.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

FIRST_ID = 50
"""Lower ids are special tokens and single bytes in most vocabularies."""
_NUM_IDS = 48_950
"""So many ids are drawn from, up to 48,999."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Numbers of tokens, uniform from `low` to `high`, both included."""

    low: int
    high: int

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}:{self.high}"


@dataclass(frozen=True, slots=True)
class BenchRequest:
    prompt_token_ids: tuple[int, ...]
    num_output_tokens: int
    """Exactly so many are generated, or at most, where the end of sequence is not ignored."""

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_token_ids) + self.num_output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A kind of load, without the requests themselves."""

    dataset: str = "random"
    num_prompts: int | None
    """None: all that a file holds."""
    input_len: Lengths
    """Prompt tokens of a request, a shared prefix not counted. Of no meaning for a file."""
    output_len: Lengths
    prefix_len: int = 0
    """Tokens at the start of the prompt that all requests share."""


WORKLOADS: Mapping[str, Workload] = {
    "w1": Workload(num_prompts=64, input_len=Lengths(32, 512), output_len=Lengths(32, 256)),
    "w2": Workload(num_prompts=1, input_len=Lengths(300, 300), output_len=Lengths(200, 200)),
    "w3": Workload(
        dataset="shared-prefix",
        num_prompts=64,
        input_len=Lengths(32, 32),
        output_len=Lengths(64, 64),
        prefix_len=1024,
    ),
    "w4": Workload(num_prompts=8, input_len=Lengths(32, 512), output_len=Lengths(32, 256)),
}
DEFAULTS: Mapping[str, Workload] = {
    "random": WORKLOADS["w1"],
    "shared-prefix": WORKLOADS["w3"],
    "jsonl": Workload(
        dataset="jsonl", num_prompts=None, input_len=WORKLOADS["w1"].input_len, output_len=Lengths(128, 128)
    ),
}
"""What holds for options that are not given, by dataset."""


def random_requests(workload: Workload, num_prompts: int, vocab_size: int, seed: int) -> list[BenchRequest]:
    """Requests of random token ids.

    One `random.Random(seed)` draws everything: the ids of the shared prefix; then for each request the number of its
    own input tokens (`randint`), those ids one by one, and the number of its output tokens (`randint`). An id is
    `randrange(50, 49000)`. For vocabularies of fewer ids the drawn number is folded into what there is, so that the
    numbers of tokens are the same for every model: `w1` with seed 0 has 18,983 tokens in and 9,469 out, and the
    requests of `w4` are the first eight of them.
    """
    draw = random.Random(seed)
    first = min(FIRST_ID, vocab_size // 2)

    def ids(number: int) -> tuple[int, ...]:
        return tuple(first + draw.randrange(_NUM_IDS) % (vocab_size - first) for _ in range(number))

    prefix = ids(workload.prefix_len)
    requests = []
    for _ in range(num_prompts):
        own = ids(draw.randint(workload.input_len.low, workload.input_len.high))
        requests.append(BenchRequest(prefix + own, draw.randint(workload.output_len.low, workload.output_len.high)))
    return requests
