"""Which commands a server suits, what its engine's end means, and interrupts of its answers."""

import os
import signal
from types import SimpleNamespace

import pytest

from specprefill_cli.serving.messages import Cancel, Finished
from specprefill_cli.serving.remote import RemoteStream
from specprefill_cli.serving.served import Served, loading_variables, model_places
from specprefill_cli.serving.start import engine_code
from specprefill_cli.settings import Settings


def test_a_folder_of_the_same_name_elsewhere_is_another_model(tmp_path, monkeypatch):
    settings = Settings(draft="draft", target="target")
    for place in ("a", "b"):
        for name in ("draft", "target"):
            (tmp_path / place / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a")
    served = Served(engine=None, settings=settings, models=model_places(settings), variables=loading_variables())
    assert served.difference(settings) is None
    monkeypatch.chdir(tmp_path / "b")
    assert f"the pair {tmp_path / 'a' / 'draft'} -> " in served.difference(settings)
    assert served.difference(Settings(draft="../a/draft", target="../a/target")) is None


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="a signal ends the process")
def test_an_engine_that_a_signal_ended_is_a_failure():
    told = []
    assert engine_code(signal.SIGKILL, told.append) == 1
    assert "SIGKILL" in told[0]
    assert engine_code(2 << 8, told.append) == 2
    assert len(told) == 1


def test_an_interrupt_in_the_last_pass_is_not_lost():
    sent = []

    def receive():
        if not sent:
            raise KeyboardInterrupt
        return Finished(answer=SimpleNamespace(stopped="stop"))

    link = SimpleNamespace(receive=receive, send=sent.append)
    stream = RemoteStream(session=SimpleNamespace(link=link), message=None)
    with pytest.raises(KeyboardInterrupt):
        stream.finished()
    assert isinstance(sent[0], Cancel)


def test_hub_ids_stay_as_they_are():
    settings = Settings(draft="Qwen/Qwen2.5-0.5B-Instruct", target="Qwen/Qwen2.5-7B-Instruct")
    assert model_places(settings) == (settings.draft, settings.target)
    assert not os.path.exists(settings.draft)
