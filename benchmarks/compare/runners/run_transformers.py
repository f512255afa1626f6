"""Transformers in its own process: static batches, padded to the left, longest outputs together.

Owns: how Transformers is given requests. Must never know: what is measured.
"""

from __future__ import annotations

from typing import Any

import protocol
import torch
from transformers import AutoModelForCausalLM, StoppingCriteria, StoppingCriteriaList
from transformers.utils import logging

BATCH_SIZE = 16
PAD_ID = 0


class Reporter(StoppingCriteria):
    """Never stops anything; tells of each new token while its request still wants some."""

    def __init__(self, batch: list[tuple[int, dict[str, Any]]], record: protocol.Record) -> None:
        self._batch, self._record, self._num_steps = batch, record, 0

    def __call__(self, input_ids: torch.LongTensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self._num_steps += 1
        newest = input_ids[:, -1].tolist()
        for (index, request), token_id in zip(self._batch, newest, strict=True):
            if self._num_steps <= request["num_output_tokens"]:
                self._record(index, (token_id,))
        return torch.zeros(len(newest), dtype=torch.bool)


class Transformers:
    def __init__(self, options: dict[str, Any]) -> None:
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        torch.set_num_threads(options["num_threads"])
        dtype = getattr(torch, options["precision"])
        self._model = AutoModelForCausalLM.from_pretrained(options["model"], dtype=dtype, attn_implementation="sdpa")
        self._model.eval()

    def prepare(self, requests: protocol.Requests) -> None: ...

    @torch.inference_mode()
    def run(self, requests: protocol.Requests, record: protocol.Record) -> None:
        ordered = sorted(enumerate(requests), key=lambda item: -item[1]["num_output_tokens"])
        for begin in range(0, len(ordered), BATCH_SIZE):
            batch = ordered[begin : begin + BATCH_SIZE]
            prompts = [request["prompt_token_ids"] for _, request in batch]
            width, length = max(map(len, prompts)), batch[0][1]["num_output_tokens"]
            self._model.generate(
                input_ids=torch.tensor([[PAD_ID] * (width - len(ids)) + ids for ids in prompts]),
                attention_mask=torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts]),
                do_sample=False,
                max_new_tokens=length,
                eos_token_id=None,
                pad_token_id=PAD_ID,
                stopping_criteria=StoppingCriteriaList([Reporter(batch, record)]),
            )

    def settings(self) -> dict[str, Any]:
        return {"batch_size": BATCH_SIZE, "attn_implementation": "sdpa"}


if __name__ == "__main__":
    protocol.main(Transformers, "transformers", "torch")
