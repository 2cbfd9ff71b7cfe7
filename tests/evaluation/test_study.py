"""The study's statistics against values known by hand, and its controls on a random pair."""

import pytest
import torch

from specprefill_cli.documents.collection import Collection
from specprefill_cli.documents.document import one_page_document
from specprefill_cli.evaluation.datasets import Item
from specprefill_cli.evaluation.statistics import auroc, ranks, spearman
from specprefill_cli.evaluation.study import study, summary
from specprefill_cli.settings import Settings

TEXT = "The north gate opens at nine. Tickets cost four euros. The keeper lives by the old mill near the river. " * 8


def test_ranks_and_correlation_count_ties_at_their_mean():
    assert ranks(torch.tensor([3.0, 1.0, 3.0, 2.0])).tolist() == [3.5, 1.0, 3.5, 2.0]
    assert spearman(torch.tensor([1.0, 2, 3, 4]), torch.tensor([1.0, 8, 27, 64])) == pytest.approx(1)
    assert spearman(torch.tensor([1.0, 2, 3, 4]), torch.tensor([4.0, 3, 2, 1])) == pytest.approx(-1)
    assert spearman(torch.tensor([1.0, 1, 1]), torch.tensor([1.0, 2, 3])) is None


def test_auroc_is_the_share_of_pairs_in_the_right_order():
    scores = torch.tensor([0.1, 0.4, 0.35, 0.8])
    assert auroc(scores, torch.tensor([False, False, True, True])) == pytest.approx(0.75)
    assert auroc(scores, torch.tensor([True, True, True, True])) is None


def test_native_kv_keeps_the_first_token_and_controls_are_worse(random_session):
    collections = [
        Collection((one_page_document("doc", text, "text/plain"),)) for text in (TEXT, TEXT[30:] + " It rains.")
    ]
    items = [Item(str(number), "When?", ("nine",), one, (0, 10)) for number, one in enumerate(collections)]
    found = summary(study(random_session, items, Settings(scorer="question", look_ahead=1), lambda _: None))
    variants = found["variants"]
    assert variants["native"]["kl_mean"] < 1e-4
    assert variants["native"]["same_first_token"] == 1
    assert variants["wrong document"]["kl_mean"] > 1e-3
    assert variants["mapped only"]["kl_mean"] > 1e-3
    assert len(found["true_error_by_layer_and_depth"]) == 3
    # The first layer is exact: it depends on the tokens alone.
    assert max(found["true_error_by_layer_and_depth"][0]) < 1e-6
    assert min(found["true_error_by_layer_and_depth"][1]) > 0.1
