"""Settings merge in the order defaults < file < environment < flags, and bad values are named where they stand."""

import pytest

from specprefill_cli.errors import UsageError
from specprefill_cli.settings import Settings, merge_settings, read_file


def test_each_source_overrides_the_one_before(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text('keep = 0.5\nlook_ahead = 4\nmode = "full"\n')
    environment = {"SPECPREFILL_LOOK_AHEAD": "6", "SPECPREFILL_MODE": "select"}
    merged = merge_settings({"mode": "auto", "seed": None}, environment, file)
    assert (merged.keep, merged.look_ahead, merged.mode, merged.seed) == (0.5, 6, "auto", 0)
    assert merge_settings({}, {}, tmp_path / "none.toml") == Settings()


def test_keep_auto_is_none():
    assert merge_settings({"keep": "auto"}, {}).keep is None
    assert merge_settings({"keep": "0.25"}, {}).keep == 0.25


def test_speculate_is_a_word_or_a_number():
    assert merge_settings({"speculate": "off"}, {}).speculate == "off"
    assert merge_settings({}, {"SPECPREFILL_SPECULATE": "auto"}).speculate == "auto"
    assert merge_settings({"speculate": "5"}, {}).speculate == 5


@pytest.mark.parametrize(
    ("flags", "environment", "complaint"),
    [
        ({"keep": "1.7"}, {}, "--keep 1.7: must be above 0"),
        ({"keep": "0"}, {}, "--keep 0: must be above 0"),
        ({"keep": "nan"}, {}, "--keep nan: must be above 0"),
        ({"keep": "much"}, {}, "--keep: 'much' is not a number or 'auto'"),
        ({"look_ahead": -1}, {}, "--look-ahead -1: must be at least 0"),
        ({"top_p": 0.0}, {}, "--top-p 0: must be above 0"),
        ({"speculate": "0"}, {}, "--speculate 0: must be at least 1"),
        ({"speculate": "fast"}, {}, "--speculate: 'fast' is not 'off', 'auto' or a whole number"),
        ({"temperature": -1.0}, {}, "--temperature -1: must be between"),
        ({}, {"SPECPREFILL_CHUNK_SIZE": "x"}, "SPECPREFILL_CHUNK_SIZE: 'x' is not a whole number"),
        ({}, {"SPECPREFILL_OFFLINE": "maybe"}, "SPECPREFILL_OFFLINE: 'maybe' is not true or false"),
    ],
)
def test_bad_values_are_named(flags, environment, complaint):
    with pytest.raises(UsageError, match=complaint.replace("(", "\\(")):
        merge_settings(flags, environment)


def test_a_faulty_config_file_is_named(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text("kept = 0.5")
    with pytest.raises(UsageError, match=r"config.toml: unknown setting 'kept'"):
        merge_settings({}, {}, file)
    file.write_text("look_ahead = 8.9")
    with pytest.raises(UsageError, match=r"config.toml: '8.9' is not a whole number"):
        merge_settings({}, {}, file)
    file.write_text("keep = ")
    with pytest.raises(UsageError, match="not valid TOML"):
        merge_settings({}, {}, file)


def test_a_config_variable_that_points_nowhere_is_named(tmp_path, monkeypatch):
    missing = str(tmp_path / "typo.toml")
    monkeypatch.setenv("SPECPREFILL_CONFIG", missing)
    with pytest.raises(UsageError, match=r"typo\.toml does not exist"):
        merge_settings({}, {"SPECPREFILL_CONFIG": missing})


def test_a_config_file_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    file = tmp_path / "config.toml"
    file.write_text("keep = 0.5")

    def refuse(*_arguments, **_options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.read_text", refuse)
    with pytest.raises(UsageError, match=r"config.toml: cannot be read \(Permission denied\); check its permissions"):
        merge_settings({}, {}, file)


def test_an_empty_path_of_the_config_file_is_as_none(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECPREFILL_CONFIG", "")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert merge_settings({}, {"SPECPREFILL_CONFIG": ""}) == Settings()


def test_a_config_file_may_begin_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text("keep = 0.4\n", encoding="utf-8-sig")
    assert read_file(path) == {"keep": 0.4}


def test_a_named_pair_replaces_the_models_of_sources_below_it(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text('pair = "qwen3-8b"\ndraft = "a"\ntarget = "b"\n')
    assert merge_settings({}, {}, file).draft == "a"
    named = merge_settings({"pair": "tiny"}, {}, file)
    assert (named.pair, named.draft, named.target) == ("tiny", None, None)
    named = merge_settings({"pair": "tiny", "target": "c"}, {}, file)
    assert (named.draft, named.target) == (None, "c")
    environment = {"SPECPREFILL_PAIR": "tiny", "SPECPREFILL_TARGET": "c"}
    named = merge_settings({}, environment, file)
    assert (named.draft, named.target) == (None, "c")
    assert merge_settings({"pair": "tiny"}, environment, file).target is None


def test_a_value_out_of_range_is_named_where_it_stands(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text("keep = 7\n")
    with pytest.raises(UsageError, match=r"config\.toml: keep 7: must be above 0"):
        merge_settings({}, {}, file)
    with pytest.raises(UsageError, match="SPECPREFILL_SEED: seed -1: must be at least 0"):
        merge_settings({}, {"SPECPREFILL_SEED": "-1"})
    with pytest.raises(UsageError, match=r"^--keep 7: must be above 0"):
        merge_settings({"keep": "7"}, {})
    with pytest.raises(UsageError, match="must be at most"):
        merge_settings({"seed": 2**64}, {})
    file.write_text("keep = true\n")
    with pytest.raises(UsageError, match="'True' is not a number or 'auto'"):
        merge_settings({}, {}, file)
