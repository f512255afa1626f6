"""OpenVINO GenAI in its own process: its continuous batching, which reads a GGUF file directly.

Owns: how OpenVINO GenAI is given requests. Must never know: what is measured.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino
import openvino_genai
import protocol

HINTS = {"float32": "f32", "bfloat16": "bf16", "int8": "f32"}
"""Precision to what OpenVINO computes in; with int8 the weights are eight bits wide and activations stay floats."""


class OpenVINO:
    def __init__(self, options: dict[str, Any]) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = max(1, options["cache_bytes"] // 2**30)
        scheduler.enable_prefix_caching = True
        scheduler.max_num_batched_tokens = 2048
        self._properties = {
            "INFERENCE_PRECISION_HINT": HINTS[options["precision"]],
            "INFERENCE_NUM_THREADS": options["num_threads"],
            **options["options"],
        }
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(options["model"], scheduler, "CPU", self._properties)

    def prepare(self, requests: protocol.Requests) -> None: ...

    def run(self, requests: protocol.Requests, record: protocol.Record) -> None:
        handles: dict[int, Any] = {}
        for index, request in enumerate(requests):
            config = openvino_genai.GenerationConfig()
            config.max_new_tokens = request["num_output_tokens"]
            config.ignore_eos = True
            config.do_sample = False
            ids = openvino.Tensor(np.array([request["prompt_token_ids"]], dtype=np.int64))
            handles[index] = self._pipeline.add_request(index, ids, config)
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            for index, handle in list(handles.items()):
                while handle.can_read():
                    for output in handle.read().values():
                        record(index, output.generated_ids)
                if handle.get_status() != openvino_genai.GenerationStatus.RUNNING and not handle.can_read():
                    del handles[index]

    def settings(self) -> dict[str, Any]:
        return dict(self._properties)


if __name__ == "__main__":
    protocol.main(OpenVINO, "openvino-genai", "openvino")
