"""Octavo in its own process. Owns: how Octavo is given requests. Must never know: what is measured."""

from __future__ import annotations

from typing import Any

import protocol

from octavo import LLM, SamplingParams
from octavo.engine.output_processor import OutputKind
from octavo.plugins import resolve_settings


def settings_of(precision: str) -> dict[str, str]:
    """What a precision means for the configuration."""
    return {"plugins.cpu.quantization": "int8"} if precision == "int8" else {"model.dtype": precision}


class Octavo:
    def __init__(self, options: dict[str, Any]) -> None:
        given = {
            "model.path": options["model"],
            "model.max_model_len": str(options["max_model_len"]),
            "cache.memory": str(options["cache_bytes"]),
            "parallel.num_threads": str(options["num_threads"]),
            **settings_of(options["precision"]),
            **options["options"],
        }
        self._llm = LLM.from_config(resolve_settings(env={}, command_line=given).config)
        self._params: dict[int, SamplingParams] = {}

    def prepare(self, requests: protocol.Requests) -> None: ...

    def run(self, requests: protocol.Requests, record: protocol.Record) -> None:
        engine = self._llm.engine
        for index, request in enumerate(requests):
            params = SamplingParams(
                temperature=0, ignore_eos=True, detokenize=False, max_tokens=request["num_output_tokens"]
            )
            engine.add_request(str(index), request["prompt_token_ids"], params, OutputKind.DELTA)
        while engine.has_unfinished_requests():
            for output in engine.step():
                completion = output.outputs[0]
                if completion.error:
                    raise RuntimeError(completion.error)
                record(int(output.request_id), completion.token_ids)

    def settings(self) -> dict[str, Any]:
        return dict(self._llm.engine.description)


if __name__ == "__main__":
    protocol.main(Octavo, "octavo", "octavo-cpu", "octavo-torch-sdpa", "torch")
