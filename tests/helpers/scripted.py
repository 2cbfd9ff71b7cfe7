"""Stub runners for decoding, with scripted logits, a cache of token ids, and a clock that counts passes."""

import torch


def result_of(steps):
    """Run a generator that must not ask for a pass, and return its result."""
    try:
        next(steps)
    except StopIteration as ended:
        return ended.value
    raise AssertionError("it asked for a pass")


class Clock:
    """A clock that counts target passes."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class StubReader:
    """A runner with a list of tokens as its cache. Each pass advances the clock by `cost(number of tokens)`."""

    def __init__(self, clock=None, cost=lambda tokens: 1.0):
        self.tokens = []
        self.clock = clock or Clock()
        self.cost = cost
        self.passes = []

    @property
    def length(self):
        return len(self.tokens)

    def read(self, tokens, rows=1):
        assert len(tokens) >= rows
        self.tokens += tokens
        self.passes.append(len(tokens))
        self.clock.now += self.cost(len(tokens))
        yield from ()
        return self.logits(rows)

    def rollback(self, length):
        del self.tokens[length:]


class TableReader(StubReader):
    """A runner with logits from a table [V, V, V], indexed by the last two tokens."""

    def __init__(self, table, **options):
        super().__init__(**options)
        self.table = table

    def logits(self, rows):
        context = torch.tensor([0, *self.tokens[-rows - 1 :]][-rows - 1 :])
        return self.table[context[:-1], context[1:]]


class ScriptReader(StubReader):
    """A runner with a fixed script: after n tokens, whatever they are, `script[n]` has the largest logit."""

    def __init__(self, script, vocabulary=50, **options):
        super().__init__(**options)
        self.script = torch.tensor(script)
        self.vocabulary = vocabulary

    def logits(self, rows):
        following = self.script[self.length - rows + 1 : self.length + 1]
        return torch.nn.functional.one_hot(following, self.vocabulary).float()
