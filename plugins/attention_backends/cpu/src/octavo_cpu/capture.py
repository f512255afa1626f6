"""A model's forward pass without Python: its kernel calls, recorded once and replayed for any number of tokens.

A pass that consists of kernels alone is a list of calls whose arguments are constants, addresses of what a step brings
along, or grow with the number of tokens. Two small passes over the null block tell which, and a third must agree with
what they say. The proof is a batch of other tokens: its replay must give the hidden states of its pass, bit for bit. A
pass of anything else stays as it was.

Owns: recordings and the proof that a replay is the same. Must never know: which model it is, what the kernels compute.
"""

from __future__ import annotations

import inspect
import logging
import weakref
from bisect import bisect_right
from collections.abc import Callable, Hashable, Sequence
from ctypes import c_void_p
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from octavo.nn import Attention, RotaryEmbedding, attention_layers
from octavo.spec import AttentionMetadataInputs, ForwardBatch
from octavo_cpu.attention import STEP_FIELDS, StepCall
from octavo_cpu.library import AttentionCall, Call, Kernel, Kernels, logged_calls
from octavo_cpu.program import Buffer, Pass, Program, Refused, Slot, fit, words_of

logger = logging.getLogger(__name__)

_SIZES = (2, 3, 5)
"""Tokens of the passes that are recorded: two make a line, the third must be on it."""
_PROOF_SIZE = 16
"""Tokens of the pass that a replay is compared with: as many as fit into one block of every size."""


class _Binding:
    """What a layer was bound to. It does not keep the KV cache alive."""

    def __init__(self, layer: Attention) -> None:
        assert layer.kv_cache is not None, "layers are bound before the first pass"
        self._backend, self._group_id, self._cache = layer.backend, layer.group_id, weakref.ref(layer.kv_cache)

    def holds(self, layer: Attention) -> bool:
        same = layer.backend is self._backend and layer.group_id == self._group_id
        return same and layer.kv_cache is self._cache()


class CapturedForward:
    """`forward` of a model whose layers have their kernels."""

    def __init__(self, model: Any, kernels: Kernels) -> None:
        # No reference to the model, which refers to this: what it holds should go as soon as nobody uses it.
        self._model: Callable[[], Any] = weakref.ref(model)
        self._kernels = kernels
        forward = model.forward
        self._forward: Callable[[], Any] = weakref.WeakMethod(forward) if inspect.ismethod(forward) else lambda: forward
        self._bindings: list[_Binding] | None = None
        self._layers: list[Attention] = []
        self._group_ids: list[int] = []
        self._program: Program | None = None

    def __call__(self, batch: ForwardBatch) -> torch.Tensor:  # [num_tokens, hidden_size]
        """Replayed, unless the pass could not be captured, or needs more than tokens. Not thread-safe."""
        if self._bindings is None or not all(map(_Binding.holds, self._bindings, self._layers)):
            self._capture()
        if self._program is None or batch.adapter_ids is not None or batch.intermediate:
            return self._run(batch)
        return self._replay(self._program, batch)

    def _run(self, batch: ForwardBatch) -> torch.Tensor:
        return self._forward()(batch)

    def _replay(self, program: Program, batch: ForwardBatch) -> torch.Tensor:
        bases: dict[Hashable, int] = {"input_ids": batch.input_ids.data_ptr(), "positions": batch.positions.data_ptr()}
        for group_id in self._group_ids:  # there may be others, of a drafter
            call = batch.attention[group_id].call
            for name in STEP_FIELDS:
                bases[group_id, name] = getattr(call, name) or 0  # a null pointer is None
        return program.run(batch.input_ids.shape[0], bases)

    def _capture(self) -> None:
        """Again for every binding of the layers to backends and KV caches."""
        self._program = None
        self._layers = list(attention_layers(self._model()).values())
        self._group_ids = sorted({layer.group_id for layer in self._layers})
        try:
            self._run(self._null_batch(_SIZES[0]))  # whatever is made at first use
            recordings = [self._record(num_tokens) for num_tokens in _SIZES]
            program = fit([recording.describe() for recording in recordings], self._kernels)
            proof = self._null_batch(_PROOF_SIZE)
            expected = self._run(proof)
            if not torch.equal(self._replay(program, proof), expected):
                raise Refused("a replay has other hidden states")
        except Refused as reason:
            logger.info("forward passes are not captured: %s", reason)
        else:
            self._program = program
        self._bindings = [_Binding(layer) for layer in self._layers]

    def _record(self, num_tokens: int) -> Recording:
        batch = self._null_batch(num_tokens)
        with logged_calls() as calls, _Watch() as watch:
            hidden = self._run(batch)
        if watch.foreign is not None:
            raise Refused(f"{watch.foreign} is no kernel")
        if not isinstance(hidden, torch.Tensor) or hidden.dim() != 2 or not hidden.is_contiguous():
            raise Refused("the result is no matrix")
        if hidden.shape[0] != num_tokens:
            raise Refused("the result has not a row for each token")
        return Recording(batch, hidden, calls, watch.made)

    def _null_batch(self, num_tokens: int) -> ForwardBatch:
        """One sequence in the null block."""
        metadata: list[Any] = [None] * (1 + max(self._group_ids, default=-1))
        for layer in self._layers:
            assert layer.backend is not None, "layers are bound before the first pass"
            if metadata[layer.group_id] is None:
                inputs = _null_inputs(num_tokens, layer.spec.block_size)
                metadata[layer.group_id] = layer.backend.build_metadata(inputs)
        if not all(isinstance(metadata[group_id], StepCall) for group_id in self._group_ids):
            raise Refused("another attention backend serves some of the layers")
        # Every token is another, so that no two rows are alike, and none is out of range for the smallest of models.
        model, tokens = self._model(), torch.arange(num_tokens)
        rotary = [len(module.cos) for module in model.modules() if isinstance(module, RotaryEmbedding)]
        return ForwardBatch(tokens.flip(0) % model.vocab_size, tokens % min(rotary, default=num_tokens), metadata)


def _null_inputs(num_tokens: int, block_size: int) -> AttentionMetadataInputs:
    block_table = torch.zeros(1, 1, dtype=torch.int32)
    starts, lens = torch.tensor([0, num_tokens], dtype=torch.int32), torch.tensor([num_tokens], dtype=torch.int32)
    tokens = torch.arange(num_tokens)
    return AttentionMetadataInputs(
        block_table=block_table,
        slot_mapping=tokens,
        query_start_loc=starts,
        seq_lens=lens,
        positions=tokens,
        block_table_cpu=block_table.numpy(),
        query_start_loc_cpu=starts.numpy(),
        seq_lens_cpu=lens.numpy(),
        max_query_len=num_tokens,
        max_seq_len=num_tokens,
        block_size=block_size,
    )


class _Watch(TorchDispatchMode):
    """Keeps what a pass allocates, and notices what else it has torch do."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Asked by torch, which would otherwise import its compiler, to keep that out of what nobody compiles."""
        return False

    def __init__(self) -> None:
        super().__init__()
        self.made: list[torch.Tensor] = []
        self.foreign: str | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        returns = func._schema.returns
        if func is torch.ops.aten.empty.memory_format:
            self.made.append(result)
        elif not returns or any(r.alias_info is None or r.alias_info.is_write for r in returns):  # no view
            self.foreign = self.foreign or str(func)
        return result


@dataclass(frozen=True, slots=True)
class Recording:
    """One pass."""

    batch: ForwardBatch
    hidden: torch.Tensor
    calls: Sequence[tuple[Kernel, Call]]
    made: Sequence[torch.Tensor]
    """Everything that was allocated, so that no address means two things."""

    def describe(self) -> Pass:
        known: dict[int, tuple[Hashable, int]] = {
            self.batch.input_ids.data_ptr(): ("input_ids", self.batch.input_ids.nbytes),
            self.batch.positions.data_ptr(): ("positions", self.batch.positions.nbytes),
            **{tensor.data_ptr(): (Buffer(i), tensor.nbytes) for i, tensor in enumerate(self.made)},
        }
        starts = sorted(known)

        def locate(address: int) -> Slot:
            index = bisect_right(starts, address) - 1
            if index >= 0:
                base, num_bytes = known[starts[index]]
                if address < starts[index] + num_bytes:
                    return Slot(base, address - starts[index])
            return Slot(None, address)

        output = locate(self.hidden.data_ptr())
        if not isinstance(output.base, Buffer) or self.made[output.base.index].nbytes != self.hidden.nbytes:
            raise Refused("the result is no buffer of its own")
        return Pass(
            num_tokens=self.hidden.shape[0],
            calls=[(kernel, call, self._slots(call, locate)) for kernel, call in self.calls],
            buffer_bytes=[tensor.nbytes for tensor in self.made],
            output=output.base,
            hidden=self.hidden,
        )

    def _slots(self, call: Call, locate: Callable[[int], Slot]) -> list[Slot]:
        """The fields of a call, each as what it stands for."""
        slots = []
        for (name, kind, *_), word in zip(call._fields_, words_of(call), strict=True):
            if isinstance(call, AttentionCall) and name in STEP_FIELDS:
                slots.append(Slot((self._group_of(call), name), 0))
            else:
                slots.append(locate(word) if kind is c_void_p and word else Slot(None, word))
        return slots

    def _group_of(self, call: AttentionCall) -> int:
        steps = ((i, step) for i, step in enumerate(self.batch.attention) if step is not None)
        return next(i for i, step in steps if step.call.slot_mapping == call.slot_mapping)
