"""Options, and what the plugin costs where nobody configured it: nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import octavo_otel.plugin
from octavo.config import EngineConfig, ModelConfig
from octavo.errors import ConfigError
from octavo.testing.table_model import table_llm
from octavo_otel.plugin import OtelOptions, octavo_make_observers

NOTHING_IMPORTED = """
import sys
import octavo_otel.plugin
from octavo import SamplingParams
from octavo.testing.table_model import table_llm

for options in ({}, {"otel": {"service_name": "x", "endpoint": ""}}):
    llm = table_llm(plugins=[octavo_otel.plugin], options=options)
    llm.generate(["prompt"], SamplingParams(max_tokens=2), use_tqdm=False)
    assert not llm.engine._observers
    llm.shutdown()
print([name for name in sys.modules if name.startswith(("opentelemetry", "google.protobuf", "requests"))])
table_llm(plugins=[octavo_otel.plugin], options={"otel": {"endpoint": "http://127.0.0.1:9"}}).shutdown()
print("opentelemetry.sdk.trace" in sys.modules)
"""


def test_nothing_of_opentelemetry_is_imported_before_it_is_configured() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", NOTHING_IMPORTED], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("[]\nTrue\n", "")


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://localhost:4318", "http://localhost:4318/v1/traces"),
        ("https://collector/", "https://collector/v1/traces"),
        ("http://[::1]:4318?tenant=a", "http://[::1]:4318/v1/traces?tenant=a"),
        ("http://host/otlp/v1/traces", "http://host/otlp/v1/traces"),
        ("http://host/ingest/", "http://host/ingest/"),
    ],
)
def test_the_path_of_otlp_is_added_where_there_is_none(endpoint: str, url: str) -> None:
    assert OtelOptions(endpoint=endpoint).traces_url == url


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"endpoint": "localhost:4318"},
            r"plugins\.otel: endpoint: 'localhost:4318' is no URL .*http://localhost:4318",
        ),
        ({"endpoint": "grpc://localhost:4317"}, "no URL of a collector"),
        ({"endpoint": "http://"}, "no URL of a collector"),
        ({"endpoint": "http://host:port"}, "no URL of a collector"),
        ({"endpoint": "http://[::1"}, "no URL of a collector"),
        ({"endpoint": "http://a b"}, "no URL of a collector"),
        ({"endpoint": "http://me:secret@host"}, "put them into headers"),
        ({"headers": {"a\nb": "c"}}, "headers: 'a.*' is no HTTP header"),
        ({"headers": {"a": "c\r\nd: e"}}, "headers: 'a' is no HTTP header"),
        ({"headers": {"a": ""}}, "headers: 'a' is no HTTP header"),
        ({"headers": {"a": "é"}}, "headers: 'a' is no HTTP header"),
        ({"sample_ratio": 1.5}, r"plugins\.otel\.sample_ratio"),
        ({"sample_ratio": "nan"}, r"plugins\.otel\.sample_ratio"),
        ({"timeout": 0}, r"plugins\.otel\.timeout"),
        ({"end_point": "x"}, r"plugins\.otel\.end_point.*endpoint"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as refused:
        table_llm(plugins=[octavo_otel.plugin], options={"otel": options})
    assert "secret" not in str(refused.value)


def test_options_may_be_texts_as_the_environment_gives_them(collector: Any) -> None:
    options = {"endpoint": collector.endpoint, "sample_ratio": "0.5", "timeout": "2.5"}
    llm = table_llm(plugins=[octavo_otel.plugin], options={"otel": options})
    [observer] = llm.engine._observers
    assert "0.5" in observer._provider.sampler.get_description()
    llm.shutdown()


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (None, None),
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
        ("{folder}/my-model", "my-model"),
        ("{folder}/my-model/", "my-model"),
    ],
)
def test_a_model_goes_by_its_id_or_the_name_of_its_folder(
    collector: Any, tmp_path: Path, path: str | None, name: str | None
) -> None:
    (tmp_path / "my-model").mkdir()
    model = ModelConfig(path=path.format(folder=tmp_path) if path else None)
    [observer] = octavo_make_observers(EngineConfig(model=model), OtelOptions(endpoint=collector.endpoint))
    assert observer._model == name
    observer.shutdown()
