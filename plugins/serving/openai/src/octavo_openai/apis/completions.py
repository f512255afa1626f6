"""`POST /v1/completions`: prompts in, their continuations out.

Owns: OpenAI's records for it, echo, scoring. Must never know: how an answer is sent.

With `echo` and `max_tokens: 0` a prompt is scored: one token is computed, for the engine knows no less, and dropped.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from octavo import AsyncLLM
from octavo.errors import InvalidRequestError
from octavo.request import CompletionOutput, FinishReason, Request, RequestOutput
from octavo_openai.apis.answer_writer import answer_api_call, hold_logprobs
from octavo_openai.apis.logprobs import (
    CompletionLogprobs,
    LegacyLogprobs,
    PromptLogprobs,
    Spelling,
    joined,
    prompt_logprobs,
)
from octavo_openai.apis.sampling import GenerationRequest, check_at_most, generation_changes
from octavo_openai.apis.usage import StreamUsage, Usage, usage_of
from octavo_openai.http.answers import EventStream
from octavo_openai.http.api_call import APICall, engine_id, new_id
from octavo_openai.observation.token_count import TokenCount
from octavo_openai.pipeline.generation import generate
from octavo_openai.pipeline.prompts import PromptField, need_tokenizer, prepare_prompt, split_prompts


class CompletionRequest(GenerationRequest, kw_only=True):
    prompt: PromptField
    echo: bool | None = None
    """Begin the text with the prompt; with `logprobs` also those of the prompt's tokens."""
    logprobs: int | None = None
    """How many of the most likely tokens to tell besides the one that was taken."""
    best_of: int | None = None
    suffix: str | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    """Keep the prompt's last tokens, so many; -1: as many as the model takes."""

    def field_names(self) -> dict[str, str]:
        """What this request calls the engine's fields."""
        names = {}
        if self.structured_outputs is None:
            names["structured_outputs"] = "response_format"
        if self.echo and self.logprobs is not None and self.prompt_logprobs is None:
            names["prompt_logprobs"] = "logprobs"
        return names


class CompletionChoice(msgspec.Struct, kw_only=True):
    index: int
    """Number of the prompt times `n`, and the number of the completion."""
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None
    token_ids: Sequence[int] | UnsetType = UNSET
    prompt_token_ids: Sequence[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET

    @property
    def tells(self) -> bool:
        """Whether it is anything but the silence of a token whose text is not certain yet."""
        first = self.prompt_token_ids is not UNSET or self.prompt_logprobs is not UNSET
        return bool(self.text or self.logprobs or self.finish_reason or self.token_ids or first)


class Completion(msgspec.Struct, kw_only=True):
    """The whole answer, or what is new in a stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET


async def create_completion(api_call: APICall[CompletionRequest]) -> msgspec.Struct | EventStream:
    async def prepare(model: str) -> _Writer:
        llm = api_call.service.admit()
        answer_id = new_id("cmpl-", api_call.body.request_id)
        requests = await _make_requests(llm, api_call, answer_id)
        hold_logprobs(api_call, requests)
        api_call.count = api_call.service.token_counts.begin(requests)
        return _Writer(api_call, _Run(llm, api_call, requests, api_call.count), answer_id, model)

    return await answer_api_call(api_call, prepare)


class _Writer:
    """Writes one answer, as a whole or as a stream of chunks."""

    failure = None

    def __init__(self, api_call: APICall[CompletionRequest], run: _Run, answer_id: str, model: str) -> None:
        self._api_call, self._run = api_call, run
        self._id, self._model = answer_id, model

    async def whole(self) -> Completion:
        async with aclosing(self._run.choices(incremental=False)) as pieces:
            choices = sorted([c async for piece in pieces for c in piece], key=lambda choice: choice.index)
        self._api_call.finish_reasons = [str(choice.finish_reason) for choice in choices]
        return self._completion(choices, usage_of(self._run.count))

    async def events(self) -> AsyncGenerator[bytes, None]:
        usage = StreamUsage(self._api_call.body, self._api_call.service.options, self._run.count)
        async with aclosing(self._run.choices(incremental=True)) as pieces:
            async for choices in pieces:
                self._api_call.finish_reasons += [c.finish_reason for c in choices if c.finish_reason is not None]
                if frames := usage.frames(choices, self._completion):
                    yield frames
        yield usage.end(self._completion)

    def _completion(self, choices: list[CompletionChoice], usage: Usage | UnsetType | None) -> Completion:
        return Completion(id=self._id, created=self._api_call.created, model=self._model, choices=choices, usage=usage)


async def _make_requests(llm: AsyncLLM, api_call: APICall[CompletionRequest], answer_id: str) -> list[Request]:
    """A request for each prompt; all of them are found good before any runs."""
    body, options = api_call.body, api_call.service.options
    changes = generation_changes(body, options)
    prompts = split_prompts(body.prompt)
    check_at_most("prompt", len(prompts), options.max_prompts)
    check_at_most("n", len(prompts) * (body.n or 1), max(options.max_prompts, options.max_n))
    check_at_most("logprobs", body.logprobs, options.max_logprobs)
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise InvalidRequestError("best_of", "is not offered; leave it out, or set it to n")
    if body.suffix:
        raise InvalidRequestError("suffix", "is not offered; leave it out")
    if body.logprobs is not None:
        changes["logprobs"] = body.logprobs
        if body.echo:
            changes["prompt_logprobs"] = max(body.logprobs, body.prompt_logprobs or 0)
    if body.max_tokens == 0 and body.echo:
        changes |= {"max_tokens": 1, "min_tokens": 0}
    params = llm.default_sampling_params(**changes)
    adds_special = body.add_special_tokens is not False
    requests = []
    for given in prompts:
        prompt = await prepare_prompt(llm, given, adds_special, body.truncate_prompt_tokens, body.cache_salt)
        request_id = engine_id(answer_id)
        requests.append(await llm.make_request(request_id, prompt, params, trace_headers=api_call.trace_headers))
    return requests


class _Run:
    """The requests of one API call while they run."""

    def __init__(
        self, llm: AsyncLLM, api_call: APICall[CompletionRequest], requests: Sequence[Request], count: TokenCount
    ) -> None:
        self.count = count
        self._llm, self._api_call, self._requests = llm, api_call, requests
        self._scores = api_call.body.max_tokens == 0

    async def choices(self, incremental: bool) -> AsyncGenerator[list[CompletionChoice], None]:
        """What is new of the choices, whenever something is; not `incremental`: all of a prompt's, once.

        Leaving it aborts the requests; so close it.
        """
        n = self._api_call.body.n or 1
        writers = [
            _ChoiceWriter(self._llm, self._api_call, request, i * n + j)
            for i, request in enumerate(self._requests)
            for j in range(n)
        ]
        async with aclosing(generate(self._llm, self._requests, incremental)) as outputs:
            async for i, output in outputs:
                if self._scores:
                    output = _scored(output)
                self.count.add_output(output)
                pieces = [await writers[i * n + c.index].write(output, c) for c in output.outputs]
                yield [piece for piece in pieces if piece is not None]


def _scored(output: RequestOutput) -> RequestOutput:
    """The output without the token that nobody asked for."""
    empty = {"text": "", "token_ids": (), "logprobs": (), "stop_reason": None}
    ended = [replace(c, **empty, finish_reason=c.finish_reason and FinishReason.LENGTH) for c in output.outputs]
    return replace(output, outputs=tuple(ended))


class _ChoiceWriter:
    """Writes one choice, in one piece or in many."""

    def __init__(self, llm: AsyncLLM, api_call: APICall[CompletionRequest], request: Request, index: int) -> None:
        self._body = body = api_call.body
        self._request, self._index, self._turns = request, index, api_call.service.turns
        self._has_begun = self._is_finished = False
        self._prompt_text, self._prompt_shows_special = "", True
        self._legacy: LegacyLogprobs | None = None
        shows_special = not request.sampling_params.skip_special_tokens
        if body.echo:
            self._prompt_text = request.prompt or ""
            if request.prompt is None:
                tokenizer = need_tokenizer(llm)
                self._prompt_text = tokenizer.decode(request.prompt_token_ids, skip_special_tokens=not shows_special)
                self._prompt_shows_special = shows_special
        if body.logprobs is not None or body.prompt_logprobs is not None:
            self._spelling = Spelling(need_tokenizer(llm), bool(body.return_tokens_as_token_ids))
        if body.logprobs is not None:
            self._legacy = LegacyLogprobs(self._spelling, body.logprobs, shows_special, self._turns)

    async def write(self, output: RequestOutput, completion: CompletionOutput) -> CompletionChoice | None:
        """What is new; None if nothing."""
        if self._is_finished or not (completion.token_ids or completion.finished):
            return None
        self._is_finished = completion.finished
        choice = CompletionChoice(
            index=self._index,
            text=completion.text,
            logprobs=None,
            finish_reason=None if completion.finish_reason is None else completion.finish_reason.value,
            stop_reason=completion.stop_reason,
        )
        if not self._has_begun:
            self._has_begun = True
            await self._begin(choice, output)
        if self._legacy is not None:
            new = await self._legacy.output(completion.token_ids, completion.logprobs or ())
            choice.logprobs = new if choice.logprobs is None else joined(choice.logprobs, new)
        if self._body.return_token_ids:
            choice.token_ids = completion.token_ids
        return choice

    async def _begin(self, choice: CompletionChoice, output: RequestOutput) -> None:
        """The prompt's part, which is known as a whole with the first token."""
        body, ids, logprobs = self._body, output.prompt_token_ids, output.prompt_logprobs or ()
        if body.return_token_ids:
            choice.prompt_token_ids = ids
        if body.prompt_logprobs is not None:
            told = await prompt_logprobs(logprobs, body.prompt_logprobs, self._spelling, self._turns)
            choice.prompt_logprobs = told
        if body.echo:
            choice.text = self._prompt_text + choice.text
            if self._legacy is not None:
                text, shows_special = self._prompt_text, self._prompt_shows_special
                choice.logprobs = await self._legacy.prompt(ids, logprobs, text, shows_special)
