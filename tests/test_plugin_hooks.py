"""Every kind of hook at work in a running engine, from one plugin that core knows nothing about.

The plugin brings a hybrid model: one layer that reads everything and one that reads a window, each with a kind of KV
cache of its own, so that two KV cache groups with different policies serve one sequence.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from octavo import SamplingParams
from octavo.errors import ConfigError
from octavo.hookspecs import hookimpl
from octavo.nn import Attention
from octavo.runner.platforms import CPUPlatform
from octavo.sampling.verifier import ExactVerifier
from octavo.scheduler.queues import FCFSQueue
from octavo.spec import (
    AttentionBackendEntry,
    AttentionCapabilities,
    AttentionLayerParams,
    ForwardBatch,
    FullAttentionSpec,
    KVCacheSpec,
    KVPolicyEntry,
    Model,
    ModelContext,
    ModelEntry,
    ModelTransform,
    Observer,
    PlatformEntry,
    SequenceView,
)
from octavo.testing.naive import naive_generate
from octavo.testing.scripted import ScriptedDrafter
from octavo.testing.table_model import (
    ARCHITECTURE,
    EOS_TOKEN_ID,
    MAX_MODEL_LEN,
    VOCAB_SIZE,
    TableAttention,
    TableModel,
    logits_of,
    state_of,
    table_llm,
)

WINDOW = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSpec(KVCacheSpec):
    """A cache of which only the last `window` positions are read."""

    window: int

    @property
    def page_size_bytes(self) -> int:
        return 8 * self.block_size


class WindowPolicy:
    """A `KVPolicy`: blocks that left the window are given back."""

    rewindable = True
    prefix_cacheable = True

    def __init__(self, spec: WindowSpec, max_step_tokens: int) -> None:
        self.window, self.block_size, self.alignment = spec.window, spec.block_size, spec.block_size
        self.max_step_tokens = max_step_tokens

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def max_blocks_held(self, num_tokens: int) -> int:
        return min(self.blocks_for(num_tokens), self.blocks_for(self.window - 1 + self.max_step_tokens) + 1)

    def first_needed(self, num_computed_tokens: int) -> int:
        return max(0, num_computed_tokens - self.window + 1) // self.block_size

    def longest_hit(
        self, block_hashes: Sequence[bytes], lookup: Callable[[bytes], int | None], max_blocks: int
    ) -> list[int | None]:
        for length in range(min(max_blocks, len(block_hashes)), 0, -1):
            first = self.first_needed(length * self.block_size)
            tail = [lookup(block_hash) for block_hash in block_hashes[first:length]]
            if None not in tail:
                return [None] * first + tail
        return []

    def eviction_key(self, block_index: int) -> int:
        return block_index


class HybridModel(TableModel):
    """Its logits depend on all tokens so far and, separately, on the last few."""

    def __init__(self, config: Mapping[str, Any], context: ModelContext) -> None:
        super().__init__(config, context)
        params = AttentionLayerParams(num_heads=1, num_kv_heads=1, head_dim=1, scale=1.0, sliding_window=WINDOW)
        self.window = Attention("window", params, WindowSpec(block_size=context.block_size, window=WINDOW))
        self.bias = torch.zeros(VOCAB_SIZE)

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        ids = batch.input_ids.to(torch.float32).view(-1, 1, 1)
        return torch.cat([self.attention(ids, ids, ids, batch), self.window(ids, ids, ids, batch)], dim=1)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return logits_of(hidden[:, 0]) + 2 * logits_of(hidden[:, 1]) + self.bias

    def kv_cache_specs(self) -> Mapping[str, KVCacheSpec]:
        return {layer.name: layer.spec for layer in (self.attention, self.window)}


def expected_logits(tokens: Sequence[int]) -> torch.Tensor:
    whole, window = state_of(tokens), state_of(tokens[-WINDOW:])
    logits = logits_of(torch.tensor([whole])) + 2 * logits_of(torch.tensor([window]))
    logits[:, 7] -= 50
    return logits[0]


class FavouredCPU(CPUPlatform):
    def preferred_dtype(self) -> tuple[str, str]:
        return "float32", "the test says so"


class Watcher(Observer):
    def __init__(self) -> None:
        self.requests, self.finished, self.num_tokens = 0, 0, 0

    def on_request(self, request: Any) -> None:
        self.requests += 1

    def on_step(self, stats: Any) -> None:
        self.num_tokens += stats.num_generated_tokens

    def on_finished(self, output: Any) -> None:
        self.finished += 1


class EveryHook:
    """The plugin."""

    def __init__(self) -> None:
        self.watcher = Watcher()
        self.asked: list[str] = []

    @hookimpl
    def octavo_register_models(self) -> list[ModelEntry]:
        return [ModelEntry(name="HybridForTest", factory=HybridModel)]

    @hookimpl
    def octavo_register_kv_policies(self) -> list[KVPolicyEntry]:
        return [KVPolicyEntry(spec_type=WindowSpec, factory=WindowPolicy)]

    @hookimpl
    def octavo_register_attention_backends(self) -> list[AttentionBackendEntry]:
        window = AttentionCapabilities(
            devices=frozenset({"cpu"}),
            dtypes=frozenset({"float32"}),
            sliding_window=True,
            spec_types=(WindowSpec,),
        )
        rival = AttentionCapabilities(devices=frozenset({"cpu"}), dtypes=frozenset({"float32"}))
        return [
            AttentionBackendEntry(name="window", factory=lambda _: TableAttention(), capabilities=window),
            AttentionBackendEntry(name="rival", factory=lambda _: 1 / 0, capabilities=rival, priority=1000),
        ]

    @hookimpl
    def octavo_choose_attention_backend(self, spec: KVCacheSpec, candidates: tuple[str, ...]) -> str | None:
        self.asked.append(type(spec).__name__)
        return "table" if isinstance(spec, FullAttentionSpec) else None

    @hookimpl
    def octavo_register_platforms(self) -> list[PlatformEntry]:
        return [PlatformEntry(name="favoured", factory=FavouredCPU, priority=1000)]

    @hookimpl
    def octavo_transform_models(self) -> list[ModelTransform]:
        def forbid_seven(model: Model, options: Any) -> Model:
            model.bias[7] -= 50  # type: ignore[attr-defined]
            return model

        return [ModelTransform(name="forbid_seven", apply=forbid_seven)]

    @hookimpl
    def octavo_make_observers(self) -> list[Watcher]:
        return [self.watcher]

    @hookimpl
    def octavo_make_verifier(self, name: str) -> ExactVerifier | None:
        self.asked.append(name)
        return ExactVerifier() if name == "mine" else None

    @hookimpl
    def octavo_make_queue(self, policy: str) -> FCFSQueue | None:
        self.asked.append(policy)
        return FCFSQueue() if policy == "mine" else None


def hybrid_llm(plugin: EveryHook, **keywords: Any) -> Any:
    own = {"architecture": "HybridForTest", "device": "auto", "dtype": "auto", "verifier": "mine", "policy": "mine"}
    return table_llm(plugins=[plugin, *keywords.pop("plugins", ())], **(own | keywords))


def test_every_hook_takes_part() -> None:
    plugin = EveryHook()
    llm = hybrid_llm(plugin)
    params = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)
    [output] = llm.generate([[9, 8, 3]], params)
    expected = naive_generate(expected_logits, [9, 8, 3], params, max_model_len=MAX_MODEL_LEN)
    assert output.outputs[0].token_ids == expected.token_ids
    assert {"FullAttentionSpec", "WindowSpec", "mine"} <= set(plugin.asked)
    assert (plugin.watcher.requests, plugin.watcher.finished, plugin.watcher.num_tokens) == (1, 1, 20)
    assert "the test says so" in llm.engine.description["dtype"]
    assert "window" in llm.engine.description["attention"]


@pytest.mark.parametrize("seed", range(6))
def test_a_hybrid_model_gets_the_same_tokens_in_every_way(seed: int) -> None:
    """Chunks, prefix hits of both groups, preemption, drafts: two KV cache groups, no change in core."""
    rng = random.Random(seed)
    truth: dict[tuple[int, ...], tuple[int, ...]] = {}

    def propose(sequence: SequenceView, max_drafts: int) -> list[int]:
        """The right tokens, with some wrong ones among them."""
        known = truth[tuple(sequence.prompt_token_ids.tolist())]
        drafts = known[len(sequence.output_token_ids) :][:max_drafts]
        return [t if rng.random() < 0.7 else rng.randrange(2, VOCAB_SIZE) for t in drafts]

    llm = hybrid_llm(
        EveryHook(),
        plugins=[ScriptedDrafter(propose)],
        drafter="scripted",
        block_size=rng.choice([1, 2, 4]),
        num_blocks=rng.choice([40, 64]),
        max_num_batched_tokens=rng.choice([16, 64]),
        long_prefill_token_threshold=rng.choice([0, 3, 7]),
        max_num_seqs=4,
    )
    params = SamplingParams(max_tokens=12, temperature=1, seed=seed, ignore_eos=True)
    shared = [rng.randrange(2, VOCAB_SIZE) for _ in range(9)]
    prompts = [shared + [rng.randrange(2, VOCAB_SIZE) for _ in range(rng.randrange(1, 6))] for _ in range(6)]
    for prompt in prompts:
        truth[tuple(prompt)] = naive_generate(
            expected_logits, prompt, params, eos_token_ids=[EOS_TOKEN_ID], max_model_len=MAX_MODEL_LEN
        ).token_ids
    for _ in range(2):  # the second time from a warm cache
        for i, prompt in enumerate(prompts):
            llm.engine.add_request(str(i), prompt, params)
        while llm.engine.has_unfinished_requests():
            for output in llm.engine.step():
                if output.finished:
                    expected = truth[output.prompt_token_ids]
                    assert output.outputs[0].token_ids == expected
            llm.engine.check_integrity()


def test_drafts_over_a_cache_that_cannot_be_rewound_are_refused_when_the_engine_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(WindowPolicy, "rewindable", False)
    hybrid_llm(EveryHook())
    with pytest.raises(ConfigError, match=r"drafter 'scripted' .* WindowSpec"):
        hybrid_llm(EveryHook(), plugins=[ScriptedDrafter(lambda sequence, most: [])], drafter="scripted")


def test_the_plain_table_model_is_still_what_it_was() -> None:
    """The hybrid one differs from it, so the tests above can fail."""
    assert ARCHITECTURE != "HybridForTest"
    plain = logits_of(torch.tensor([state_of([9, 8, 3])]))[0]
    assert not torch.equal(plain, expected_logits([9, 8, 3]))
