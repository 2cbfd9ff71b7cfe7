"""Stub models for decoding: scripted logits, a cache of token ids, and a clock that only they move."""

import torch


class Clock:
    """Time in target passes."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class StubReader:
    """A reader whose cache is a list of tokens; `cost` moves the clock at each pass: (tokens) -> passes."""

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
        return self.logits(rows)

    def rollback(self, length):
        del self.tokens[length:]


class TableReader(StubReader):
    """The next token depends on the last two in the cache: logits from a table [V, V, V]."""

    def __init__(self, table, **others):
        super().__init__(**others)
        self.table = table

    def logits(self, rows):
        known = torch.tensor([0, *self.tokens[-rows - 1 :]][-rows - 1 :])
        return self.table[known[:-1], known[1:]]


class ScriptReader(StubReader):
    """Wants to say a script, whatever it reads: token i + 1 of it has the largest logit after i + 1 tokens."""

    def __init__(self, script, vocabulary=50, **others):
        super().__init__(**others)
        self.script = torch.tensor(script)
        self.vocabulary = vocabulary

    def logits(self, rows):
        following = self.script[self.length - rows + 1 : self.length + 1]
        return torch.nn.functional.one_hot(following, self.vocabulary).float()
