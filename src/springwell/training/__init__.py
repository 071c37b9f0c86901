"""Training (Alg. 1): the loop, the moving average and the checkpoints."""
