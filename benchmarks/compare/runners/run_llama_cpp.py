"""llama.cpp in its own process, through its batched C interface: every step decodes one batch of all sequences.

Prompts are read in batches as large as llama.cpp takes them, next tokens of all running sequences together. A prefix
that all requests share is read once and copied, as llama.cpp's own batched benchmark can do. The most likely token is
found with numpy: its own sampler copies the vocabulary for each row.

Owns: how llama.cpp is given requests. Must never know: what is measured.
"""

from __future__ import annotations

import ctypes
import os
from itertools import takewhile
from typing import Any

import llama_cpp
import numpy as np
import protocol

BATCH_TOKENS = 2048
MICRO_BATCH_TOKENS = 512
FLASH_ATTENTION = 1


class LlamaCpp:
    def __init__(self, options: dict[str, Any]) -> None:
        self._num_threads = options["num_threads"]
        self._options = options["options"]
        self._quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self._quiet, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(
            os.fsencode(options["model"]), llama_cpp.llama_model_default_params()
        )
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {options['model']}")
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._batch = llama_cpp.llama_batch_init(BATCH_TOKENS, 0, 1)
        self._context: Any = None

    def prepare(self, requests: protocol.Requests) -> None:
        """A context with one stream for each request, as long as the longest of them."""
        if self._context is not None:
            llama_cpp.llama_free(self._context)
        length = max(len(r["prompt_token_ids"]) + r["num_output_tokens"] for r in requests)
        length = -(-length // 256) * 256
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = length * len(requests)
        params.n_seq_max = len(requests)
        params.n_batch, params.n_ubatch = BATCH_TOKENS, MICRO_BATCH_TOKENS
        params.n_threads = params.n_threads_batch = self._num_threads
        params.flash_attn_type = FLASH_ATTENTION
        params.kv_unified = False
        for name, value in self._options.items():
            setattr(params, name, value)
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError(f"llama.cpp cannot make a context of {params.n_ctx} tokens")

    def run(self, requests: protocol.Requests, record: protocol.Record) -> None:
        newest = self._read_prompts(requests, record)
        positions = [len(request["prompt_token_ids"]) for request in requests]
        left = [request["num_output_tokens"] - 1 for request in requests]
        running = [index for index in range(len(requests)) if left[index]]
        while running:
            self._batch.n_tokens = 0
            for index in running:
                self._add(newest[index], positions[index], index, wants_logits=True)
                positions[index] += 1
                left[index] -= 1
            self._decode()
            for row, index in enumerate(running):
                newest[index] = self._most_likely(row)
                record(index, (newest[index],))
            running = [index for index in running if left[index]]

    def _read_prompts(self, requests: protocol.Requests, record: protocol.Record) -> list[int]:
        """The first token of each request."""
        prompts = [request["prompt_token_ids"] for request in requests]
        shared = self._read_shared_prefix(prompts)
        first = [0] * len(prompts)
        ends: list[tuple[int, int]] = []
        """Row in the batch and request, for each prompt that ends in it."""

        def flush() -> None:
            self._decode()
            for row, index in ends:
                first[index] = self._most_likely(row)
                record(index, (first[index],))
            self._batch.n_tokens = 0
            ends.clear()

        self._batch.n_tokens = 0
        for index, ids in enumerate(prompts):
            for position in range(shared, len(ids)):
                is_last = position == len(ids) - 1
                if is_last:
                    ends.append((self._batch.n_tokens, index))
                self._add(ids[position], position, index, wants_logits=is_last)
                if self._batch.n_tokens == BATCH_TOKENS:
                    flush()
        if self._batch.n_tokens:
            flush()
        return first

    def _read_shared_prefix(self, prompts: list[list[int]]) -> int:
        """Read what all prompts begin with, if that is much, into every stream; its length."""
        memory = llama_cpp.llama_get_memory(self._context)
        llama_cpp.llama_memory_clear(memory, True)
        columns = zip(*(ids[:-1] for ids in prompts), strict=False)
        shared = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))
        if len(prompts) < 2 or shared < 64:
            return 0
        for begin in range(0, shared, BATCH_TOKENS):
            self._batch.n_tokens = 0
            for position in range(begin, min(shared, begin + BATCH_TOKENS)):
                self._add(prompts[0][position], position, 0, wants_logits=False)
            self._decode()
        for index in range(1, len(prompts)):
            llama_cpp.llama_memory_seq_cp(memory, 0, index, -1, -1)
        return shared

    def _add(self, token_id: int, position: int, sequence: int, *, wants_logits: bool) -> None:
        batch, row = self._batch, self._batch.n_tokens
        batch.token[row] = token_id
        batch.pos[row] = position
        batch.n_seq_id[row] = 1
        batch.seq_id[row][0] = sequence
        batch.logits[row] = wants_logits
        batch.n_tokens = row + 1

    def _decode(self) -> None:
        status = llama_cpp.llama_decode(self._context, self._batch)
        if status:
            raise RuntimeError(f"llama_decode answered {status}")

    def _most_likely(self, row: int) -> int:
        """Of the row's logits; waits for them."""
        logits = llama_cpp.llama_get_logits_ith(self._context, row)
        return int(np.ctypeslib.as_array(logits, shape=(self._vocab_size,)).argmax())

    def settings(self) -> dict[str, Any]:
        return {
            "n_batch": BATCH_TOKENS,
            "n_ubatch": MICRO_BATCH_TOKENS,
            "flash_attn": True,
            "system": llama_cpp.llama_print_system_info().decode(),
            **self._options,
        }


if __name__ == "__main__":
    protocol.main(LlamaCpp, "llama-cpp-python", "numpy")
