"""How torch's threads wait for work."""

from __future__ import annotations

from collections.abc import MutableMapping

WAIT_POLICY = "OMP_WAIT_POLICY"
# A user who has set one of these has decided.
WAIT_SETTINGS = (WAIT_POLICY, "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def wait_without_spinning(environment: MutableMapping[str, str]) -> None:
    """Let idle OpenMP threads sleep: spinning, they take the cores from other programs. To be called before torch is imported."""
    if not any(name in environment for name in WAIT_SETTINGS):
        environment[WAIT_POLICY] = "PASSIVE"
