"""Puts an engine together out of a configuration and extensions.

Owns: the order in which parts are made, and how large the KV cache is. Must never know: what any part does.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from octavo.config import EngineConfig
from octavo.engine.client import EngineClient, EngineFacts
from octavo.engine.core import EngineCore
from octavo.engine.engine import LLMEngine
from octavo.engine.input_processor import InputProcessor
from octavo.errors import CapacityError, ConfigError, ModelLoadError, PluginError
from octavo.extensions import Extensions
from octavo.kv import (
    KVCacheGroup,
    KVCacheManager,
    capacity_tokens,
    group_layers,
    size_groups,
    with_num_blocks,
)
from octavo.loading.chat_template import read_chat_template
from octavo.loading.locate import locate, open_source
from octavo.loading.model_config import derive_max_model_len, eos_token_ids, extended_max_model_len
from octavo.loading.tokenizer import HFTokenizer
from octavo.plugins import leaves_of, parse_bytes
from octavo.scheduler import AdaptiveDrafts, AllDrafts, Scheduler, StepCosts
from octavo.spec import (
    Executor,
    ExecutorContext,
    KVCacheLayout,
    KVCacheSpec,
    KVPolicy,
    ModelSource,
    Observer,
    Tokenizer,
    TokenizerData,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A model's files, as far as both the core and the front end look into them."""

    source: ModelSource
    tokenizer: Tokenizer | None
    max_model_len: int
    """By the model and the configuration; the KV cache may hold less."""


def open_model(config: EngineConfig, extensions: Extensions) -> OpenedModel:
    """Raises `ModelLoadError` or `ConfigError`. Reads no weights."""
    source = open_source(locate(config.model.path, config.model.revision), extensions.weight_formats)
    return OpenedModel(source, _open_tokenizer(config, source, extensions), _model_length(config, source.config))


def build_core(config: EngineConfig, extensions: Extensions, model: OpenedModel) -> EngineCore:
    """Load the model and make everything that needs no text.

    Raises `ModelLoadError`, `ConfigError`, `PluginError` or `CapacityError`, each saying what to change.
    """
    executor: Executor = extensions.executors.find(config.parallel.executor).make(
        ExecutorContext(
            config=config,
            extensions=extensions,
            source=model.source,
            tokenizer=model.tokenizer,
            max_model_len=model.max_model_len,
        )
    )
    try:
        return _assemble(config, extensions, model, executor)
    except BaseException:
        executor.shutdown()
        raise


def build_engine(
    config: EngineConfig,
    extensions: Extensions,
    core: EngineClient | None = None,
) -> LLMEngine:
    """An engine with its front end, around a core that runs elsewhere or, without one, around one built here.

    Raises what `build_core` does; `core` is then shut down.
    """
    try:
        model = open_model(config, extensions)
        core = core or build_core(config, extensions, model)
        inputs = _input_processor(config, extensions, model, core.facts)
        return LLMEngine(core, inputs, _make_observers(config, extensions))
    except BaseException:
        if core is not None:
            core.shutdown()
        raise


def _assemble(config: EngineConfig, extensions: Extensions, model: OpenedModel, executor: Executor) -> EngineCore:
    longest = model.max_model_len
    groups = _size_cache(config, executor, extensions, longest)
    max_model_len, reason = _fit_length(config, groups, longest)
    executor.initialize_kv_cache(
        KVCacheLayout(
            groups=tuple(g.layer_names for g in groups),
            num_blocks=tuple(g.num_blocks for g in groups),
            table_widths=tuple(g.policy.blocks_for(max_model_len) for g in groups),
        )
    )
    kv = KVCacheManager(groups, config.cache.block_size, config.cache.enable_prefix_caching)
    queue = extensions.first(extensions.queue_makers, "queue", config.scheduler.policy)
    sizing = _draft_sizing(config, extensions, executor, max_model_len)
    scheduler = Scheduler(config.scheduler, kv, queue, max_model_len, executor.num_lookahead_tokens, sizing)
    description = {"model": model.source.path, **executor.describe(), "KV cache": _describe_cache(groups)}
    description["length"] = f"at most {max_model_len} tokens a sequence ({reason})"
    description |= _describe_choices(config, extensions)
    for name, text in description.items():
        logger.info("%s: %s", name, text)
    return EngineCore(scheduler, kv, executor, EngineFacts(max_model_len, reason, description))


def _input_processor(
    config: EngineConfig, extensions: Extensions, model: OpenedModel, facts: EngineFacts
) -> InputProcessor:
    source = model.source
    generation_config = source.generation_config if config.model.use_generation_config else {}
    return InputProcessor(
        model.tokenizer,
        vocab_size=_vocab_size(source),
        max_model_len=facts.max_model_len,
        model_len_reason=facts.model_len_reason,
        eos_token_ids=eos_token_ids(source.config, generation_config, model.tokenizer),
        generation_config=generation_config,
        processors=extensions.logits_processors,
        grammar_backend=config.structured_outputs.grammar_backend,
        seed=config.sampling.seed,
    )


def _draft_sizing(config: EngineConfig, extensions: Extensions, executor: Executor, max_model_len: int) -> AllDrafts:
    """Who decides how many drafts are verified. Costs are measured where drafts can be rejected."""
    most = config.speculation.num_draft_tokens
    if not config.speculation.adaptive:
        return AllDrafts()
    if most == 0 or not extensions.drafters.find(config.speculation.drafter).entry.rewinds:
        return AdaptiveDrafts(StepCosts.assumed())
    longest = min(config.scheduler.max_num_batched_tokens, config.scheduler.max_num_seqs * (most + 1), max_model_len)
    sizes = sorted({longest, *(2**i for i in range(longest.bit_length()))})
    seconds = executor.measure_step_costs(sizes)
    return AdaptiveDrafts(StepCosts(sizes[: len(seconds)], seconds))


def _open_tokenizer(config: EngineConfig, source: ModelSource, extensions: Extensions) -> Tokenizer | None:
    """The model's tokenizer, or the configured one; None if the model has none, and then prompts are token ids."""
    where, template = config.model.tokenizer, config.model.chat_template
    if where is not None:
        source = open_source(locate(where), extensions.weight_formats)
    try:
        tokenizer = source.tokenizer()
    except ModelLoadError as error:
        if where is not None or template is not None:
            raise
        logger.warning("prompts must be token ids: %s", error)
        return None
    if isinstance(tokenizer, TokenizerData):
        if template is not None:
            tokenizer = replace(tokenizer, chat_template=read_chat_template(template))
        return HFTokenizer(tokenizer)
    if template is not None:
        raise ConfigError("model.chat_template: this model's tokenizer renders chats itself; leave the option out")
    return tokenizer


def _vocab_size(source: ModelSource) -> int:
    size = source.config.get("vocab_size")
    if not isinstance(size, int) or size < 1:
        raise ModelLoadError(f"{source.path}: the config's vocab_size is {size!r}, not a positive whole number")
    return size


def _make_observers(config: EngineConfig, extensions: Extensions) -> list[Observer]:
    observers: list[Observer] = []
    for maker in extensions.observer_makers:
        try:
            observers += maker.entry(config, extensions.options_of(maker))
        except Exception as error:
            raise PluginError(f"plugin {maker.origin} failed to make its observers: {error!r}") from error
    return observers


def _model_length(config: EngineConfig, model_config: Mapping[str, Any]) -> int:
    own, wanted = derive_max_model_len(model_config), config.model.max_model_len
    extended = extended_max_model_len(model_config)
    if wanted is not None and wanted > extended:
        raise ConfigError(f"model.max_model_len: {wanted} is more than the model's own length, {extended}")
    return wanted or own


def _size_cache(
    config: EngineConfig, executor: Executor, extensions: Extensions, max_model_len: int
) -> tuple[KVCacheGroup, ...]:
    def make_policy(spec: KVCacheSpec) -> KVPolicy:
        offer = extensions.kv_policies.find(type(spec).__name__)
        return offer.make(spec, config.scheduler.max_num_batched_tokens)

    groups = group_layers(executor.kv_cache_specs(), make_policy)
    drafter = extensions.drafters.find(config.speculation.drafter).entry
    fixed = [type(g.spec).__name__ for g in groups if drafter.rewinds and not g.policy.rewindable]
    if fixed:
        raise ConfigError(f"drafter {drafter.name!r} needs KV caches that can be rewound, unlike {', '.join(fixed)}")
    if config.cache.num_blocks is not None:
        return with_num_blocks(groups, config.cache.num_blocks)
    budget = parse_bytes(config.cache.memory)
    if budget is None:
        budget = int(executor.profile() * config.cache.memory_fraction)
    return size_groups(groups, budget, max_model_len, config.scheduler.max_num_seqs)


def _fit_length(config: EngineConfig, groups: tuple[KVCacheGroup, ...], longest: int) -> tuple[int, str]:
    """The longest sequence that can be served, and what limits it. One that is alone must always fit."""
    capacity = capacity_tokens(groups)
    if capacity >= longest:
        configured = config.model.max_model_len is not None
        return longest, "model.max_model_len is configured so" if configured else "the model's length is that"
    if config.model.max_model_len is not None:
        raise CapacityError(
            f"model.max_model_len is {longest}, but the KV cache holds {capacity} tokens: "
            "raise cache.memory or cache.num_blocks, or lower model.max_model_len"
        )
    return capacity, f"the KV cache holds {capacity} tokens; raise cache.memory for more"


def _describe_choices(config: EngineConfig, extensions: Extensions) -> dict[str, str]:
    """What was asked for and shows nowhere else: the drafter, and plugins' options."""
    found = {}
    if config.speculation.drafter != "none":
        how = "as many as pay" if config.speculation.adaptive else "all verified"
        found["drafter"] = f"{config.speculation.drafter}, up to {config.speculation.num_draft_tokens} drafts, {how}"
    for plugin, options in extensions.options.items():
        leaves = leaves_of(type(options)).items()
        values = {name: (leaf.shown(getattr(options, name)), leaf.default) for name, leaf in leaves}
        changed = [f"{name} {value}" for name, (value, default) in values.items() if value != default]
        if changed:
            found[f"options of {plugin}"] = ", ".join(changed)
    return found


def _describe_cache(groups: tuple[KVCacheGroup, ...]) -> str:
    num_bytes = sum(g.block_bytes * g.num_blocks for g in groups)
    blocks = ", ".join(f"{g.num_blocks - 1} blocks of {g.spec.block_size}" for g in groups)
    return f"{capacity_tokens(groups)} tokens fit ({blocks}; {num_bytes / 2**30:.2f} GiB)"
