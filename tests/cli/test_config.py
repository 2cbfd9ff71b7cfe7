"""`config`: values and their sources."""

from specprefill_cli.settings import Settings


def test_show_names_the_file_and_the_source_of_each_value(call, call_json, tmp_path, monkeypatch):
    file = tmp_path / "config.toml"
    file.write_text("keep = 0.5\nseed = 1\n")
    for name in ("KEEP", "MODE"):
        monkeypatch.delenv(f"SPECPREFILL_{name}", raising=False)
    monkeypatch.setenv("SPECPREFILL_CONFIG", str(file))
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
    monkeypatch.setenv("SPECPREFILL_CONFIG", str(tmp_path))
    code, _, err = call("config", "show")
    assert (code, f"{tmp_path}: cannot be read" in err) == (2, True)
