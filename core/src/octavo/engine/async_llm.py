"""The engine of a server: requests of many tasks at once, the model in a process of its own.

Owns: `AsyncLLM`. Must never know: HTTP, how the engine works.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from octavo.config import EngineConfig
from octavo.engine.build import build_engine
from octavo.engine.engine import LLMEngine
from octavo.engine.output_processor import OutputKind
from octavo.engine.remote import RemoteCore, start_process, start_thread
from octavo.errors import EngineDeadError
from octavo.extensions import Extensions
from octavo.plugins import load_extensions
from octavo.request import Prompt, Request, RequestOutput, TokensPrompt
from octavo.sampling_params import SamplingParams
from octavo.snapshot import EngineSnapshot
from octavo.spec import Observer, Tokenizer

T = TypeVar("T")

_SHORT_PROMPT = 2000
"""Characters of a text whose tokens are found (0.2 ms) sooner than a thread would have begun to look for them."""
_LONG_PROMPT = 200_000
"""Characters of a text that takes so long (20 ms and more) that nothing short may have to wait for it."""
_NUM_INPUT_THREADS = 2


class AsyncLLM:
    """A model that serves the tasks of one event loop.

        llm = await AsyncLLM.start(EngineConfig())
        request = await llm.make_request("a", "Hello", SamplingParams(max_tokens=8))
        async for output in llm.stream(request):
            print(output.outputs[0].text, end="")
        await llm.shutdown()

    This process tokenises and makes text; the engine's own schedules and computes, and ends with this one. If it ends
    by itself, `error` is set, and whatever runs and comes raises `EngineDeadError`.
    """

    def __init__(self, config: EngineConfig, extensions: Extensions, engine: LLMEngine, core: RemoteCore) -> None:
        """Use `start`. Call within the event loop that it is for."""
        self.config = config
        self.extensions = extensions
        self.error: EngineDeadError | None = None
        """Set once the engine has ended."""
        self._engine = engine
        self._core = core
        self._loop = asyncio.get_running_loop()
        self._news: dict[str, asyncio.Event] = {}
        """For each live request, set when there is something to show."""
        self._cut_off: set[str] = set()
        """Live requests that the engine's end has ended."""
        self._snapshots: deque[asyncio.Future[EngineSnapshot]] = deque()
        self._ended = asyncio.Event()
        self._input_threads = ThreadPoolExecutor(_NUM_INPUT_THREADS, thread_name_prefix="octavo-input")
        self._long_input_thread = ThreadPoolExecutor(1, thread_name_prefix="octavo-long-input")
        self._loop.add_reader(core.fd, self._receive)
        threading.Thread(target=self._watch, name="octavo-watch", daemon=True).start()
        self._receive()

    @classmethod
    async def start(
        cls,
        config: EngineConfig,
        plugins: Sequence[Any] = (),
        *,
        in_process: bool = False,
    ) -> AsyncLLM:
        """Load a model. `plugins` are modules to load besides the installed ones.

        With `in_process` the engine runs in a thread instead of a process, for debugging. Raises `ConfigError`,
        `PluginError`, `ModelLoadError` or `CapacityError` if no engine can be built.
        """

        def build() -> tuple[Extensions, LLMEngine, RemoteCore]:
            extensions = load_extensions(config, plugins=plugins)
            core = (start_thread if in_process else start_process)(config, extensions, plugins)
            return extensions, build_engine(config, extensions, core), core

        return cls(config, *await asyncio.to_thread(build))

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self._engine.tokenizer

    @property
    def max_model_len(self) -> int:
        return self._engine.max_model_len

    @property
    def description(self) -> Mapping[str, str]:
        """What was chosen at start and why."""
        return self._engine.description

    @property
    def num_unfinished(self) -> int:
        """Live requests."""
        return self._engine.num_unfinished

    @property
    def num_waiting(self) -> int:
        """Live requests of which nothing has been computed yet."""
        return self._engine.num_waiting

    def observe(self, observer: Observer) -> None:
        """Tell one more observer, besides those of plugins, from now on."""
        self._engine.observe(observer)

    def default_sampling_params(self, **changes: Any) -> SamplingParams:
        """What the model's generation config recommends, with changes."""
        return self._engine.inputs.default_sampling_params(**changes)

    async def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text. Raises `InvalidRequestError`, also if the model has no tokenizer."""
        tokenizer = self._engine.inputs.need_tokenizer("prompt")
        return await self._sized(len(text), lambda: tokenizer.encode(text, add_special_tokens))

    async def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids. Raises `InvalidRequestError` if the model has no tokenizer."""
        tokenizer = self._engine.inputs.need_tokenizer("tokens")
        return await self._sized(len(token_ids), lambda: tokenizer.decode(token_ids, skip_special_tokens))

    async def render_chat(self, messages: Sequence[Mapping[str, Any]], **template_options: Any) -> TokensPrompt:
        """The prompt for chat messages: text and token ids. Raises `InvalidRequestError`."""
        size = max(_size_of(messages), _SHORT_PROMPT + 1)  # a template may take long with little
        return await self._sized(size, lambda: self._engine.inputs.render_chat(messages, **template_options))

    async def make_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        trace_headers: Mapping[str, str] | None = None,
    ) -> Request:
        """A validated request; nothing of it runs yet. Raises `InvalidRequestError` naming the field."""

        def make() -> Request:
            return self._engine.make_request(request_id, prompt, params, trace_headers)

        text = prompt.get("prompt") if isinstance(prompt, Mapping) else prompt
        return await self._sized(len(text) if isinstance(text, str) else 0, make)

    def stream(self, request: Request, *, cumulative: bool = False) -> AsyncGenerator[RequestOutput, None]:
        """What is new since the last output, or with `cumulative` all so far, whenever there is something.

        A slow reader gets outputs that hold more. Closing the generator, or cancelling its task, aborts the request:
        use it in `async with contextlib.aclosing(...)` where the loop over it may be left.
        Raises `InvalidRequestError` if the request's id is in use, or for a record that others than `make_request` made
        or changed and the engine cannot take; `EngineDeadError` once the engine has ended.
        """
        return self._run(request, OutputKind.CUMULATIVE if cumulative else OutputKind.DELTA)

    async def complete(self, request: Request) -> RequestOutput:
        """The whole output, once the request has ended. Cancelling the task aborts the request. Raises as `stream`."""
        async with contextlib.aclosing(self._run(request, OutputKind.FINAL)) as outputs:
            return await anext(outputs)

    async def inspect(self) -> EngineSnapshot:
        """The live sequences, and what every block is used for. Raises `EngineDeadError`."""
        self._raise_if_ended()
        answer = self._loop.create_future()
        self._snapshots.append(answer)
        self._core.ask_snapshot()
        self._receive()
        return await answer

    async def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes; running requests keep what they use."""
        self._raise_if_ended()
        self._core.reset_prefix_cache()
        self._receive()

    async def wait_ended(self) -> None:
        """Until the engine has ended, by itself or by `shutdown`."""
        await self._ended.wait()

    async def shutdown(self) -> None:
        """End the engine; whatever still runs raises `EngineDeadError`."""
        if not self._core.is_closed:
            self._loop.remove_reader(self._core.fd)
            self._end("it was shut down")
            await asyncio.to_thread(self._engine.shutdown)
            for threads in (self._input_threads, self._long_input_thread):
                threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self, request: Request, kind: OutputKind) -> AsyncGenerator[RequestOutput, None]:
        self._raise_if_ended()
        state = self._engine.submit(request, kind)
        news = self._news[request.request_id] = asyncio.Event()
        self._receive()
        try:
            while True:
                await news.wait()
                news.clear()
                if request.request_id in self._cut_off:
                    self._raise_if_ended()
                if state.is_due:
                    output = state.output()
                    yield output
                    if output.finished:  # unlike `state.finished`, which may have come true while that was read
                        return
        finally:
            del self._news[request.request_id]
            self._cut_off.discard(request.request_id)
            self._engine.abort_request(request.request_id, want_output=False)
            self._receive()

    async def _sized(self, size: int, call: Callable[[], T]) -> T:
        """Do what takes as long as a text of `size` characters: here, or in a thread where nothing shorter waits."""
        if size <= _SHORT_PROMPT:
            return call()
        threads = self._input_threads if size <= _LONG_PROMPT else self._long_input_thread
        return await self._loop.run_in_executor(threads, call)

    def _receive(self) -> None:
        """Take in all that the engine has said. Called whenever its socket wakes, and after each message to it."""
        if self._core.is_closed:
            return
        while reports := self._core.poll():
            for report in reports:
                for state in self._engine.advance(report):
                    if news := self._news.get(state.request.request_id):
                        news.set()
        for snapshot in self._core.take_snapshots():
            if not (answer := self._snapshots.popleft()).done():
                answer.set_result(snapshot)

    def _raise_if_ended(self) -> None:
        if self.error is not None:
            raise EngineDeadError(*self.error.args)  # one for each: a traceback holds on to much

    def _watch(self) -> None:
        ending = self._core.wait_ended()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._on_ended, ending)

    def _on_ended(self, ending: str) -> None:
        if self.error is None:
            self._receive()  # its last words
            self._end(f"it ended with {ending}")

    def _end(self, how: str) -> None:
        self.error = EngineDeadError(f"the engine cannot go on: {how}; start it again")
        self._ended.set()
        self._cut_off = {state.request.request_id for state in self._engine.abort_all(str(self.error))}
        for news in self._news.values():
            news.set()
        for answer in self._snapshots:
            if not answer.done():
                answer.set_exception(EngineDeadError(*self.error.args))


def _size_of(messages: Sequence[Mapping[str, Any]]) -> int:
    """Characters of the messages' texts, as far as they lie open."""
    contents = (m.get("content") for m in messages if isinstance(m, Mapping))
    return sum(len(content) for content in contents if isinstance(content, str))
