"""The recipe of the adapter of `smollm2`."""
