"""From a question to an answer: session, answer stream, citations, dry run, comparison of modes."""
