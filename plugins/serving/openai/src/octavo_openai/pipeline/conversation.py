"""A conversation's next message: messages, tools and sampling options in, what each choice says out.

Every API that knows messages is a shape around this. A stream and a whole answer are one thing: the model's text comes
in many pieces or in one, and the parsers do not care.
Owns: `Conversation`, `Answer` and the order of its steps. Must never know: HTTP, the JSON of any API.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from octavo import AsyncLLM, TokensPrompt
from octavo.request import Request, TokenLogprobs
from octavo.spec import Message, MessageParser, Tokenizer, Tool
from octavo_openai.pipeline.choices import ChoiceDelta, ChoiceReader
from octavo_openai.pipeline.generation import generate
from octavo_openai.pipeline.messages import Rendering, render_prompt, tells_of_calls
from octavo_openai.pipeline.prompts import need_tokenizer
from octavo_openai.pipeline.tool_choice import ToolChoice, ToolUse, plan_tool_use
from octavo_openai.pipeline.truncation import render_latest
from octavo_openai.service import Service


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What the model is to answer, and how."""

    messages: Sequence[Message]
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Changes of the model's default sampling options."""
    tools: Sequence[Tool] = ()
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    parallel_tool_calls: bool = True
    rendering: Rendering = field(default_factory=Rendering)
    truncates: bool = False
    """Leave out the oldest messages rather than refuse more than the model takes."""
    cache_salt: str | None = None


class Answer:
    """A conversation that was found good, and may now be computed."""

    def __init__(self, service: Service, llm: AsyncLLM, request: Request, tool_use: ToolUse) -> None:
        """Use `prepare_answer`."""
        self.request = request
        self.count = service.token_counts.begin([request])
        """Tokens so far."""
        self.prompt_logprobs: Sequence[TokenLogprobs | None] | None = None
        """Known with the first deltas, if they were asked for."""
        self._llm = llm
        self._tool_use = tool_use
        self._make_reasoning_parser = service.make_reasoning_parser

    @property
    def tokenizer(self) -> Tokenizer:
        return need_tokenizer(self._llm)

    async def deltas(self, incremental: bool, in_order: bool = False) -> AsyncGenerator[list[ChoiceDelta], None]:
        """What is new, whenever something is; not `incremental`: everything of every choice, once.

        `in_order`: the order of content and calls is wanted, too. Leaving it aborts the request; so close it.
        """
        readers = [self._reader(in_order) for _ in range(self.request.sampling_params.n)]
        async with aclosing(generate(self._llm, [self.request], incremental)) as outputs:
            async for _, output in outputs:
                self.count.add_output(output)
                self.prompt_logprobs = output.prompt_logprobs
                deltas = [d for c in output.outputs if (d := readers[c.index].read(c)) is not None]
                if output.finished and any(reader.reasoning for reader in readers):
                    self.count.reasoning = await self._count_reasoning(readers)
                if deltas:
                    yield deltas

    def _reader(self, in_order: bool) -> ChoiceReader:
        tool_use, make_reasoning_parser = self._tool_use, self._make_reasoning_parser
        is_free = tool_use.constraint is None
        parsers: list[MessageParser] = []
        if make_reasoning_parser is not None and is_free:  # a constraint leaves no room for reasoning
            parsers.append(make_reasoning_parser(self.request.prompt or ""))
        if tool_use.make_parser is not None:
            parsers.append(tool_use.make_parser())
        has_order = is_free and tool_use.make_parser is not None  # of content and calls
        return ChoiceReader(parsers, tool_use.most_calls, tool_use.ends_with_calls, in_order and has_order)

    async def _count_reasoning(self, readers: Sequence[ChoiceReader]) -> int:
        """As the tokenizer splits what was set apart, which does not depend on how it came."""
        counts = [len(await self._llm.encode(r.reasoning, add_special_tokens=False)) for r in readers if r.reasoning]
        return min(sum(counts), self.count.completion)


async def prepare_answer(
    service: Service, request_id: str, conversation: Conversation, trace_headers: Mapping[str, str] | None = None
) -> Answer:
    """Check and render; nothing is computed yet. `trace_headers`: the client's trace, if it has one.

    Raises `InvalidRequestError` and `APIError`.
    """
    llm = service.admit()
    tool_use = _plan(service, llm, conversation)
    sampling = {"max_tokens": None, **conversation.sampling, "structured_outputs": tool_use.constraint}
    if tool_use.keep_special_tokens:
        sampling["skip_special_tokens"] = False
    params = llm.default_sampling_params(**sampling)
    prompt = await _render(llm, conversation, tool_use)
    prompt["cache_salt"] = conversation.cache_salt
    request = await llm.make_request(request_id, prompt, params, trace_headers=trace_headers)
    return Answer(service, llm, request, tool_use)


async def prompt_token_ids(service: Service, conversation: Conversation) -> Sequence[int]:
    """Those that its answer would begin with. Raises `InvalidRequestError` and `APIError`."""
    llm = service.llm
    prompt = await _render(llm, conversation, _plan(service, llm, conversation))
    return prompt["prompt_token_ids"]


def _plan(service: Service, llm: AsyncLLM, conversation: Conversation) -> ToolUse:
    return plan_tool_use(
        conversation.tools,
        conversation.tool_choice,
        conversation.parallel_tool_calls,
        conversation.sampling.get("structured_outputs"),
        service.tool_parser,
        (llm.tokenizer and llm.tokenizer.chat_template) or "",
    )


async def _render(llm: AsyncLLM, conversation: Conversation, tool_use: ToolUse) -> TokensPrompt:
    async def render(messages: Sequence[Message]) -> TokensPrompt:
        tools = tool_use.tools
        if tool_use.spell_out is not None and (tools or tells_of_calls(messages)):
            messages, tools = tool_use.spell_out(messages, tools), ()
        return await render_prompt(llm, messages, tools, conversation.rendering)

    if not conversation.truncates:
        return await render(conversation.messages)
    room = min(conversation.sampling.get("max_tokens") or 1, llm.max_model_len // 2)
    return await render_latest(render, conversation.messages, llm.max_model_len - room)
