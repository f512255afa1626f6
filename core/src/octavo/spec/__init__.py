"""The contracts between core and plugins: Protocols and frozen records. Imports no torch.

A plugin imports this package, `octavo.hookspecs`, `octavo.nn`, `octavo.grammar`, the records of layer 0 and
`octavo.testing`; a command also `octavo` itself. Nothing else of Octavo, and never another plugin.
"""

from octavo.spec.attention import (
    AttentionBackend,
    AttentionCapabilities,
    AttentionLayerParams,
    AttentionMetadataInputs,
)
from octavo.spec.dialogue import (
    MakeReasoningParser,
    MakeToolParser,
    Message,
    MessageDelta,
    MessageParser,
    SpellOut,
    Tool,
    ToolCallDelta,
)
from octavo.spec.draft import Draft, Drafter, DraftRow, DrawDrafts, TargetView
from octavo.spec.entries import (
    AttentionBackendEntry,
    Command,
    DrafterEntry,
    ExecutorEntry,
    Factory,
    HTTPMethod,
    KVPolicyEntry,
    LogitsProcessorEntry,
    ModelEntry,
    ModelTransform,
    PlatformEntry,
    ReasoningParserEntry,
    RouteEntry,
    ToolParserEntry,
    WeightFormatEntry,
    load_factory,
)
from octavo.spec.executor import Executor, ExecutorContext, KVCacheLayout
from octavo.spec.grammar import CompiledGrammar, GrammarBackend, GrammarMatcher, MaskRows
from octavo.spec.kv import FullAttentionSpec, KVCacheSpec, KVPolicy
from octavo.spec.model import Communicator, ForwardBatch, Model, ModelContext
from octavo.spec.observer import Observer
from octavo.spec.platform import MemoryInfo, Platform
from octavo.spec.routes import (
    HTTPAnswer,
    HTTPCall,
    HTTPContent,
    HTTPError,
    HTTPEvents,
    RouteHandler,
    ServedModel,
)
from octavo.spec.sampling import (
    LogitRow,
    LogitsProcessor,
    ProcessorContext,
    RefinesDrafts,
    SequenceView,
    Verifier,
    VerifyRows,
)
from octavo.spec.schedule import QueuedSequence, WaitingQueue
from octavo.spec.weights import ModelSource, Tokenizer, TokenizerData

__all__ = [
    "AttentionBackend",
    "AttentionBackendEntry",
    "AttentionCapabilities",
    "AttentionLayerParams",
    "AttentionMetadataInputs",
    "Command",
    "Communicator",
    "CompiledGrammar",
    "Draft",
    "DraftRow",
    "Drafter",
    "DrafterEntry",
    "DrawDrafts",
    "Executor",
    "ExecutorContext",
    "ExecutorEntry",
    "Factory",
    "ForwardBatch",
    "FullAttentionSpec",
    "GrammarBackend",
    "GrammarMatcher",
    "HTTPAnswer",
    "HTTPCall",
    "HTTPContent",
    "HTTPError",
    "HTTPEvents",
    "HTTPMethod",
    "KVCacheLayout",
    "KVCacheSpec",
    "KVPolicy",
    "KVPolicyEntry",
    "LogitRow",
    "LogitsProcessor",
    "LogitsProcessorEntry",
    "MakeReasoningParser",
    "MakeToolParser",
    "MaskRows",
    "MemoryInfo",
    "Message",
    "MessageDelta",
    "MessageParser",
    "Model",
    "ModelContext",
    "ModelEntry",
    "ModelSource",
    "ModelTransform",
    "Observer",
    "Platform",
    "PlatformEntry",
    "ProcessorContext",
    "QueuedSequence",
    "ReasoningParserEntry",
    "RefinesDrafts",
    "RouteEntry",
    "RouteHandler",
    "SequenceView",
    "ServedModel",
    "SpellOut",
    "TargetView",
    "Tokenizer",
    "TokenizerData",
    "Tool",
    "ToolCallDelta",
    "ToolParserEntry",
    "Verifier",
    "VerifyRows",
    "WaitingQueue",
    "WeightFormatEntry",
    "load_factory",
]
