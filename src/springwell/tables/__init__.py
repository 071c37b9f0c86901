"""Densities of tables: columns, their transforms, the mixture that an energy starts from, and the fit."""
