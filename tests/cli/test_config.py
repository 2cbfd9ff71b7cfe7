"""`config`: values, their sources, and careful changes of the file."""

import pytest

from specprefill_cli.cli.sources import merge_settings
from specprefill_cli.settings import Settings, parse_setting


@pytest.fixture
def file(tmp_path, monkeypatch):
    path = tmp_path / "new folder" / "config.toml"
    monkeypatch.setenv("SPECPREFILL_CONFIG", str(path))
    for name in ("KEEP", "SEED", "MODE"):
        monkeypatch.delenv(f"SPECPREFILL_{name}", raising=False)
    return path


@pytest.mark.parametrize(
    ("name", "text", "stored"),
    [
        ("keep", "0.25", "keep = 0.25\n"),
        ("keep", "auto", 'keep = "auto"\n'),
        ("max-new-tokens", "32", "max_new_tokens = 32\n"),
        ("draft", 'a "quoted" name', "draft = 'a \"quoted\" name'\n"),
    ],
)
def test_reads_back_what_was_set(call, file, name, text, stored):
    assert call("config", "set", name, text)[0] == 0
    key = name.replace("-", "_")
    assert getattr(merge_settings({}, {}, file), key) == parse_setting(key, text, "test")
    if '"quoted"' not in text:
        assert file.read_text() == stored


def test_set_keeps_everything_else(call, file):
    file.parent.mkdir()
    file.write_text('# mine\nmode = "full"  # for now\nseed = 4\n')
    assert call("config", "set", "mode", "select")[0] == 0
    assert call("config", "set", "keep", "0.2")[0] == 0
    assert file.read_text() == '# mine\nmode = "select"  # for now\nseed = 4\nkeep = 0.2\n'
    assert [path.name for path in file.parent.iterdir()] == ["config.toml"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("set", "keep", "1.7"), "config set: keep 1.7: must be above 0"),
        (("set", "kept", "0.5"), "unknown setting 'kept'"),
        (("set", "pair", "giant"), "config set: pair giant: unknown"),
    ],
)
def test_rejects_wrong_values_and_keeps_the_file(call, file, arguments, words):
    file.parent.mkdir()
    file.write_text("seed = 4\n")
    code, out, err = call("config", *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert file.read_text() == "seed = 4\n"


def test_a_faulty_file_is_named(call, file):
    file.parent.mkdir()
    file.write_text("seed = ")
    assert "not valid TOML" in call("config", "set", "seed", "1")[2]


def test_show_names_the_file_and_the_source_of_each_value(call, call_json, file, monkeypatch):
    file.parent.mkdir()
    file.write_text("keep = 0.5\nseed = 1\n")
    monkeypatch.setenv("SPECPREFILL_SEED", "7")
    rows = {row["name"]: row for row in call_json("config", "show")["settings"]}
    assert rows["keep"] == {"name": "keep", "value": 0.5, "source": "file", "place": str(file)}
    assert rows["seed"] == {"name": "seed", "value": 7, "source": "environment", "place": "SPECPREFILL_SEED"}
    assert rows["mode"]["source"] == "default"
    assert list(rows) == list(Settings.__dataclass_fields__)
    code, out, _ = call("config", "show")
    assert code == 0
    assert "environment (SPECPREFILL_SEED)" in out
    assert out.endswith(f"config file: {file}\n")


def test_set_warns_of_a_variable_that_wins(call, file, monkeypatch):
    monkeypatch.setenv("SPECPREFILL_SEED", "7")
    assert "SPECPREFILL_SEED is set and wins" in call("config", "set", "seed", "1")[2]


def test_rejects_a_folder_as_config_file(call, monkeypatch, tmp_path):
    monkeypatch.setenv("SPECPREFILL_CONFIG", str(tmp_path))
    code, _, err = call("config", "set", "seed", "1")
    assert (code, "this is not a file" in err) == (2, True)
