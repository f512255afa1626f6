"""Configuration: every source, their order, and what is said about a wrong key or value."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.plugins import leaves_of, parse_bytes, resolve_settings

KEY = "cache.block_size"


def _write(folder: Path, text: str, suffix: str = "toml") -> Path:
    path = folder / f"octavo.{suffix}"
    path.write_text(text)
    return path


@pytest.mark.parametrize("present", list(itertools.product([False, True], repeat=4)))
def test_the_later_source_wins_in_every_combination(tmp_path: Path, present: tuple[bool, ...]) -> None:
    file, env, line, keyword = present
    path = _write(tmp_path, "[cache]\nblock_size = 1\n")
    settings = resolve_settings(
        path if file else None,
        {"OCTAVO_CACHE_BLOCK_SIZE": "2"} if env else {},
        {KEY: "3"} if line else {},
        {"block_size": 4} if keyword else {},
    )
    ranked = ["default", f"file {path}", "environment OCTAVO_CACHE_BLOCK_SIZE", "command line", "argument"]
    winner = max((i + 1 for i, there in enumerate(present) if there), default=0)
    assert settings.config.cache.block_size == (winner or 16)
    assert settings.sources[KEY] == ranked[winner]


def test_defaults_are_those_of_the_records_and_every_key_has_a_source() -> None:
    settings = resolve_settings(env={})
    assert settings.config == EngineConfig()
    assert set(settings.sources) == set(leaves_of(EngineConfig)) - {"plugins"}
    assert set(settings.sources.values()) == {"default"}


def test_every_leaf_has_help_and_a_type_and_can_be_set_by_environment_to_its_default() -> None:
    for key, leaf in leaves_of(EngineConfig).items():
        assert leaf.help, key
        assert leaf.type_name, key
        if key in ("plugins", "disable_plugins"):
            continue
        text = ",".join(leaf.default) if isinstance(leaf.default, tuple) else str(leaf.default)
        variable = f"OCTAVO_{key.upper().replace('.', '_')}"
        settings = resolve_settings(env={variable: text})
        assert settings.config == EngineConfig(), key
        assert settings.sources[key] == f"environment {variable}"


@pytest.mark.parametrize("suffix", ["toml", "yaml", "yml"])
def test_toml_and_yaml_say_the_same(tmp_path: Path, suffix: str) -> None:
    toml = 'disable_plugins = ["x"]\n[model]\npath = "m"\nmax_model_len = 9\n[plugins.ngram]\nwindow = 3\n'
    yaml = "disable_plugins: [x]\nmodel: {path: m, max_model_len: 9}\nplugins:\n  ngram:\n    window: 3\n"
    path = _write(tmp_path, toml if suffix == "toml" else yaml, suffix)
    settings = resolve_settings(path, {})
    assert settings.config.model.path == "m"
    assert settings.config.model.max_model_len == 9
    assert settings.config.plugins == {"ngram": {"window": 3}}
    assert settings.config.disable_plugins == ("x",)
    assert settings.sources["plugins.ngram.window"] == f"file {path}"


def test_octavo_config_names_the_file(tmp_path: Path) -> None:
    path = _write(tmp_path, "[scheduler]\nmax_num_seqs = 3\n")
    other = tmp_path / "other.toml"
    other.write_text("")
    assert resolve_settings(env={"OCTAVO_CONFIG": str(path)}).config.scheduler.max_num_seqs == 3
    assert resolve_settings(other, env={"OCTAVO_CONFIG": str(path)}).config.scheduler.max_num_seqs == 128


@pytest.mark.parametrize(
    ("suffix", "text", "message"),
    [
        ("toml", "[cache\n", "not valid TOML"),
        ("yaml", "cache: [", "not valid YAML"),
        ("yaml", "- 1\n", "must hold sections, not a list"),
        ("yaml", "!!python/object/apply:os.getcwd []", "not valid YAML"),
        ("json", "{}", "must end in .toml, .yaml or .yml"),
        ("toml", f"[cache]\nblock_size = {'9' * 5000}\n", "not valid TOML"),
        ("yaml", f"cache: {{block_size: {'9' * 5000}}}\n", "not valid YAML"),
        ("toml", f"x = {'[' * 3000}", "not valid TOML"),
        ("yaml", "[" * 3000, "not valid YAML"),
        ("yaml", "cache: 2001-99-99\n", "not valid YAML"),
        ("yaml", '!!int "abc"', "not valid YAML"),
        ("yaml", '!!int ""', "not valid YAML"),
        ("yaml", '!!timestamp "abc"', "not valid YAML"),
        ("yaml", "cache: &c {block_size: 8}\nmodel: *c\n", r"not valid YAML: aliases \(\*name\) are not allowed"),
        ("toml", f"[cache]\nblock_size = 0x{'f' * 5000}\n", "cache.block_size: .*; got a int too large to show from"),
        ("toml", f"[model]\npath = {list(range(999))}\n", r"model.path: .*; got \[0, 1, 2, .{60,70}\.\.\. from"),
        ("toml", f"cache = {list(range(999))}\n", r"cache: .*; got \[0, 1, 2, .{60,70}\.\.\. from"),
        ("toml", "cache = 3\n", r"cache: must be a section of keys; got 3 from file"),
        ("toml", "[plugins]\nngram = 3\n", "plugins.ngram: must be a section of the plugin's options"),
        ("toml", "[cash]\nx = 1\n", r"unknown key 'cash' from file .*; did you mean 'cache'\?"),
        (
            "toml",
            "[cache]\nblocksize = 1\n",
            r"unknown key 'cache.blocksize' from file .*did you mean 'cache.block_size'",
        ),
        ("toml", "block_size = 1\n", r"unknown key 'block_size' from file .*belongs in section 'cache'"),
        ("toml", '[cache]\nblock_size = "16"\n', r"cache.block_size: must be int; got '16' from file"),
        ("toml", "[cache]\nblock_size = true\n", r"cache.block_size: must be int; got True"),
        ("toml", "[cache]\nmemory_fraction = nan\n", "cache.memory_fraction: must be"),
    ],
)
def test_wrong_files(tmp_path: Path, suffix: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_settings(_write(tmp_path, text, suffix), {})


def test_aliases_are_refused_before_they_grow(tmp_path: Path) -> None:
    levels = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30))
    with pytest.raises(ConfigError, match="aliases") as refused:
        resolve_settings(_write(tmp_path, f"a0: &a0 [x]\n{levels}", "yaml"), {})
    assert len(str(refused.value)) < 500


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.toml cannot be read: No such file"):
        resolve_settings(tmp_path / "missing.toml", {})
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        resolve_settings(binary, {})
    assert resolve_settings(_write(tmp_path, "", "yaml"), {}).config == EngineConfig()


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        (
            "OCTAVO_CACHE_BLOKSIZE",
            "1",
            r"unknown environment variable OCTAVO_CACHE_BLOKSIZE; did you mean 'OCTAVO_CACHE_B",
        ),
        ("OCTAVO_DISABLE_PLUGIN", "x", r"did you mean 'OCTAVO_DISABLE_PLUGINS'\?"),
        (
            "OCTAVO_CACHE_BLOCK_SIZE",
            "x",
            "cache.block_size: must be int; got 'x' from environment OCTAVO_CACHE_BLOCK_SIZE",
        ),
        ("OCTAVO_CACHE_BLOCK_SIZE", "0", "cache.block_size: must be int >= 1; got '0'"),
        ("OCTAVO_CACHE_BLOCK_SIZE", "", "cache.block_size: must be int; got ''"),
        ("OCTAVO_MODEL_DTYPE", "flot32", r"model.dtype: must be one of auto, .*did you mean 'float32'\?; got 'flot32'"),
        ("OCTAVO_CACHE_MEMORY_FRACTION", "nan", "cache.memory_fraction: must be"),
        ("OCTAVO_CACHE_MEMORY_FRACTION", "1.5", "cache.memory_fraction: must be float <= 1"),
        ("OCTAVO_CACHE_MEMORY", "lots", "cache.memory: must be a size such as 2GiB"),
        ("OCTAVO_CACHE_ENABLE_PREFIX_CACHING", "maybe", "cache.enable_prefix_caching: must be bool; got 'maybe'"),
        ("OCTAVO_PLUGINS_NGRAM_WINDOW", "3", "names no installed plugin; there is: torch, torch_sdpa"),
        ("OCTAVO_PLUGINS_TORCH_", "3", "names no installed plugin"),
    ],
)
def test_wrong_environment(site, variable: str, value: str, message: str) -> None:
    for name in ("torch", "torch_sdpa"):
        site.add(name, "")
    with pytest.raises(ConfigError, match=message):
        resolve_settings(env={variable: value})


def test_reserved_and_foreign_variables_are_no_keys() -> None:
    env = {"OCTAVO_CACHE_DIR": "/x", "OCTAVO_LOG": "info", "PATH": "/bin", "OCTAVOX": "1"}
    assert resolve_settings(env=env).config == EngineConfig()


def test_plugin_options_in_the_environment_go_to_the_longest_name(site) -> None:
    for name in ("torch", "torch_sdpa", "x-y"):
        site.add(name, "")
    env = {"OCTAVO_PLUGINS_TORCH_SDPA_MODE": "a", "OCTAVO_PLUGINS_TORCH_MODE": "b", "OCTAVO_PLUGINS_X_Y_Z": "c"}
    config = resolve_settings(env=env).config
    assert config.plugins == {"torch_sdpa": {"mode": "a"}, "torch": {"mode": "b"}, "x-y": {"z": "c"}}


def test_the_disable_lists_of_all_sources_add_up(tmp_path: Path) -> None:
    path = _write(tmp_path, 'disable_plugins = ["a"]\n')
    settings = resolve_settings(
        path, {"OCTAVO_DISABLE_PLUGINS": "b, a"}, {"disable_plugins": "c"}, {"disable_plugins": ["d"]}
    )
    assert settings.config.disable_plugins == ("a", "b", "c", "d")
    for part in (f"file {path}", "environment OCTAVO_DISABLE_PLUGINS", "command line", "argument"):
        assert part in settings.sources["disable_plugins"]


def test_keywords_in_all_their_forms(tmp_path: Path) -> None:
    config = resolve_settings(
        env={},
        keywords={
            "model": tmp_path,
            "cache": {"memory": "1GiB"},
            "max_num_seqs": 4,
            "dtype": "float32",
            "num_threads": None,
            "logits_processors": ["a"],
            "memory_fraction": 1,
            "plugins": {"ngram": {"window": 3}},
            "disable_plugins": ["x"],
            "autoload_plugins": False,
        },
    ).config
    assert config.model.path == str(tmp_path)
    assert config.cache.memory == "1GiB"
    assert config.scheduler.max_num_seqs == 4
    assert config.model.dtype == "float32"
    assert config.parallel.num_threads is None
    assert config.sampling.logits_processors == ("a",)
    assert config.cache.memory_fraction == 1.0
    assert config.plugins == {"ngram": {"window": 3}}
    assert config.autoload_plugins is False
    assert resolve_settings(env={}, keywords={"model": {"path": "p", "dtype": "float16"}}).config.model.path == "p"


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"max_num_seq": 4}, r"unknown keyword argument 'max_num_seq'; did you mean 'max_num_seqs'\?"),
        (
            {"cache": {"blok_size": 4}},
            r"unknown key 'cache.blok_size' from argument; did you mean 'cache.block_size'\?",
        ),
        ({"cache": 4}, "cache: must be a section of keys; got 4 from argument"),
        ({"max_num_seqs": "4"}, "scheduler.max_num_seqs: must be int; got '4' from argument"),
        ({"max_num_seqs": None}, "scheduler.max_num_seqs: must be int; got None from argument"),
        ({"num_blocks": 1}, "cache.num_blocks: must be int >= 2; got 1"),
        ({"max_model_len": 0}, "model.max_model_len: must be int >= 1; got 0"),
        ({"model": 3}, "model.path: must be str or none; got 3"),
        ({"memory": -5}, "cache.memory: must be a size"),
        ({"memory": 0}, "cache.memory: must be at least one byte"),
    ],
)
def test_wrong_keywords(keywords: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_settings(env={}, keywords=keywords)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "cache.blocksize",
            "1",
            r"unknown key 'cache.blocksize' on the command line; did you mean 'cache.block_size'\?",
        ),
        ("cache.block_size", "a", "got 'a' from command line"),
        ("plugins.ngram", "1", "write --plugins.<plugin>.<option> VALUE"),
    ],
)
def test_wrong_command_line(key: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_settings(env={}, command_line={key: value})


@pytest.mark.parametrize(
    ("size", "num_bytes"),
    [
        (None, None),
        (5, 5),
        ("5", 5),
        ("1KiB", 1024),
        ("2 gib", 2 * 1024**3),
        ("2GB", 2 * 10**9),
        ("1.5MiB", 3 * 2**19),
        (" 7 B ", 7),
        ("9007199254740993", 9007199254740993),
    ],
)
def test_sizes(size: str | int | None, num_bytes: int | None) -> None:
    assert parse_bytes(size) == num_bytes


@pytest.mark.parametrize(
    "size", ["", "GiB", "2G", "-1GiB", "1e9", "2GiBs", "0", "0.1B", "nan", True, "1.GiB", "١GiB", "9" * 5000]
)
def test_rubbish_sizes(size: str) -> None:
    with pytest.raises(ConfigError):
        parse_bytes(size)


_scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
_values = st.recursive(
    _scalars, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=8), v, max_size=3)
)


@given(st.sampled_from(sorted(leaves_of(EngineConfig))), _values)
def test_any_value_is_either_taken_or_refused_with_its_key(key: str, value: object) -> None:
    section, _, leaf = key.rpartition(".")
    keywords = {section: {leaf: value}} if section else {key: value}
    try:
        settings = resolve_settings(env={}, keywords=keywords)
    except ConfigError as error:
        told = str(error)
    else:
        msgspec.convert(msgspec.to_builtins(settings.config), EngineConfig)
        return
    assert leaf in told
