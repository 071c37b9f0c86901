"""Files: atomic writes, checkpoints, runs, the hub, the models that ship."""
