"""Data sets: where training batches come from."""

from springwell.data.source import DataSource, open_data
from springwell.data.toy import TOY_DATA, ToyData, log_density, toy_data

__all__ = ["TOY_DATA", "DataSource", "ToyData", "log_density", "open_data", "toy_data"]
