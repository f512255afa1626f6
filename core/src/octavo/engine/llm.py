"""The offline interface: a list of prompts in, a list of outputs out.

Owns: `LLM`. Must never know: how the engine works.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from tqdm import tqdm

from octavo.config import EngineConfig
from octavo.engine.build import build_engine
from octavo.engine.engine import LLMEngine
from octavo.engine.output_processor import OutputKind
from octavo.engine.remote import start_process
from octavo.errors import ConfigError, InvalidRequestError
from octavo.plugins import load_extensions, resolve_settings
from octavo.request import Prompt, RequestOutput
from octavo.sampling_params import SamplingParams
from octavo.spec import Tokenizer

_PROGRESS_DELAY = 2.0
"""Seconds of work before a progress bar shows."""

Messages = Sequence[Mapping[str, Any]]


class LLM:
    """A model ready to generate.

        llm = LLM("path/to/model", max_num_seqs=64)
        for output in llm.generate(["Hello", "Bonjour"], SamplingParams(max_tokens=8)):
            print(output.outputs[0].text)

    `model` is a folder, a GGUF file or a hub id; without one the packaged SmolLM2-135M-Instruct is used. Any key of
    the configuration can be given by its name (`dtype="float32"`) or by section (`cache={"memory": "2GiB"}`), and
    options of plugins by the plugin's name (`plugin_options={"ngram": {"max_n": 4}}`).
    `plugins` are plugin modules to load besides the installed ones. With `in_process=False` the model runs in a child
    process, which ends with this one.

    Raises `ConfigError`, `PluginError`, `ModelLoadError` or `CapacityError` if no engine can be built.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        config_file: str | None = None,
        plugins: Sequence[Any] = (),
        plugin_options: Mapping[str, Mapping[str, Any]] | None = None,
        in_process: bool = True,
        **keywords: Any,
    ) -> None:
        if isinstance(plugins, Mapping):
            raise ConfigError("plugins are modules to load; options of plugins go into plugin_options={'name': {...}}")
        if model is not None:
            keywords["model"] = model
        if plugin_options is not None:
            keywords["plugins"] = plugin_options
        self._start(resolve_settings(file=config_file, keywords=keywords).config, plugins, in_process)

    @classmethod
    def from_config(cls, config: EngineConfig, plugins: Sequence[Any] = (), in_process: bool = True) -> LLM:
        """From a configuration that is already resolved: no file and no environment is read."""
        llm = cls.__new__(cls)
        llm._start(config, plugins, in_process)
        return llm

    def _start(self, config: EngineConfig, plugins: Sequence[Any], in_process: bool) -> None:
        extensions = load_extensions(config, plugins=plugins)
        core = None if in_process else start_process(config, extensions, plugins)
        self.engine: LLMEngine = build_engine(config, extensions, core)
        self._request_ids = itertools.count()
        self._inboxes: dict[str, deque[RequestOutput]] = {}
        """Outputs of each live request that nobody has taken yet."""

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown()

    def get_tokenizer(self) -> Tokenizer | None:
        """The model's tokenizer; None if it has none."""
        return self.engine.tokenizer

    def default_sampling_params(self, **changes: Any) -> SamplingParams:
        """What the model's generation config recommends, with changes."""
        return self.engine.inputs.default_sampling_params(**changes)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Complete one prompt or many; outputs in the order of the prompts.

        A prompt is text, a list of token ids, or a `TextPrompt` or `TokensPrompt` (which may have a `cache_salt`).
        `sampling_params` is one for all or one for each; None takes what the model recommends.

        Raises `InvalidRequestError` if any prompt or option is refused; none of them runs then. What fails later
        ends with finish reason `error` and leaves the others alone.
        """
        batch = _as_batch(prompts)
        return self._run(batch, self._params_for(len(batch), sampling_params), use_tqdm)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        **template_options: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation or many, rendered by the model's chat template. Otherwise as `generate`.

        A message is a mapping with `role` and `content`. `template_options` are the template's own variables.
        """
        if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
            raise InvalidRequestError("messages", "must be a list of mappings with role and content")
        single = not messages or isinstance(messages[0], Mapping)
        conversations: Sequence[Any] = [messages] if single else messages
        prompts = [self.engine.inputs.render_chat(m, **template_options) for m in conversations]
        return self._run(prompts, self._params_for(len(prompts), sampling_params), use_tqdm)

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Iterator[RequestOutput]:
        """Cumulative outputs of one prompt, one after each step. Leaving the loop aborts the request."""
        request_id = self._next_id()
        inbox = self._inboxes[request_id] = deque()
        try:
            self.engine.add_request(request_id, prompt, sampling_params)
            while True:
                while inbox:
                    output = inbox.popleft()
                    yield output
                    if output.finished:
                        return
                self._step()
        finally:
            self._forget(request_id)

    def shutdown(self) -> None:
        self.engine.shutdown()

    def _step(self) -> list[str]:
        """One step of the engine; ids of the requests that it gave an output.

        Streams and lists of prompts may be under way together: each finds its outputs in its own inbox.
        """
        outputs = [o for o in self.engine.step() if o.request_id in self._inboxes]
        for output in outputs:
            self._inboxes[output.request_id].append(output)
        return [output.request_id for output in outputs]

    def _forget(self, request_id: str) -> None:
        del self._inboxes[request_id]
        self.engine.abort_request(request_id, want_output=False)

    def _next_id(self) -> str:
        return f"llm-{next(self._request_ids)}"

    def _params_for(
        self, num_prompts: int, params: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[SamplingParams]:
        if params is None:
            params = self.default_sampling_params()
        if isinstance(params, SamplingParams):
            return [params] * num_prompts
        if not isinstance(params, Sequence) or not all(isinstance(p, SamplingParams) for p in params):
            raise InvalidRequestError("sampling_params", "must be SamplingParams, or a list with one for each prompt")
        if len(params) != num_prompts:
            raise InvalidRequestError("sampling_params", f"{len(params)} given for {num_prompts} prompts")
        return list(params)

    def _run(self, prompts: Sequence[Any], params: Sequence[SamplingParams], use_tqdm: bool) -> list[RequestOutput]:
        ids: list[str] = []
        outputs: dict[str, RequestOutput] = {}
        try:
            for prompt, p in zip(prompts, params, strict=True):
                request_id = self._next_id()
                self._inboxes[request_id] = deque()
                ids.append(request_id)
                self.engine.add_request(request_id, prompt, p, OutputKind.FINAL)
            own = frozenset(ids)
            with tqdm(total=len(ids), unit="request", delay=_PROGRESS_DELAY, disable=not use_tqdm or None) as bar:
                while len(outputs) < len(ids):
                    for request_id in own.intersection(self._step()):
                        outputs[request_id] = self._inboxes[request_id].popleft()
                        bar.update()
        finally:  # an error or Ctrl-C leaves nothing behind
            for request_id in ids:
                self._forget(request_id)
        return [outputs[request_id] for request_id in ids]


def _as_batch(prompts: Any) -> Sequence[Any]:
    """The prompts as a list; text, bytes, a mapping or a flat list of token ids is one prompt."""
    if isinstance(prompts, str | bytes | Mapping):
        return [prompts]
    is_list = hasattr(prompts, "__len__") and hasattr(prompts, "__getitem__")
    if not is_list or getattr(prompts, "ndim", 1) == 0:  # an array without dimensions has no length
        raise InvalidRequestError("prompt", f"must be text, token ids or a list of these, got {type(prompts).__name__}")
    # arrays and tensors have __index__ too, but only those without dimensions are numbers
    is_ids = len(prompts) > 0 and hasattr(prompts[0], "__index__") and getattr(prompts[0], "ndim", 0) == 0
    return [prompts] if is_ids else prompts
