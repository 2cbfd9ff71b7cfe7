"""How torch's threads wait for work."""

from __future__ import annotations

from collections.abc import MutableMapping

# How long an idle thread spins before it sleeps: libgomp counts loops (some 0.1 ms), LLVM's OpenMP milliseconds.
BOUNDED_SPIN = {"GOMP_SPINCOUNT": "4000", "KMP_BLOCKTIME": "1"}
# A user who has set one of these has decided.
WAIT_SETTINGS = ("OMP_WAIT_POLICY", *BOUNDED_SPIN)


def bound_spinning(environment: MutableMapping[str, str]) -> None:
    """Let idle OpenMP threads spin only briefly, because spinning takes the cores from other programs.

    Sleeping at once would cost over 10 % of TTFT. To be called before torch is imported.
    """
    if not any(name in environment for name in WAIT_SETTINGS):
        environment.update(BOUNDED_SPIN)
