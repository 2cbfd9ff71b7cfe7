"""Many questions in, one row of output for each. Nothing but `answering` imports torch."""
