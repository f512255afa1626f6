"""The built-in plugin: what core itself offers, through the same hooks as anybody else.

Owns: the list. Must never know: the things listed. All are import strings, so that nothing heavy is imported before
it is used.
"""

from __future__ import annotations

from octavo.hookspecs import hookimpl
from octavo.spec import (
    Command,
    DrafterEntry,
    ExecutorEntry,
    FullAttentionSpec,
    KVPolicyEntry,
    LogitsProcessorEntry,
    PlatformEntry,
    Verifier,
    WaitingQueue,
    load_factory,
)

_QUEUES = {"fcfs": "octavo.scheduler.queues:FCFSQueue", "priority": "octavo.scheduler.queues:PriorityQueue"}
_VERIFIERS = {
    "exact": "octavo.sampling.verifier:ExactVerifier",
    "rejection": "octavo.sampling.rejection:RejectionVerifier",
}


@hookimpl
def octavo_register_logits_processors() -> list[LogitsProcessorEntry]:
    processors = (
        ("penalties", "Penalties", 10),
        ("logit_bias", "LogitBias", 20),
        ("allowed_token_ids", "AllowedTokens", 30),
        ("bad_words", "BadWords", 40),
        ("min_tokens", "MinTokens", 50),
    )
    return [
        LogitsProcessorEntry(name=name, factory=f"octavo.sampling.processors:{factory}", always=True, order=order)
        for name, factory, order in processors
    ]


@hookimpl
def octavo_register_drafters() -> list[DrafterEntry]:
    return [DrafterEntry(name="none", factory="octavo.runner.drafting:NoDrafter", rewinds=False)]


@hookimpl
def octavo_register_executors() -> list[ExecutorEntry]:
    return [ExecutorEntry(name="inproc", factory="octavo.executor.inproc:InProcessExecutor")]


@hookimpl
def octavo_register_platforms() -> list[PlatformEntry]:
    return [
        PlatformEntry(name="cpu", factory="octavo.runner.platforms:CPUPlatform", priority=0),
        PlatformEntry(name="cuda", factory="octavo.runner.platforms:CUDAPlatform", priority=10),
    ]


@hookimpl
def octavo_register_kv_policies() -> list[KVPolicyEntry]:
    return [KVPolicyEntry(spec_type=FullAttentionSpec, factory="octavo.kv.policies:FullAttentionPolicy")]


@hookimpl
def octavo_register_commands() -> list[Command]:
    commands = (
        ("generate", "complete prompts", True),
        ("chat", "talk with a model", True),
        ("plugins", "list, show, check and make plugins", False),
        ("config", "print the configuration and where each value came from", False),
    )
    return [
        Command(
            name=name,
            help=text,
            configure=f"octavo.cli.{name}:configure",
            run=f"octavo.cli.{name}:run",
            takes_engine_options=takes_engine_options,
        )
        for name, text, takes_engine_options in commands
    ]


@hookimpl
def octavo_make_verifier(name: str) -> Verifier | None:
    return load_factory(_VERIFIERS[name])() if name in _VERIFIERS else None


@hookimpl
def octavo_make_queue(policy: str) -> WaitingQueue | None:
    return load_factory(_QUEUES[policy])() if policy in _QUEUES else None
