"""The laws that every plugin of a kind obeys, as tests that a plugin's author gets by subclassing.

    # tests/test_mine_suite.py, the whole of it
    from octavo.testing import DrafterSuite
    from octavo_mine import plugin


    class TestMine(DrafterSuite):
        plugin = plugin

`plugin` is the module of hooks, or its import string. All suites know besides it

    name = "mine"               which entry is under test; not needed if the plugin offers one of the kind
    options = {"max_n": 4}      the plugin's own options, those of `plugins.<name>` in a configuration
    helpers = (module, …)       further plugins that it needs (the model that a drafter is made for)
    def llm(self, **keywords)   the engine for laws that generate; by default `table_llm` with these plugins

and each kind has a little more, all of it optional unless marked:

    class TestMine(DrafterSuite):
        shares_across_requests = True     drafts depend on other requests, as a shared suffix tree's do
        max_shared_bytes = 1 << 20        what it may then still hold when all sequences are released
        max_bytes_per_token = 4096        what its state of one sequence may grow by with each token
        verifier = "exact"                another one must only keep the distribution, not the tokens

    class TestMine(LogitsProcessorSuite):
        requests = ({"extra_args": {"mine": {"strength": 2}}}, …)     `SamplingParams` fields of those it concerns;
                                                                      by default `extra_args` names it with True

    class TestMine(GrammarSuite):         a plugin whose entries have `grammar_kinds`
        constraints = (*GrammarSuite.constraints, Constraint({"grammar": "…"}, valid=("ab",), invalid=("ba",)))
        forces_text = False               it never says what text must follow
        strict_utf8 = False               it lets ill-formed UTF-8 pass
        def backend(self)                 a new `GrammarBackend`; by default that of the entry's `GrammarProcessor`

    class TestMine(AttentionBackendSuite):                            laws follow the entry's capabilities
        head_sizes = (16, 64)             by default small ones that the capabilities allow
        block_sizes = (16,)               likewise
        tolerance = {"float32": 1e-5, …}  how far it may be from the definition of attention

    class TestMine(KVPolicySuite):
        specs = (WindowSpec(block_size=4, window=6), …)               required: caches of its kind
        max_step_tokens = 8
        def reads(self, spec, position)   positions that a query reads; by default the policy is believed

    class TestMine(ModelSuite):
        cases = ("llama", "mistral")      names for what `write` is asked for
        def write(self, folder, case)     required: config.json and *.safetensors into `folder`; returns None, or
                                          a reference (token ids → logits [num_tokens, vocab_size])

    class TestMine(ExecutorSuite):
        settings = {"tensor_parallel_size": 2}                        further configuration, as keywords of `LLM`
        takes_objects = False             plugins must be installed to work in it; skips laws with scripted ones

    class TestMine(ToolParserSuite):      and TestMine(ReasoningParserSuite)
        samples = (ParserSample("<call …>", content="", calls=(("name", {…}),)), …)    required: outputs in its format
        plain = (*PLAIN, …)               texts that it takes for content
        templates = ("{{ tools }} …", …)  chat templates of models that it suits
        keeps_all = False                 parts of its format besides marks do not come out, such as ids of calls
        streams_arguments = False         arguments come at their end

    class TestMine(RouteSuite):
        calls = (PlainCall(MyRecord(…)), …)                           required: each always has the same answer
        refused = (PlainCall(MyRecord(…)), …)                         calls that end with an error of the client's
        async def model(self)             the `AsyncLLM` that is served; by default `echo_model`'s
        def join(self, records)           a stream's records as one value, the same however the stream was cut; by
                                          default their texts and lists put together
        def serve(self, work)             for tests of your own: what `async def work(model, handler)` returns

A law that cannot be asked of a plugin is skipped with the reason. Everything is importable from `octavo.testing`.
Owns: the list. Must never know: torch, until a suite is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.testing.suites.attention_backend import AttentionBackendSuite
    from octavo.testing.suites.drafter import DrafterSuite
    from octavo.testing.suites.executor import ExecutorSuite
    from octavo.testing.suites.grammar import GrammarSuite
    from octavo.testing.suites.grammar_samples import Constraint
    from octavo.testing.suites.http_call import PlainCall
    from octavo.testing.suites.kv_policy import KVPolicySuite
    from octavo.testing.suites.logits_processor import LogitsProcessorSuite
    from octavo.testing.suites.model import ModelSuite
    from octavo.testing.suites.parser_samples import ParserSample
    from octavo.testing.suites.reasoning_parser import ReasoningParserSuite
    from octavo.testing.suites.route import RouteSuite
    from octavo.testing.suites.tool_parser import ToolParserSuite

__all__ = [
    "AttentionBackendSuite",
    "Constraint",
    "DrafterSuite",
    "ExecutorSuite",
    "GrammarSuite",
    "KVPolicySuite",
    "LogitsProcessorSuite",
    "ModelSuite",
    "ParserSample",
    "PlainCall",
    "ReasoningParserSuite",
    "RouteSuite",
    "ToolParserSuite",
]

_MODULES = {
    "AttentionBackendSuite": "attention_backend",
    "Constraint": "grammar_samples",
    "DrafterSuite": "drafter",
    "ExecutorSuite": "executor",
    "GrammarSuite": "grammar",
    "KVPolicySuite": "kv_policy",
    "LogitsProcessorSuite": "logits_processor",
    "ModelSuite": "model",
    "ParserSample": "parser_samples",
    "PlainCall": "http_call",
    "ReasoningParserSuite": "reasoning_parser",
    "RouteSuite": "route",
    "ToolParserSuite": "tool_parser",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
