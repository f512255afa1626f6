"""Configuration keys as flags."""

from __future__ import annotations

import pytest

from octavo.cli.options import add_engine_options, settings_from
from octavo.cli.parser import Parser, add_shared_options, early_options, split_command, split_plugin_options
from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.plugins import leaves_of


def _settings(*argv: str):
    parser = Parser(prog="octavo test")
    add_shared_options(parser)
    parser.add_argument("prompts", nargs="*")
    add_engine_options(parser)
    return settings_from(parser.parse_args(argv))


@pytest.mark.parametrize("key", [key for key in leaves_of(EngineConfig) if key not in ("plugins", "disable_plugins")])
def test_every_key_has_a_flag_in_both_spellings(key: str) -> None:
    leaf = leaves_of(EngineConfig)[key]
    text = ",".join(leaf.default) if isinstance(leaf.default, tuple) else str(leaf.default)
    for flag in (f"--{key}", f"--{key.replace('_', '-')}"):
        assert _settings(flag, text).sources[key] == "command line"
        assert _settings(f"{flag}={text}").config == EngineConfig()


@pytest.mark.parametrize(
    ("flag", "key", "text", "value"),
    [
        ("--model", "model.path", "m", "m"),
        ("--dtype", "model.dtype", "float32", "float32"),
        ("--device", "model.device", "cpu", "cpu"),
        ("--max-model-len", "model.max_model_len", "12", 12),
        ("--chat-template", "model.chat_template", "{{ x }}", "{{ x }}"),
        ("--seed", "sampling.seed", "-3", -3),
        ("--drafter", "speculation.drafter", "ng", "ng"),
        ("--attention-backend", "attention.backend", "b", "b"),
    ],
)
def test_short_forms(flag: str, key: str, text: str, value: object) -> None:
    section, _, leaf = key.partition(".")
    settings = _settings(f"{flag}={text}")
    assert getattr(getattr(settings.config, section), leaf) == value
    assert settings.sources[key] == "command line"


def test_help_tells_the_defaults(capsys) -> None:
    with pytest.raises(SystemExit):
        _settings("--help")
    told = " ".join(capsys.readouterr().out.split())
    assert "only the budget limits. (int; default: 0)" in told
    assert "(bool; default: true)" in told
    assert "(int or none; default: none)" in told
    assert "(list of str; default: empty)" in told
    assert "--cache.block_size" not in told
    assert "--plugins.NAME.OPTION VALUE" in told


def test_flags_are_never_guessed_from_a_prefix() -> None:
    with pytest.raises(ConfigError, match=r"unknown option --mod; did you mean '--model'\?; see `octavo test --help`"):
        _settings("--mod", "x")


def test_plugin_options_and_disabled_plugins() -> None:
    settings = _settings(
        "--plugins.torch_sdpa.max-rows", "3", "--plugins.a.b=c=d", "hi", "--disable-plugin", "x", "--disable-plugin=y"
    )
    assert settings.config.plugins == {"torch_sdpa": {"max_rows": "3"}, "a": {"b": "c=d"}}
    assert settings.config.disable_plugins == ("x", "y")
    assert settings.sources["plugins.a.b"] == "command line"


@pytest.mark.parametrize("flag", ["--max_model_len", "--max-model-len", "--max-model_len", "--disable_plugin"])
def test_underscores_stand_for_dashes(flag: str) -> None:
    expected = ("12",) if flag == "--disable_plugin" else 12
    for argv in ((flag, "12"), (f"{flag}=12",)):
        config = _settings(*argv).config
        assert expected in (config.model.max_model_len, config.disable_plugins)


@pytest.mark.parametrize(
    ("argv", "near"),
    [
        (("--scheduler.max-num-seq", "8"), "--scheduler.max-num-seqs"),
        (("hi", "--scheduler.max_num_seq=8"), "--scheduler.max-num-seqs"),
        (("--max-num-seqs", "8"), "--scheduler.max-num-seqs"),
    ],
)
def test_an_unknown_flag_is_named_before_its_value(argv: tuple[str, ...], near: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown option --.*; did you mean '{near}'"):
        _settings(*argv)


def test_what_only_looks_like_a_flag_is_left_alone() -> None:
    parser = Parser(prog="octavo test")
    parser.add_argument("--max-tokens", type=int)
    parser.add_argument("--stop")
    parser.add_argument("prompts", nargs="*")
    found = parser.parse_args(
        ["--stop=--max_tokens", "--max_tokens", "-3", "-- is a dash", "--", "--max_tokens", "--x"]
    )
    assert (found.max_tokens, found.stop) == (-3, "--max_tokens")
    assert found.prompts == ["-- is a dash", "--max_tokens", "--x"]


def test_a_subcommand_has_flags_of_its_own() -> None:
    parser = Parser(prog="octavo test")
    parser.add_subparsers().add_parser("sub").add_argument("--num-rows", type=int)
    assert parser.parse_args(["sub", "--num_rows", "3"]).num_rows == 3
    with pytest.raises(ConfigError, match="--nm-rows"):
        parser.parse_args(["sub", "--nm-rows", "3"])
    rest = Parser(prog="octavo test")
    rest.add_argument("rest", nargs="...")
    assert rest.parse_args(["x", "--theirs"]).rest == ["x", "--theirs"]


def test_what_follows_two_dashes_is_left_alone() -> None:
    assert split_plugin_options(["a", "--", "--plugins.x.y"]) == (["a", "--", "--plugins.x.y"], {})
    assert early_options(["generate", "--", "--disable-plugin", "x"]) == (None, [])
    assert early_options(["generate", "--config", "f", "--temperature", "2"]) == ("f", [])


def test_the_command_is_the_first_word() -> None:
    argv = ["--config", "file", "--disable-plugin=x", "generate", "--config", "other", "plugins"]
    assert split_command(argv) == (argv[:3], "generate", argv[4:])
    assert split_command(["--disable_plugin", "x", "plugins"]) == (["--disable_plugin", "x"], "plugins", [])
    assert split_command(["--help"]) == (["--help"], None, [])
    assert split_command([]) == ([], None, [])
