"""The one configuration tree. Records with their ranges and help texts, nothing else.

Owns: the sections and their defaults. Must never know: where values come from (`octavo.plugins.settings` merges
file, environment, command line and keyword arguments) or what plugins' own options mean.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

PositiveInt = Annotated[int, Meta(ge=1)]
Device = Literal["auto", "cpu", "cuda"]
DType = Literal["auto", "float32", "bfloat16", "float16"]


def _doc(text: str, **extra: str) -> Meta:
    return Meta(description=text, extra=extra)


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of the tree, or a plugin's options: frozen, keyword-only, unknown keys refused."""


class ModelConfig(Section, frozen=True):
    path: Annotated[
        str | None,
        _doc("Folder, GGUF file or hub id of the model; none: the packaged SmolLM2-135M-Instruct."),
    ] = None
    tokenizer: Annotated[str | None, _doc("Where to take the tokenizer from, if not from the model.")] = None
    chat_template: Annotated[
        str | None,
        _doc("Jinja template of chats instead of the model's own: a file of it, or the template itself."),
    ] = None
    device: Annotated[Device, _doc("Where the model runs; auto takes a GPU if there is one.")] = "auto"
    dtype: Annotated[DType, _doc("auto: bfloat16 on a GPU or a CPU with bfloat16 instructions, else float32.")] = "auto"
    max_model_len: Annotated[
        PositiveInt | None,
        _doc("Longest sequence in tokens; none: the model's own, cut to what the cache holds."),
    ] = None
    use_generation_config: Annotated[
        bool, _doc("Take default sampling options and EOS ids from the model's generation config.")
    ] = True
    revision: Annotated[str | None, _doc("Revision of a hub id.")] = None
    architecture: Annotated[str | None, _doc("Override the architecture named in the model's config.")] = None


class CacheConfig(Section, frozen=True):
    block_size: Annotated[int, Meta(ge=1, le=4096), _doc("Tokens in a block of the KV cache.")] = 16
    memory: Annotated[
        str | int | None,
        _doc("Size of the KV cache in bytes, or like '2GiB'; none: measured at start.", unit="bytes"),
    ] = None
    memory_fraction: Annotated[
        float, Meta(gt=0, le=1), _doc("Part of the memory found free at start that the KV cache may take.")
    ] = 0.5
    num_blocks: Annotated[
        Annotated[int, Meta(ge=2)] | None, _doc("Exact number of blocks in each KV cache group; overrides memory.")
    ] = None
    enable_prefix_caching: Annotated[bool, _doc("Share the KV of equal prefixes between requests.")] = True


class SchedulerConfig(Section, frozen=True):
    max_num_batched_tokens: Annotated[int, Meta(ge=1), _doc("Token budget of one step.")] = 2048
    max_num_seqs: Annotated[int, Meta(ge=1), _doc("Sequences that run at the same time.")] = 128
    long_prefill_token_threshold: Annotated[
        int, Meta(ge=0), _doc("Most prompt tokens of one sequence in one step; 0: only the budget limits.")
    ] = 0
    policy: Annotated[str, _doc("Order of the waiting queue: fcfs, priority, or a plugin's.")] = "fcfs"


class ParallelConfig(Section, frozen=True):
    executor: Annotated[str, _doc("Where the model runner runs: inproc, or a plugin's.")] = "inproc"
    num_threads: Annotated[PositiveInt | None, _doc("CPU threads for tensor work; none: all cores.")] = None


class SamplingConfig(Section, frozen=True):
    seed: Annotated[int | None, _doc("Seed for requests that bring none; none: drawn anew for each request.")] = None
    logits_processors: Annotated[
        tuple[str, ...],
        _doc("Processors of plugins that see every request; others wait for a request to name them."),
    ] = ()
    verifier: Annotated[
        str, _doc("Acceptance rule for drafts: exact (same tokens as without), rejection, or a plugin's.")
    ] = "exact"


class SpeculationConfig(Section, frozen=True):
    drafter: Annotated[str, _doc("Who proposes draft tokens: none, or a plugin's drafter.")] = "none"
    num_draft_tokens: Annotated[int, Meta(ge=0, le=128), _doc("Most drafts per sequence and step.")] = 16
    adaptive: Annotated[
        bool, _doc("Verify only as many drafts as measured acceptance and step times make worth it; false: all.")
    ] = True


class StructuredOutputsConfig(Section, frozen=True):
    grammar_backend: Annotated[
        str, _doc("Grammar backend for requests that name none; auto: the highest priority that has the kind.")
    ] = "auto"
    jump_forward: Annotated[bool, _doc("Propose text that the grammar forces as drafts.")] = True
    compile_timeout: Annotated[
        float, Meta(gt=0), _doc("CPU seconds for the compilation of one grammar; waiting included, six times that.")
    ] = 10.0
    max_compile_bytes: Annotated[
        int, Meta(ge=2**20), _doc("Bytes of memory that the compilation of one grammar may take.")
    ] = 2**30
    max_source_bytes: Annotated[PositiveInt, _doc("Longest schema, regex or grammar in bytes.")] = 2**18
    max_cached_bytes: Annotated[int, Meta(ge=0), _doc("Memory in bytes for compiled grammars that are kept.")] = 2**28


class AttentionConfig(Section, frozen=True):
    backend: Annotated[str, _doc("Attention backend; auto: the highest priority that supports the layers.")] = "auto"


class EngineConfig(Section, frozen=True):
    """Everything that an engine is built from."""

    model: ModelConfig = msgspec.field(default_factory=ModelConfig)
    cache: CacheConfig = msgspec.field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = msgspec.field(default_factory=SchedulerConfig)
    parallel: ParallelConfig = msgspec.field(default_factory=ParallelConfig)
    sampling: SamplingConfig = msgspec.field(default_factory=SamplingConfig)
    speculation: SpeculationConfig = msgspec.field(default_factory=SpeculationConfig)
    structured_outputs: StructuredOutputsConfig = msgspec.field(default_factory=StructuredOutputsConfig)
    attention: AttentionConfig = msgspec.field(default_factory=AttentionConfig)
    plugins: Annotated[dict[str, dict[str, Any]], _doc("Options of plugins: plugins.<plugin>.<option>.")] = (
        msgspec.field(default_factory=dict)
    )
    disable_plugins: Annotated[tuple[str, ...], _doc("Installed plugins to leave out, by name.")] = ()
    override_plugins: Annotated[
        tuple[str, ...], _doc("Plugins whose offers win where another plugin offers the same name.")
    ] = ()
    strict_plugins: Annotated[bool, _doc("Make a broken plugin an error instead of a warning.")] = False
    autoload_plugins: Annotated[
        bool, _doc("Load every installed plugin; false: only built-ins and those passed to the engine.")
    ] = True
