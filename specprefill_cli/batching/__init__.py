"""Many questions in, one row of output for each. Only `answerer` imports torch."""
