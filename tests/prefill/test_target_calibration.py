"""A target's calibration sets positions and `--keep auto`, for the weights that it was made for."""

import json
from dataclasses import replace

import pytest

from specprefill_cli.answering.resolve import resolve_positions
from specprefill_cli.errors import SpecprefillError
from specprefill_cli.models.loading import load_outline
from specprefill_cli.models.placement import Placement
from specprefill_cli.prefill.calibration import TargetCalibration, load_target_calibration, weights_fingerprint
from specprefill_cli.prefill.scorers.heads import HeadsScorer
from specprefill_cli.settings import AUTO, Settings
from tests.prefill.helpers import collection_of

COLLECTION = collection_of("The gate opens at nine. " * 20)


def write(folder, **values):
    (folder / "calibration.json").write_text(json.dumps({"schema": 2, **values}))


def test_it_belongs_to_the_weights_that_it_names(random_pair, tmp_path):
    assert load_target_calibration(tmp_path, random_pair) is None
    write(tmp_path, positions="compact")
    assert load_target_calibration(tmp_path, random_pair).positions == "compact"
    write(tmp_path, positions="compact", target=weights_fingerprint(random_pair.target.model))
    assert load_target_calibration(tmp_path, random_pair).positions == "compact"
    write(tmp_path, positions="compact", target="0" * 16)
    assert load_target_calibration(tmp_path, random_pair) is None
    # An outline has no weights to compare.
    outlined = replace(random_pair, target=load_outline("tiny:target", Placement(None), offline=True))
    assert load_target_calibration(tmp_path, outlined) is not None


@pytest.mark.parametrize("values", [{"positions": "elsewhere"}, {"unknown": 1}])
def test_a_damaged_file_is_one_line(random_pair, tmp_path, values):
    write(tmp_path, **values)
    with pytest.raises(SpecprefillError, match=r"calibration\.json: not a file of a target's calibration"):
        load_target_calibration(tmp_path, random_pair)


@pytest.mark.parametrize(
    ("setting", "calibrated", "resolved"),
    [
        (AUTO, "compact", "compact"),
        (AUTO, "original", "original"),
        (AUTO, None, "original"),
        ("original", "compact", "original"),
    ],
)
def test_positions_are_the_calibrated_ones_unless_asked_for(random_pair, setting, calibrated, resolved):
    random_pair.target_calibration = TargetCalibration(positions=calibrated)
    settings = Settings(positions=setting)
    assert resolve_positions(settings, random_pair, 100) == resolved
    beyond = resolve_positions(settings, random_pair, random_pair.target.context)
    assert beyond == ("compact" if setting == AUTO else setting)


def test_its_mass_replaces_that_of_the_heads(random_session):
    request = random_session.request(COLLECTION, "When does the gate open?", Settings())
    assert HeadsScorer().auto_budget(request).share == 0.7
    request.pair.target_calibration = TargetCalibration(auto_mass=0.4, auto_tokens=2_000)
    budget = HeadsScorer().auto_budget(request)
    assert (budget.share, budget.tokens) == (0.4, 2_000)
