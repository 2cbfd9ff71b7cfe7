"""Confirmed answers equal those of full prefill, for any provisional answer; their events; a Ctrl-C that loses nothing."""

from unittest.mock import Mock

import pytest
import torch

from specprefill_cli.answering.stream import AnswerStream
from specprefill_cli.decoding.runner import SequenceRunner
from specprefill_cli.engine.local import LocalEngine
from specprefill_cli.engine.request import Done, Piece, Provisional, Request, Started
from specprefill_cli.errors import PromptTooLong
from specprefill_cli.prefill.modes import FullMode
from specprefill_cli.prefill.prefix_cache import TARGET_PREFIX, DocumentCache
from specprefill_cli.record import UNCONFIRMED
from specprefill_cli.settings import Settings
from tests.helpers.architectures import ARCHITECTURES
from tests.helpers.asker import Asker
from tests.helpers.samples import collection_of

TEXT = "The north gate opens at nine. Tickets cost four euros. The keeper lives by the mill near the river. " * 12
BASE = Settings(mode="select", max_new_tokens=12, keep=0.2, scorer="lexical", confirm=True)
KEEPS = (0.05, 0.1, 0.2, 0.3)
CONFIRM = BASE.varied(prefill_chunk=64)
FULL = CONFIRM.varied(mode="full", confirm=False, speculate="off")


def make_document(number=0):
    return collection_of(f"House {number} is open. " + TEXT.replace("nine", f"{number} o'clock"))


def ask(session, documents, settings, question="Who?"):
    stream = session.ask(documents, question, settings)
    return stream.finished(), stream.tokens


def script_provisional(monkeypatch, answer):
    """Make `select` give these tokens as its answer."""
    decode = AnswerStream.decode

    def decode_script(self, emit):
        if self.resolved.mode == "full":
            return decode(self, emit)
        return (piece for token in answer for piece in emit(token))

    monkeypatch.setattr(AnswerStream, "decode", decode_script)


@pytest.mark.parametrize("random_pair", sorted(ARCHITECTURES), indirect=True)
def test_the_final_answer_is_that_of_full_prefill(random_session):
    plain = BASE.varied(mode="full", confirm=False, speculate="off")
    for number, keep in enumerate(KEEPS):
        for question in ("Who?", "What do tickets cost, and where does the keeper live?"):
            answer, tokens = ask(random_session, make_document(number), BASE.varied(keep=keep), question)
            full, expected = ask(random_session, make_document(number), plain, question)
            assert tokens == expected
            assert answer.answer == full.answer
            assert answer.confirmed == (answer.provisional_answer == full.answer)
            assert answer.log_probability == pytest.approx(full.log_probability, abs=1e-3)


@pytest.mark.parametrize(
    "change",
    [
        lambda tokens: tokens, lambda tokens: [7, *tokens[1:]], lambda tokens: [*tokens[:5], 7, *tokens[6:]],
        lambda tokens: tokens[:5], lambda tokens: [], lambda tokens: [*tokens, 7, 8, 9],
    ],
    ids=["the same", "at token 0", "in the middle", "ended earlier", "empty", "ended later"],
)  # fmt: skip
@pytest.mark.parametrize("stops", [False, True])
def test_an_answer_is_corrected_wherever_it_differs(random_session, monkeypatch, change, stops):
    target, documents = random_session.pair.target, make_document()
    monkeypatch.setattr(target, "stop_tokens", frozenset())
    settings = BASE.varied(max_new_tokens=16, speculate="off")
    _, expected = ask(random_session, documents, settings.varied(mode="full", confirm=False))
    if stops:
        # The stop token is one that full prefill's answer has not had before.
        place = next(place for place in range(6, 16) if expected[place] not in expected[:place])
        monkeypatch.setattr(target, "stop_tokens", frozenset({expected[place]}))
        expected = expected[:place]
    provisional = change(expected)[:16]
    script_provisional(monkeypatch, provisional)
    answer, tokens = ask(random_session, documents, settings)
    assert tokens == expected
    assert answer.confirmed == (provisional == expected)
    assert answer.generated_tokens == len(expected)


def test_one_pass_verifies_a_provisional_answer(random_session, monkeypatch):
    monkeypatch.setattr(random_session.pair.target, "stop_tokens", frozenset())
    settings = BASE.varied(speculate="off")
    _, expected = ask(random_session, make_document(), settings.varied(mode="full", confirm=False))
    script_provisional(monkeypatch, expected)
    stream = random_session.ask(make_document(), "Who?", settings)
    widths = []
    first_layer = random_session.pair.target.model.model.layers[0]
    with first_layer.register_forward_pre_hook(lambda _layer, states: widths.append(states[0].shape[1])):
        assert stream.finished().confirmed
    assert sum(widths[:-1]) == stream.request.prompt.length
    assert widths[-1] == len(expected) - 1


def test_full_mode_has_nothing_to_confirm_and_without_confirmation_there_is_no_verdict(random_session):
    answer, _ = ask(random_session, make_document(), BASE.varied(mode="full"))
    assert (answer.confirmed, answer.confirm_seconds) == (True, 0.0)
    assert answer.provisional_answer == answer.answer
    answer, _ = ask(random_session, make_document(), BASE.varied(confirm=False))
    assert answer.confirmed is answer.provisional_answer is answer.confirm_seconds is None


def test_prompts_beyond_full_prefill_are_refused_at_the_start(random_session):
    with pytest.raises(PromptTooLong, match="leave out --confirm"):
        random_session.ask(make_document(), "Who?", BASE.varied(max_new_tokens=4_000))
    random_session.ask(make_document(), "Who?", BASE.varied(mode="full"))


def test_a_lack_of_memory_keeps_the_provisional_answer(random_session, monkeypatch):
    expected, _ = ask(random_session, make_document(), BASE.varied(confirm=False))
    monkeypatch.setattr(FullMode, "prefill", Mock(side_effect=torch.OutOfMemoryError("no room")))
    answer, _ = ask(random_session, make_document(), BASE)
    assert (answer.answer, answer.confirmed, answer.provisional_answer) == (expected.answer, None, expected.answer)
    assert answer.warnings[-1] == "out of memory (no room): full prefill has not confirmed the answer"


@pytest.mark.slow
def test_a_pipe_gets_only_the_final_answer(call, tmp_path):
    (tmp_path / "gates.txt").write_text(TEXT)
    arguments = (str(tmp_path / "gates.txt"), "What do tickets cost?", "--keep", "0.02", "--max-new-tokens", "16")
    _, full, _ = call("ask", *arguments, "--mode", "full", "--quiet")
    code, out, err = call("ask", *arguments, "--mode", "select", "--confirm")
    assert (code, out) == (0, full)
    assert "by full prefill" in err


@pytest.fixture
def session(random_session, monkeypatch):
    """A session without stop tokens, so that answers have their full length."""
    monkeypatch.setattr(random_session.pair.target, "stop_tokens", frozenset())
    random_session.warm_up(CONFIRM)
    random_session.warm_up(FULL)
    return random_session


def test_the_final_answer_follows_the_provisional_one(session):
    asker = Asker(session, CONFIRM, make_document())
    asker.submit("a")
    asker.finish()
    answer = asker.record("a")
    assert answer.answer == session.ask(make_document(), "Who?", FULL).finished().answer
    assert answer.confirmed == (answer.provisional_answer == answer.answer)
    first, *pieces, provisional, done = asker.event_types("a")
    assert (first, set(pieces), provisional, done) == (Started, {Piece}, Provisional, Done)


def test_later_questions_reuse_the_kv_of_a_confirmation(session):
    asker = Asker(session.with_cache(DocumentCache()), CONFIRM, make_document())
    asker.submit("a")
    asker.finish()
    asker.submit("b", "Why at nine?", FULL)
    asker.finish()
    assert TARGET_PREFIX in asker.record("b").reused
    assert asker.record("b").answer == session.ask(make_document(), "Why at nine?", FULL).finished().answer


def test_ctrl_c_in_a_confirmation_keeps_the_provisional_answer(session, monkeypatch):
    expected = session.ask(make_document(), "Who?", CONFIRM.varied(confirm=False)).finished()
    engine, provisional = LocalEngine(session, concurrency=1), []
    read = SequenceRunner.read

    def interrupt(*arguments):
        # The verifying pass follows full prefill.
        if provisional:
            raise KeyboardInterrupt
        return read(*arguments)

    monkeypatch.setattr(SequenceRunner, "read", interrupt)
    for event in engine.ask(Request(documents=make_document(), question="Who?", settings=CONFIRM)):
        provisional += [event] if isinstance(event, Provisional) else []
    assert isinstance(event, Done)
    answer = event.result
    assert (answer.answer, answer.confirmed, answer.stopped) == (expected.answer, None, "interrupt")
    assert answer.warnings[-1] == f"interrupted: {UNCONFIRMED}"
