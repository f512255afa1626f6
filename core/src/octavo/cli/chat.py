"""`octavo chat`: a conversation in the terminal, answers as they come.

Owns: the command's arguments and the conversation. Must never know: how anything is computed.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from octavo.cli.model import load_llm
from octavo.cli.sampling_options import add_sampling_options, sampling_changes
from octavo.errors import ConfigError, InvalidRequestError
from octavo.request import FinishReason

_DEFAULT_MAX_TOKENS = 512
_HELP = "/clear starts anew, /exit (or Ctrl-D) leaves, Ctrl-C stops an answer"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("message", nargs="?", help="say this, print the answer and leave")
    parser.add_argument("--system", metavar="TEXT", help="system message that opens the conversation")
    add_sampling_options(parser, _DEFAULT_MAX_TOKENS, leave_out=("n", "logprobs"))


def run(arguments: argparse.Namespace) -> int:
    changes = sampling_changes(arguments)

    with load_llm(arguments.engine_config) as llm:
        params = llm.default_sampling_params(**changes)
        opening = [{"role": "system", "content": arguments.system}] if arguments.system else []
        if arguments.message is not None:
            answer = _answer(llm, [*opening, {"role": "user", "content": arguments.message}], params)
            return 1 if answer is None else 0
        return _converse(llm, opening, params)


def _converse(llm: Any, opening: list[dict[str, str]], params: Any) -> int:
    """Read messages until the input ends. A message that is refused is taken back, and the conversation goes on."""
    interactive = sys.stdin.isatty()
    if interactive:
        print(_HELP)
    history = list(opening)
    while True:
        try:
            message = input("> " if interactive else "").strip()
        except (EOFError, KeyboardInterrupt):
            return 0
        except UnicodeDecodeError as error:
            raise ConfigError(f"cannot read messages from standard input: {error}") from error
        if message == "/exit":
            return 0
        if message == "/clear":
            history = list(opening)
        elif message.startswith("/"):
            print(f"unknown command; {_HELP}", file=sys.stderr)
        elif message:
            history.append({"role": "user", "content": message})
            try:
                answer = _answer(llm, history, params)
            except InvalidRequestError as error:
                print(f"octavo: error: {error}", file=sys.stderr)
                answer = None
            if answer is None:
                history.pop()
            else:
                history.append({"role": "assistant", "content": answer})


def _answer(llm: Any, messages: list[dict[str, str]], params: Any) -> str | None:
    """Print the answer as it comes, then its speed; None if it failed. Ctrl-C ends it early."""
    shown, output = 0, None
    stream = llm.stream(llm.engine.inputs.render_chat(messages), params)
    try:
        for output in stream:
            text = output.outputs[0].text
            print(text[shown:], end="", flush=True)
            shown = len(text)
    except KeyboardInterrupt:
        stream.close()
    print()
    if output is None:
        return None
    completion = output.outputs[0]
    if completion.error is not None:
        print(f"octavo: error: {completion.error}", file=sys.stderr)
        return None
    _print_speed(output)
    if completion.finish_reason is FinishReason.LENGTH:
        print("(cut off: --max-tokens, or the model's length)", file=sys.stderr)
    return completion.text


def _print_speed(output: Any) -> None:
    num_tokens, metrics = len(output.outputs[0].token_ids), output.metrics
    parts = [f"{num_tokens} tokens"]
    if metrics.decode_time and num_tokens > 1:
        parts.append(f"{(num_tokens - 1) / metrics.decode_time:.1f} tokens/s")
    if metrics.time_to_first_token is not None:
        parts.append(f"first after {metrics.time_to_first_token * 1000:.0f} ms")
    print(f"[{', '.join(parts)}]", file=sys.stderr)
