"""The adapter and every mode on the device and in the dtype of `--device` and `--dtype`, against float32 on the CPU."""

import copy

import pytest
import torch

from specprefill_cli.draft_kv.mapped_cache import recompute
from specprefill_cli.models.running.adapter import prefill, run
from specprefill_cli.models.running.attention_plan import LocalWindow
from specprefill_cli.models.running.cache import rollback
from specprefill_cli.prefill.prefix_cache import DocumentCache
from specprefill_cli.prefill.registry import MODES
from specprefill_cli.settings import Settings
from tests.helpers.architectures import ARCHITECTURES, build_model, random_tokens
from tests.helpers.random_pairs import random_calibrated_pair
from tests.helpers.sessions import GATES, collection_of, session_of

pytestmark = pytest.mark.slow
LENGTH = 160
COLLECTION = collection_of(GATES * 8)
# Norm of the difference over that of the reference; wrong positions give above 0.15.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.05, torch.float16: 0.02}


def pytest_generate_tests(metafunc):
    """Take every architecture, or one on the CPU in float32, where other tests show the same."""
    on_cpu = [metafunc.config.getoption(name) for name in ("--device", "--dtype")] == ["cpu", "float32"]
    without = {"mistral"} if "random_pair" in metafunc.fixturenames else set()
    metafunc.parametrize("architecture", ["llama"] if on_cpu else sorted({*ARCHITECTURES} - without))


@pytest.fixture
def place(pytestconfig):
    """A function that puts a model on the device of the options."""
    name = pytestconfig.getoption("--device")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = getattr(torch, pytestconfig.getoption("--dtype"))
    return lambda model: copy.deepcopy(model).to(name, dtype)


@pytest.fixture
def random_pair(architecture, tokenizer):
    return random_calibrated_pair(architecture, tokenizer)


@pytest.fixture
def models(architecture, place):
    """A model on the device, and its weights in float32 on the CPU."""
    placed = place(build_model(architecture))
    return placed, copy.deepcopy(placed).to("cpu", torch.float32)


def assert_close(ours, expected, dtype):
    expected = expected.float().cpu()
    assert float((ours.float().cpu() - expected).norm() / expected.norm()) < TOLERANCE[dtype]


def ids(seed=0):
    return random_tokens(LENGTH, seed)


def decoded(model, chunk, positions):
    """Logits after a prefill in passes, after a step of decoding, and after two tokens at once in its place."""
    logits, state = prefill(model, ids()[positions], positions, chunk)
    length, following = state.length, torch.arange(LENGTH, LENGTH + 2)
    step = run(model, torch.tensor([7]), following[:1], state)
    rollback(state, length)
    return logits, step, *run(model, torch.tensor([7, 8]), following, state, rows=2)


@pytest.mark.parametrize("chunk", [1_000, 37])
@pytest.mark.parametrize("gapped", [False, True])
def test_prefill_and_decoding(models, chunk, gapped):
    placed, reference = models
    everywhere = torch.arange(LENGTH)
    positions = torch.cat([everywhere[:20], everywhere[60:100], everywhere[130:]]) if gapped else everywhere
    for ours, expected in zip(decoded(placed, chunk, positions), decoded(reference, 1_000, positions), strict=True):
        assert_close(ours, expected, placed.dtype)


@pytest.mark.parametrize("chunk", [1_000, 70])
def test_local_window(models, chunk):
    window = LocalWindow(20, LENGTH - 20)
    ours, expected = (prefill(model, ids(), torch.arange(LENGTH), chunk, local_window=window)[0] for model in models)
    assert_close(ours, expected, models[0].dtype)


def test_recompute_of_scattered_slots(models):
    results = []
    slots = torch.cat([torch.arange(30, 50), torch.arange(70, LENGTH, 3)])
    for model in models:
        _, state = prefill(model, ids(seed=1), torch.arange(LENGTH), 1_000)
        results.append(recompute(model, ids()[slots], slots, state))
    assert_close(*results, models[0].dtype)


@pytest.mark.parametrize("mode", sorted(MODES))
def test_modes(random_session, place, mode):
    """Computing every token equals full prefill, and a second question about the document gets the same answer as cold."""
    pair = random_session.pair
    pair.target.model, pair.draft.model = place(pair.target.model), place(pair.draft.model)
    session = session_of(pair)
    everything = Settings(mode=mode, keep=1.0, recompute=1.0, scorer="question", look_ahead=2)
    recomputed = session.prefill(mode, session.request(COLLECTION, "When?", everything))
    full = session.prefill("full", session.request(COLLECTION, "When?", Settings(mode="full")))
    assert_close(recomputed.logits, full.logits, pair.target.model.dtype)
    part = everything.varied(keep=0.3, recompute=0.1, max_new_tokens=4)
    shared = session.with_cache(DocumentCache())
    for question in ("When?", "Who lives by the mill?"):
        cold, warm = (asking.ask(COLLECTION, question, part) for asking in (session, shared))
        assert_close(warm.prefilled.logits, cold.prefilled.logits, pair.target.model.dtype)
        assert "".join(warm).strip() or warm.tokens
