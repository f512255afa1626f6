"""`octavo generate`: complete prompts from arguments, a file or standard input.

Owns: the command's arguments and output. Must never know: how anything is computed.
"""

from __future__ import annotations

import argparse
import io
import sys
from typing import Any

import msgspec

from octavo.cli.draft_report import DraftReport
from octavo.cli.model import load_llm
from octavo.cli.sampling_options import add_sampling_options, sampling_changes
from octavo.errors import ConfigError

_DEFAULT_MAX_TOKENS = 64


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompts", nargs="*", metavar="PROMPT", help="text to complete; none: lines of standard input")
    parser.add_argument(
        "--file", metavar="FILE", help="take one prompt from each line of a file that is not blank; '-': standard input"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object for each prompt, a line each")
    parser.add_argument("--no-echo", action="store_true", help="print the generated text without the prompt before it")
    add_sampling_options(parser, _DEFAULT_MAX_TOKENS)


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0, or 1 if a request failed after it was accepted."""
    prompts = list(arguments.prompts)
    if arguments.file is not None or (not prompts and not sys.stdin.isatty()):
        prompts += _read_lines(arguments.file or "-")
    if not prompts:
        raise ConfigError('no prompt: octavo generate "The capital of France is", or --file FILE')
    changes = sampling_changes(arguments)
    drafts = DraftReport()

    with load_llm(arguments.engine_config, [drafts]) as llm:
        params = llm.default_sampling_params(**changes)
        if arguments.json or len(prompts) > 1 or params.n > 1:
            outputs = llm.generate(prompts, params)
            for output in outputs:
                print(_json_line(output) if arguments.json else _plain(output, not arguments.no_echo))
        else:
            outputs = [_stream(llm, prompts[0], params, echo=not arguments.no_echo)]
    for line in drafts.lines():
        print(line, file=sys.stderr)
    return _exit_code(outputs)


def _read_lines(file: str) -> list[str]:
    """The non-empty lines of a file, `-` being standard input. Raises `ConfigError` if it cannot be read as UTF-8."""
    try:
        if file == "-":
            text = sys.stdin.buffer.read().decode("utf-8-sig")
        else:
            with open(file, encoding="utf-8-sig") as handle:
                text = handle.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read prompts from {file!r}: {error}") from error
    # str.splitlines would also cut at form feeds and the like, which may stand in a prompt
    return [line.removesuffix("\n") for line in io.StringIO(text, newline=None) if line.strip()]


def _stream(llm: Any, prompt: str, params: Any, echo: bool) -> Any:
    """Print one completion as it comes; its last output."""
    shown, output = 0, None
    for output in llm.stream(prompt, params):
        text = output.outputs[0].text
        if echo and output.outputs[0].error is None:
            print(prompt, end="")
            echo = False
        print(text[shown:], end="", flush=True)
        shown = len(text)
    print()
    return output


def _exit_code(outputs: list[Any]) -> int:
    errors = [c.error for output in outputs for c in output.outputs if c.error is not None]
    for error in errors:
        print(f"octavo: error: {error}", file=sys.stderr)
    return 1 if errors else 0


def _plain(output: Any, echo: bool) -> str:
    prompt = output.prompt if echo else ""
    return "\n".join(prompt + completion.text for completion in output.outputs)


def _json_line(output: Any) -> str:
    """The whole output record, with the prompt's length instead of its ids."""
    record = msgspec.to_builtins(output)
    record["num_prompt_tokens"] = len(record.pop("prompt_token_ids"))
    return msgspec.json.encode(record).decode()
