"""Many questions in, one row of output for each. Only `local` imports torch."""
