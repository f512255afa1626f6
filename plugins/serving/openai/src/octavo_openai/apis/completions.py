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
from octavo_openai.apis.answer_writer import WrittenAnswer, answer_api_call, hold_logprobs
from octavo_openai.apis.logprobs import (
    CompletionLogprobs,
    EchoedPrompt,
    LegacyLogprobs,
    PromptLogprobs,
    Spelling,
    num_entries,
    prompt_logprobs,
)
from octavo_openai.apis.sampling import GenerationRequest, check_at_most, generation_changes
from octavo_openai.apis.usage import StreamUsage, Usage, usage_of
from octavo_openai.http.api_call import APICall, engine_id, new_id
from octavo_openai.http.long_lists import Unfilled, listed
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


async def create_completion(api_call: APICall[CompletionRequest]) -> WrittenAnswer:
    async def prepare(model: str) -> _Writer:
        llm = api_call.service.admit()
        answer_id = new_id("cmpl-", api_call.body.request_id)
        requests = await _make_requests(llm, api_call, answer_id)
        hold_logprobs(api_call, requests)
        api_call.count = count = api_call.service.token_counts.begin(requests)
        run = _Run(llm, api_call.body, requests, count)
        return _Writer(api_call, run, answer_id, model)

    return await answer_api_call(api_call, prepare)


class _Writer:
    """Writes one answer, as a whole or as a stream of chunks."""

    failure = None

    def __init__(self, api_call: APICall[CompletionRequest], run: _Run, answer_id: str, model: str) -> None:
        self._api_call, self._run = api_call, run
        self._id, self._model = answer_id, model

    async def whole(self) -> Completion:
        async with aclosing(self._run.news(incremental=False)) as all_news:
            found = sorted([one async for news in all_news for one in news], key=lambda one: one[0].index)
        self._api_call.finish_reasons = [str(_reason(completion)) for _, _, completion in found]
        num_logprobs = sum(num_entries(o.prompt_logprobs) + num_entries(c.logprobs) for _, o, c in found)
        return self._completion(listed(found, num_logprobs, _choices), usage_of(self._run.count))

    async def events(self) -> AsyncGenerator[bytes | Unfilled, None]:
        usage = StreamUsage(self._api_call.body, self._api_call.service.options, self._run.count)
        async with aclosing(self._run.news(incremental=True)) as all_news:
            async for news in all_news:
                choices = _choices(news)
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

    def __init__(self, llm: AsyncLLM, body: CompletionRequest, requests: Sequence[Request], count: TokenCount) -> None:
        self.count = count
        self._llm, self._body, self._requests = llm, body, requests
        self._scores = body.max_tokens == 0

    async def news(self, incremental: bool) -> AsyncGenerator[list[_News], None]:
        """What is new of the choices, whenever something is; not `incremental`: all of a prompt's, once.

        Leaving it aborts the requests; so close it.
        """
        n = self._body.n or 1
        writers = [
            _ChoiceWriter(self._llm, self._body, r, i * n + j) for i, r in enumerate(self._requests) for j in range(n)
        ]
        async with aclosing(generate(self._llm, self._requests, incremental)) as outputs:
            async for i, output in outputs:
                if self._scores:
                    output = _scored(output)
                self.count.add_output(output)
                yield [(writers[i * n + c.index], output, c) for c in output.outputs]


def _scored(output: RequestOutput) -> RequestOutput:
    """The output without the token that nobody asked for."""
    empty = {"text": "", "token_ids": (), "logprobs": (), "stop_reason": None}
    ended = [replace(c, **empty, finish_reason=c.finish_reason and FinishReason.LENGTH) for c in output.outputs]
    return replace(output, outputs=tuple(ended))


class _ChoiceWriter:
    """Writes one choice, in one piece or in many."""

    def __init__(self, llm: AsyncLLM, body: CompletionRequest, request: Request, index: int) -> None:
        self.index = index
        self._body, self._request = body, request
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
            self._legacy = LegacyLogprobs(self._spelling, body.logprobs, shows_special)

    def write(self, output: RequestOutput, completion: CompletionOutput) -> CompletionChoice | None:
        """What is new; None if nothing."""
        if self._is_finished or not (completion.token_ids or completion.finished):
            return None
        self._is_finished = completion.finished
        choice = CompletionChoice(
            index=self.index,
            text=completion.text,
            logprobs=None,
            finish_reason=_reason(completion),
            stop_reason=completion.stop_reason,
        )
        prompt = None
        if not self._has_begun:
            self._has_begun = True
            prompt = self._begin(choice, output)
        if self._legacy is not None:
            choice.logprobs = self._legacy.told(completion.token_ids, completion.logprobs or (), prompt)
        if self._body.return_token_ids:
            choice.token_ids = completion.token_ids
        return choice

    def _begin(self, choice: CompletionChoice, output: RequestOutput) -> EchoedPrompt | None:
        """Tell of the prompt, which is known as a whole with the first token; what is echoed of it."""
        body, ids, logprobs = self._body, output.prompt_token_ids, output.prompt_logprobs or ()
        if body.return_token_ids:
            choice.prompt_token_ids = ids
        if body.prompt_logprobs is not None:
            choice.prompt_logprobs = prompt_logprobs(logprobs, body.prompt_logprobs, self._spelling)
        if not body.echo:
            return None
        choice.text = self._prompt_text + choice.text
        return EchoedPrompt(ids, logprobs, self._prompt_text, self._prompt_shows_special)


_News = tuple[_ChoiceWriter, RequestOutput, CompletionOutput]
"""A completion of an output, and who writes it."""


def _choices(news: Sequence[_News]) -> list[CompletionChoice]:
    return [choice for writer, output, c in news if (choice := writer.write(output, c)) is not None]


def _reason(completion: CompletionOutput) -> str | None:
    return None if completion.finish_reason is None else completion.finish_reason.value
