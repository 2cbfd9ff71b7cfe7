"""specprefill: answers about long documents, with the first token several times sooner."""

__version__ = "0.2.0"
