"""Settings merge in the order defaults < file < environment < flags; errors name the source of a bad value."""

import re
from unittest.mock import Mock

import pytest

from specprefill_cli.cli.options import merge_settings
from specprefill_cli.errors import UsageError
from specprefill_cli.models.machine.quantization import AUTO, BYTES_PER_WEIGHT, NONE
from specprefill_cli.settings import SETTINGS, Settings


@pytest.fixture
def merge(tmp_path, monkeypatch):
    """Merges flags, the variables of an environment, and the content of a config file."""
    file = tmp_path / "config.toml"
    monkeypatch.delenv("SPECPREFILL_PAIR")
    monkeypatch.setenv("SPECPREFILL_CONFIG", str(file))

    def merge_sources(flags, environment, content=""):
        file.write_text(content, encoding="utf-8")
        for variable, value in environment.items():
            monkeypatch.setenv(variable, value)
        return merge_settings(flags)

    return merge_sources


def test_flags_override_environment_and_file(merge):
    # A wrong value does no harm where another one overrides it, nor does a byte order mark.
    content = '\ufeffkeep = 0.5\nlook_ahead = 4\nmode = "fast"\n'
    environment = {"SPECPREFILL_LOOK_AHEAD": "6", "SPECPREFILL_MODE": "select"}
    merged = merge({"mode": "auto", "seed": None}, environment, content)
    assert (merged.keep, merged.look_ahead, merged.mode, merged.seed) == (0.5, 6, "auto", 0)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("keep", "auto", None),
        ("keep", "0.25", 0.25),
        ("speculate", "off", "off"),
        ("speculate", "5", 5),
        ("seed", 5.0, 5),
        ("memory_cache", "0.5", 0.5),
    ],
)
def test_words_and_numbers_are_taken_alike(merge, name, text, value):
    assert getattr(merge({name: text}, {}), name) == value


@pytest.mark.parametrize(
    ("flags", "environment", "complaint"),
    [
        ({"keep": "1.7"}, {}, "--keep 1.7: must be above 0"),
        ({"keep": "nan"}, {}, "--keep nan: must be above 0"),
        ({"keep": "much"}, {}, "--keep: 'much' is not a number or 'auto'"),
        ({"keep": 10**400}, {}, "--keep: '1000"),
        ({"top_p": 0.0}, {}, "--top-p 0: must be above 0"),
        ({"speculate": "fast"}, {}, "--speculate: 'fast' is not a whole number, 'off' or 'auto'"),
        ({"temperature": -1.0}, {}, "--temperature -1: must be between"),
        ({"accept_risk": "inf"}, {}, "--accept-risk inf: must be at least 0 and finite, or 'off' or 'auto'"),
        ({"prefill_chunk": "15"}, {}, "--prefill-chunk 15: must be at least 16, or 'auto'"),
        ({"dtype": "int3"}, {}, "--dtype int3: unknown; use one of auto, float32"),
        ({"seed": 2**64}, {}, "--seed 18446744073709551616: must be between 0 and"),
        ({}, {"SPECPREFILL_SCORER": "oracle"}, "SPECPREFILL_SCORER: scorer oracle: unknown; use one of auto, "),
        ({}, {"SPECPREFILL_CHUNK_SIZE": "x"}, "SPECPREFILL_CHUNK_SIZE: 'x' is not a whole number"),
        ({}, {"SPECPREFILL_OFFLINE": "maybe"}, "SPECPREFILL_OFFLINE: 'maybe' is not true or false"),
    ],
)
def test_rejects_bad_values_by_name(merge, flags, environment, complaint):
    with pytest.raises(UsageError, match=f"^{re.escape(complaint)}"):
        merge(flags, environment)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("kept = 0.5", "unknown setting 'kept'"),
        ("look_ahead = 8.9", "'8.9' is not a whole number"),
        ('devices = ["cuda:0"]', ".* is not .*setting devices"),
        ("keep = ", ".*not valid TOML"),
        ("keep = true", "'True' is not a number or 'auto'"),
    ],
)
def test_rejects_faulty_config_file(merge, content, complaint):
    with pytest.raises(UsageError, match=rf"config\.toml: {complaint}"):
        merge({}, {}, content)


def test_the_config_variable_may_be_empty_but_not_name_a_missing_file(merge, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "empty"))
    assert merge({}, {"SPECPREFILL_CONFIG": ""}) == Settings()
    with pytest.raises(UsageError, match=r"typo\.toml does not exist"):
        merge({}, {"SPECPREFILL_CONFIG": str(tmp_path / "typo.toml")})


def test_rejects_unreadable_config_file(merge, monkeypatch):
    monkeypatch.setattr("pathlib.Path.read_text", Mock(side_effect=PermissionError(13, "Permission denied")))
    with pytest.raises(UsageError, match=r"config.toml: cannot be read \(Permission denied\); check its permissions"):
        merge({}, {})


def test_pair_overrides_models_of_lower_priority_sources(merge):
    content = 'pair = "qwen3-8b"\ndraft = "a"\ntarget = "b"\n'
    assert merge({}, {}, content).draft == "a"
    named = merge({"pair": "tiny"}, {}, content)
    assert (named.pair, named.draft, named.target) == ("tiny", None, None)
    named = merge({"pair": "tiny", "target": "c"}, {}, content)
    assert (named.draft, named.target) == (None, "c")
    environment = {"SPECPREFILL_PAIR": "tiny", "SPECPREFILL_TARGET": "c"}
    named = merge({}, environment, content)
    assert (named.draft, named.target) == (None, "c")
    assert merge({"pair": "tiny"}, environment, content).target is None


def test_variations_are_validated_copies():
    settings = Settings(keep=0.2)
    assert settings.varied(mode="full") == Settings(keep=0.2, mode="full")
    with pytest.raises(UsageError, match="--keep 2: must be above 0"):
        settings.varied(keep=2.0)
    assert settings.varied(keep="auto") == Settings()


@pytest.mark.parametrize("name", SETTINGS)
def test_every_default_is_valid_and_documented(name):
    setting = SETTINGS[name]
    setting.check(setting.default, setting.flag)
    assert setting.help
    if setting.default is not None:
        assert setting.parse(setting.default, "test") == setting.default


def test_choices_match_the_models_package():
    assert SETTINGS["quantization"].choices == (AUTO, NONE, *BYTES_PER_WEIGHT)
