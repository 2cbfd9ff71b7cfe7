"""How commands and values travel between ranks."""

import pytest

from specprefill_cli.distributed.commands import HEADER, DecodeStep, Role, Score, decode, encode


def transported(value):
    """The value that another rank receives, and how many tensors that takes."""
    header, payload = encode(value)
    assert header.shape == (HEADER,)

    def receive(tensor):
        tensor.copy_(payload)

    return decode(header, receive), 1 if payload is None else 2


@pytest.mark.parametrize(
    ("value", "tensors"),
    [
        (DecodeStep(Role.DRAFT, 3, 1, (7,)), 1),
        (DecodeStep(Role.TARGET, 0, 17, tuple(range(17))), 1),
        (DecodeStep(Role.TARGET, 0, 40, tuple(range(40))), 2),
        (2**62, 1),
        (2**64, 2),
        (True, 2),
        (None, 2),
        (Score({"a": (1.5, "text")}), 2),
    ],
)
def test_values_arrive_unchanged(value, tensors):
    received, count = transported(value)
    assert (received, type(received), count) == (value, type(value), tensors)
