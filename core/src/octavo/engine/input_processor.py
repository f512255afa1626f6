"""From what a user passes to a validated `Request`.

Owns: tokenising, checks against the model's limits, default sampling options. Must never know: scheduling, devices.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from octavo.errors import ConfigError, InvalidRequestError, ModelLoadError, quoted, suggestion
from octavo.extensions import Registry
from octavo.request import Prompt, Request, TextPrompt, TokensPrompt
from octavo.sampling_params import SamplingParams, whole_number
from octavo.spec import LogitsProcessorEntry, Tokenizer
from octavo.structured_outputs import StructuredOutputsParams

_BEGINNING = 16
"""Characters for each token that fits, of the text that is looked at first. What follows may merge with its last
tokens, but not make half as many of them."""
_GENERATION_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_OWN_FIELDS = [field.name for field in dataclasses.fields(Request) if field.name != "sampling_params"]
_write_request = msgspec.msgpack.Encoder(enc_hook=lambda unknown: [[]]).encode
"""Writes what only Python knows as what no field takes but one of any type."""
_read_request = msgspec.msgpack.Decoder(Request).decode
_PROMPT_KEYS = TextPrompt.__annotations__.keys() | TokensPrompt.__annotations__.keys()


class InputProcessor:
    """Makes requests for one model. Thread-safe."""

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        *,
        vocab_size: int,
        max_model_len: int,
        model_len_reason: str,
        eos_token_ids: Iterable[int],
        generation_config: Mapping[str, Any],
        processors: Registry[LogitsProcessorEntry],
        grammar_backend: str,
        seed: int | None,
    ) -> None:
        """`model_len_reason` says what `max_model_len` comes from, for the error of a prompt that is too long."""
        self.tokenizer = tokenizer
        self.max_model_len = max_model_len
        self._vocab_size = vocab_size
        self._model_len_reason = model_len_reason
        self._eos_token_ids = frozenset(eos_token_ids)
        self._defaults = {k: generation_config[k] for k in _GENERATION_DEFAULTS if generation_config.get(k) is not None}
        if generation_config.get("do_sample") is False:
            self._defaults["temperature"] = 0.0
        self._check_defaults()
        self._processors = processors
        if grammar_backend != "auto" and grammar_backend not in self._grammar_backends():
            there = ", ".join(self._grammar_backends()) or "none is installed"
            near = suggestion(grammar_backend, self._grammar_backends())
            raise ConfigError(
                f"structured_outputs.grammar_backend: no grammar backend is called {grammar_backend!r}{near}; "
                f"there is: {there}"
            )
        self._default_grammar_backend = grammar_backend
        self._seed = seed
        self._num_seedless = itertools.count(1)

    def _check_defaults(self) -> None:
        try:
            self.default_sampling_params()
        except InvalidRequestError as error:
            raise ModelLoadError(
                f"the model's generation config: {error}; mend it, or set model.use_generation_config to false"
            ) from error

    def default_sampling_params(self, **changes: Any) -> SamplingParams:
        """What the model's generation config recommends, with changes."""
        return SamplingParams(**(self._defaults | changes))

    def make_request(
        self, request_id: str, prompt: Prompt, params: SamplingParams, trace_headers: Mapping[str, str] | None = None
    ) -> Request:
        """Raises `InvalidRequestError` for whatever the model cannot take."""
        arrival_time = time.monotonic()
        text, token_ids, cache_salt = self._split(prompt)
        self._check_prompt(token_ids)
        self._check_params(params)
        params = self._watch_special_stops(params)
        room = self.max_model_len - len(token_ids)
        return Request(
            request_id=request_id,
            prompt_token_ids=tuple(token_ids),
            sampling_params=params,
            seed=params.seed if params.seed is not None else self._draw_seed(),
            eos_token_ids=frozenset() if params.ignore_eos else self._eos_token_ids,
            max_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
            arrival_time=arrival_time,
            prompt=text,
            cache_salt=cache_salt,
            processors=self._processors_for(params),
            trace_headers=trace_headers,
        )

    def check(self, request: Request) -> None:
        """Look at a record again, which others may have made or changed. Raises `InvalidRequestError`.

        Whatever cannot be sent to an engine in another process is refused for one in this process too, but for objects
        in `extra_args`.
        """
        if not (isinstance(request, Request) and isinstance(request.sampling_params, SamplingParams)):
            raise InvalidRequestError("request", "is no Request with SamplingParams; let make_request make it")
        try:
            read = _read_request(_write_request(request))
        except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InvalidRequestError("request", f"{error}; let make_request make it") from None
        for name in _OWN_FIELDS:
            if getattr(read, name) != getattr(request, name):
                raise InvalidRequestError("request", f"{name} is of the wrong type; let make_request make it")
        if request.max_tokens < 1:
            raise InvalidRequestError("max_tokens", "must be at least 1")
        self._check_prompt(request.prompt_token_ids)
        self._check_params(request.sampling_params)

    def render_chat(self, messages: Sequence[Mapping[str, Any]], **template_options: Any) -> TokensPrompt:
        """The prompt for chat messages: exactly what the model's template gives, with no BOS added to it."""
        tokenizer = self.need_tokenizer("messages")
        text = tokenizer.apply_chat_template(messages, **template_options)
        return {"prompt": text, "prompt_token_ids": self._encode(text, add_special_tokens=False)}

    def _encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a prompt. One whose beginning is too long by far is refused for that: all of it takes long."""
        tokenizer = self.need_tokenizer("prompt")
        beginning, most = text[: _BEGINNING * self.max_model_len], 2 * self.max_model_len
        if len(beginning) < len(text) and len(tokenizer.encode(beginning, add_special_tokens)) > most:
            raise self._too_long(f"more than {most}")
        return tokenizer.encode(text, add_special_tokens)

    def _too_long(self, num_tokens: str) -> InvalidRequestError:
        message = f"has {num_tokens} tokens; at most {self.max_model_len - 1} fit, since {self._model_len_reason}"
        return InvalidRequestError("prompt", message)

    def _split(self, prompt: Prompt) -> tuple[str | None, list[int], str | None]:
        """Text (None if only token ids were given), token ids and cache salt."""
        if isinstance(prompt, Mapping):
            unknown = set(prompt) - _PROMPT_KEYS
            if unknown:
                raise InvalidRequestError("prompt", f"unknown key {min(unknown)!r}; known: {sorted(_PROMPT_KEYS)}")
            fields: Mapping[str, Any] = prompt
            text, given, salt = (fields.get(key) for key in ("prompt", "prompt_token_ids", "cache_salt"))
        else:
            text, given, salt = (prompt, None, None) if isinstance(prompt, str) else (None, prompt, None)
        for name, value in (("prompt", text), ("cache_salt", salt)):
            if value is not None and not isinstance(value, str):
                raise InvalidRequestError("prompt", f"{name} must be text, got {type(value).__name__}")
        if given is None and text is not None:
            return text, self._encode(text), salt
        wrong = InvalidRequestError("prompt", f"must be text or token ids, got {type(given).__name__}")
        if given is None or isinstance(given, bytes | bytearray):
            raise wrong
        try:
            numbers = [whole_number(i) for i in given]
        except TypeError:  # nothing to iterate over
            raise wrong from None
        token_ids = [i for i in numbers if i is not None]
        if len(token_ids) < len(numbers):
            raise InvalidRequestError("prompt", "token ids must be a list of whole numbers")
        return text, token_ids, salt

    def _check_prompt(self, token_ids: Sequence[int]) -> None:
        if not token_ids:
            raise InvalidRequestError("prompt", "is empty; give at least one token")
        if len(token_ids) >= self.max_model_len:
            raise self._too_long(str(len(token_ids)))
        self._check_ids("prompt", token_ids)

    def _check_params(self, params: SamplingParams) -> None:
        for name in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
            self._check_ids(name, getattr(params, name) or ())
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(params, name)
            if value is not None and value > self._vocab_size:
                raise InvalidRequestError(name, f"must be at most the vocabulary's size, {self._vocab_size}")
        for name in ("bad_words", "stop"):
            if getattr(params, name):
                self.need_tokenizer(name)

    def _watch_special_stops(self, params: SamplingParams) -> SamplingParams:
        """A special token is not part of the text, so a stop string that is one is watched for by its id."""
        if not params.stop:
            return params
        tokenizer = self.need_tokenizer("stop")
        ids = {text: tokenizer.special_token_id(text) for text in params.stop}
        special = [i for i in ids.values() if i is not None]
        if not special:
            return params
        return params.replace(
            stop=[text for text, i in ids.items() if i is None or not params.skip_special_tokens],
            stop_token_ids=[*params.stop_token_ids, *special],
        )

    def _processors_for(self, params: SamplingParams) -> tuple[str, ...]:
        """The logits processors that a request asks for: those named in `extra_args`, and its grammar backend."""
        for name in params.extra_args:
            if name not in self._processors:
                raise InvalidRequestError("extra_args", self._processors.not_found(name))
        if params.structured_outputs is None:
            return tuple(params.extra_args)
        return (*params.extra_args, self._grammar_backend(params.structured_outputs))

    def _grammar_backends(self) -> list[str]:
        return [name for name, offer in self._processors.items() if offer.entry.grammar_kinds]

    def _grammar_backend(self, wanted: StructuredOutputsParams) -> str:
        able = {n: o.entry.priority for n, o in self._processors.items() if wanted.kind in o.entry.grammar_kinds}
        name = wanted.backend or self._default_grammar_backend
        if name == "auto" and able:
            return max(able, key=lambda n: (able[n], n))
        if name in able:
            return name
        near = suggestion(name, able)
        there = f"there is: {', '.join(able)}" if able else "`octavo plugins` shows what is installed"
        which = "no grammar backend" if name == "auto" else f"no grammar backend {quoted(name)}"
        raise InvalidRequestError("structured_outputs", f"{which} for {wanted.kind}{near}; {there}")

    def _check_ids(self, name: str, token_ids: Iterable[int]) -> None:
        worst = next((i for i in token_ids if not 0 <= i < self._vocab_size), None)
        if worst is not None:
            raise InvalidRequestError(name, f"token id {worst} is outside the vocabulary, 0 to {self._vocab_size - 1}")

    def need_tokenizer(self, field: str) -> Tokenizer:
        """Raises `InvalidRequestError` naming `field` if the model has no tokenizer."""
        if self.tokenizer is None:
            raise InvalidRequestError(field, "this model has no tokenizer; pass token ids and detokenize=False")
        return self.tokenizer

    def _draw_seed(self) -> int:
        if self._seed is None:
            return secrets.randbits(63)
        digest = hashlib.sha256(f"{self._seed}:{next(self._num_seedless)}".encode()).digest()
        return int.from_bytes(digest[:8], "little") >> 1
