"""The contracts between core and plugins: Protocols and frozen records. Imports no torch.

A plugin imports this package, `octavo.hookspecs`, `octavo.nn`, the records of layer 0 and `octavo.testing`;
nothing else of Octavo, and never another plugin.
"""

from octavo.spec.attention import (
    AttentionBackend,
    AttentionCapabilities,
    AttentionLayerParams,
    AttentionMetadataInputs,
)
from octavo.spec.draft import Drafter, DraftRow, TargetView
from octavo.spec.entries import (
    AttentionBackendEntry,
    Command,
    DrafterEntry,
    ExecutorEntry,
    Factory,
    KVPolicyEntry,
    LogitsProcessorEntry,
    ModelEntry,
    ModelTransform,
    PlatformEntry,
    WeightFormatEntry,
    load_factory,
)
from octavo.spec.executor import Executor, ExecutorContext, KVCacheLayout
from octavo.spec.kv import FullAttentionSpec, KVCacheSpec, KVPolicy
from octavo.spec.model import Communicator, ForwardBatch, Model, ModelContext
from octavo.spec.observer import Observer
from octavo.spec.platform import MemoryInfo, Platform
from octavo.spec.sampling import (
    LogitRow,
    LogitsProcessor,
    ProcessorContext,
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
    "DraftRow",
    "Drafter",
    "DrafterEntry",
    "Executor",
    "ExecutorContext",
    "ExecutorEntry",
    "Factory",
    "ForwardBatch",
    "FullAttentionSpec",
    "KVCacheLayout",
    "KVCacheSpec",
    "KVPolicy",
    "KVPolicyEntry",
    "LogitRow",
    "LogitsProcessor",
    "LogitsProcessorEntry",
    "MemoryInfo",
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
    "SequenceView",
    "TargetView",
    "Tokenizer",
    "TokenizerData",
    "Verifier",
    "VerifyRows",
    "WaitingQueue",
    "WeightFormatEntry",
    "load_factory",
]
