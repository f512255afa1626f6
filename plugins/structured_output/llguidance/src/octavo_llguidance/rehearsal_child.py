"""The program of a child process: compiles grammars that may take for ever, or all memory, or the process with them.

Owns: what it is told and answers, in JSON. Must never know: its limits, who asks. Run by `octavo_llguidance.rehearsal`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable

from octavo.trial import serve
from octavo_llguidance.engine import GrammarError, compile_grammar, make_tokenizer


def _start(setup: bytes) -> Callable[[bytes], bytes]:
    """From the tokens, as text in Latin-1, to what says of a grammar what is wrong with it: null, or a message."""
    tokenizer = make_tokenizer([token.encode("latin-1") for token in json.loads(setup)])
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the parent says what became of the child

    def answer(job: bytes) -> bytes:
        try:
            compile_grammar(tokenizer, json.loads(job))
        except GrammarError as error:
            return json.dumps(str(error)).encode()
        return b"null"

    return answer


if __name__ == "__main__":
    serve(_start)
