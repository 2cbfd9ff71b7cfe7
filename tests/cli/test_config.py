"""`config`: values and their sources."""

import pytest

from specprefill_cli.settings import Settings


@pytest.fixture
def file(tmp_path, monkeypatch):
    path = tmp_path / "config.toml"
    monkeypatch.setenv("SPECPREFILL_CONFIG", str(path))
    for name in ("KEEP", "SEED", "MODE"):
        monkeypatch.delenv(f"SPECPREFILL_{name}", raising=False)
    return path


def test_a_faulty_file_and_a_folder_are_named(call, file, monkeypatch, tmp_path):
    file.write_text("seed = ")
    assert "not valid TOML" in call("config", "show")[2]
    monkeypatch.setenv("SPECPREFILL_CONFIG", str(tmp_path))
    code, _, err = call("config", "show")
    assert (code, f"{tmp_path}: cannot be read" in err) == (2, True)


def test_show_names_the_file_and_the_source_of_each_value(call, call_json, file, monkeypatch):
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
