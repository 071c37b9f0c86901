"""The partition function and what follows from it (Sec. 4.3): ratios (the paper's), annealed (AIS, SMC, reverse), bits."""
