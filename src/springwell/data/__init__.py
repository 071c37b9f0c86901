"""Data sets: where training batches come from. It imports nothing: processes that decode images must not load torch."""
