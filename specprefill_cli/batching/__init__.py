"""Many questions in, a row of output for each. Only `local` imports torch."""
