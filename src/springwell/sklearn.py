"""A scikit-learn estimator of the density of a table.

from springwell.sklearn import EnergyDensity

density = EnergyDensity(random_state=0).fit(X)        # an array or a data frame, rows by columns
log_p = density.score_samples(X)                      # nats, in the units of X; exp of it integrates to 1
outliers = density.predict(X) == -1
x = density.sample(100, given={"age": 40})
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, DensityMixin, OutlierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from springwell.errors import UserError, whole_number
from springwell.evaluation.outliers import percentile
from springwell.tables.columns import check_finite, column_notes
from springwell.tables.density import TableDensity
from springwell.tables.fit import fit_table, recipe_for
from springwell.tables.transform import KINDS

# Rows by which the threshold of outliers is chosen.
MOST_THRESHOLD = 20_000


class EnergyDensity(OutlierMixin, DensityMixin, BaseEstimator):  # type: ignore[misc]
    """The density of the rows of a table, as an energy that knows its normaliser.

    Columns are transformed, whitened and given a mixture of Gaussians; energies of the columns, each given those before it, are
    added as far as held-out rows gain by them. Everything is chosen by the size of the table and by held-out rows.

    Args:
        iterations: Greatest number of updates of every energy. 0 fits a mixture only. Default: depends on the number of rows.
        transformation: ``standard``, ``yeo-johnson``, ``spline``, or ``auto`` for the one with the best held-out score.
        num_energies: Number of energies. Each has its own order of columns. Default: depends on the number of rows.
        contamination: Share of the rows of X that ``predict`` calls outliers. Rows that ``fit`` has not seen are less likely
            than those that it has; ``percentile`` compares them with their like.
        random_state: A seed, a ``numpy.random.RandomState``, or None.

    Attributes:
        density_: The fitted :class:`springwell.tables.density.TableDensity`.
        n_features_in_: The number of columns.
        feature_names_in_: Names of the columns, if X has names.
        transformation_: The transform that was chosen.
        unseen_: Log-densities, nats, of training rows that the fit had not seen: held-out rows, or all by five folds.
        held_out_score_: Mean of ``unseen_``.
        start_held_out_score_: The same mean for the mixture without energies.
        offset_: The log-density below which a row is an outlier.
        notes_: Lines about constant, equal and whole-number columns.

    Examples:
        >>> import numpy as np
        >>> from springwell.sklearn import EnergyDensity
        >>> X = np.random.default_rng(0).normal([0, 5], [1, 2], (100, 2))
        >>> density = EnergyDensity(random_state=0).fit(X)
        >>> density.score_samples(X).shape, density.sample(3).shape
        ((100,), (3, 2))
    """

    def __init__(
        self,
        iterations: int | None = None,
        transformation: str = "auto",
        num_energies: int | None = None,
        contamination: float = 0.1,
        random_state: int | np.random.RandomState | None = None,
    ):
        self.iterations = iterations
        self.transformation = transformation
        self.num_energies = num_energies
        self.contamination = contamination
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> EnergyDensity:
        """Fits the density to the rows of X ``[N, D]``; y is not used."""
        self._check_parameters()
        X = self._validated(X, reset=True)
        names = self._names()
        notes = column_notes(X, names)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        recipe = recipe_for(*X.shape)
        if self.num_energies is not None:
            recipe = recipe._replace(num_energies=self.num_energies)
        if self.iterations is not None:
            recipe = recipe._replace(iterations=self.iterations, num_energies=recipe.num_energies if self.iterations else 0)
        kinds = KINDS if self.transformation == "auto" else (self.transformation,)
        found = fit_table(X, seed, kinds, recipe)
        self.density_: TableDensity = found.density
        self.transformation_ = found.density.coordinates.transform.kind
        self.unseen_, self.held_out_score_ = found.unseen, float(found.unseen.mean())
        self.start_held_out_score_ = found.start_unseen
        self.energy_iterations_, self.notes_ = found.iterations, notes
        self.offset_ = float(np.quantile(self.density_.log_prob(X[:: -(-len(X) // MOST_THRESHOLD)]), self.contamination))
        return self

    def score_samples(self, X: Any) -> np.ndarray:
        """The log-density ``[N]`` of every row, nats, in the units of X."""
        check_is_fitted(self)
        return self.density_.log_prob(self._validated(X, reset=False))

    def score_given(self, X: Any) -> np.ndarray:
        """The log-density ``[N]`` of the cells that are given, nats; missing cells, NaN, are integrated out.

        The integral is exact if the fit has no energies, else a mean over thousands of draws for every row that misses a cell;
        ``density_.log_prob_given`` tells its standard error. A density of fewer columns has other units, so compare rows that
        miss the same columns.
        """
        check_is_fitted(self)
        return self.density_.log_prob_given(self._validated(X, reset=False, missing=True))[0]

    def score(self, X: Any, y: Any = None) -> float:
        """The mean log-density of the rows, nats; ``GridSearchCV`` makes it greatest."""
        return float(self.score_samples(X).mean())

    def decision_function(self, X: Any) -> np.ndarray:
        """The log-density above that of the threshold ``offset_``: negative for outliers."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> np.ndarray:
        """+1 for rows that belong to the table, -1 for outliers."""
        return np.where(self.decision_function(X) < 0, -1, 1)

    def percentile(self, X: Any) -> np.ndarray:
        """The share ``[N]`` of unseen training rows that are less likely, in per cent: below 5 for one in twenty new rows."""
        return percentile(self.score_samples(X), self.unseen_)

    def drivers(self, X: Any) -> np.ndarray:
        """The score ``[N, D]``: how fast the log-density rises with every column, in units of the column's spread there.

        The columns of the largest absolute values are those that make a row likely or unlikely.
        """
        check_is_fitted(self)
        return self.density_.drivers(self._validated(X, reset=False))

    def sample(
        self,
        n_samples: int = 1,
        random_state: int | np.random.RandomState | None = None,
        given: Mapping[Any, float] | None = None,
    ) -> np.ndarray:
        """Draws rows ``[n_samples, D]``.

        Args:
            n_samples: Number of rows.
            random_state: A seed. Default: the estimator's.
            given: Values of some columns, by name or by number; the others are drawn given these.
        """
        check_is_fitted(self)
        whole_number("n_samples", n_samples, 1)
        state = check_random_state(self.random_state if random_state is None else random_state)
        generator = torch.Generator().manual_seed(int(state.randint(2**31 - 1)))
        if not given:
            return self.density_.sample(int(n_samples), generator).numpy()
        known, values = known_columns(given, self._names())
        found = self.density_.sample_given(known, values, int(n_samples), generator)
        if found.effective < 100:
            few = f"given: its {found.effective:.0f} effective candidates are few"
            warnings.warn(f"{few}; the given values are unusual, and draws repeat", RuntimeWarning, stacklevel=2)
        return found.x.numpy()

    def _names(self) -> list[str]:
        names = getattr(self, "feature_names_in_", None)
        return [str(name) for name in names] if names is not None else [str(i) for i in range(self.n_features_in_)]

    def _validated(self, X: Any, reset: bool, missing: bool = False) -> np.ndarray:
        least = 2 if reset else 1
        if reset:
            _check_text(X)
        out: np.ndarray = validate_data(
            self, X, reset=reset, dtype=(np.float64, np.float32), ensure_all_finite=False, ensure_min_samples=least
        )
        check_finite(out, self._names(), missing=missing)
        return out

    def _check_parameters(self) -> None:
        for name in ("iterations", "num_energies"):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name), 0)
        if self.transformation not in ("auto", *KINDS):
            raise ValueError(f"transformation={self.transformation!r}: must be one of auto, {', '.join(KINDS)}")
        if not 0 < self.contamination < 1:
            raise ValueError(f"contamination={self.contamination!r}: must be between 0 and 1")


def _check_text(X: Any) -> None:
    """Refuses a data frame with columns of text or dates, and names them."""
    if not (hasattr(X, "columns") and hasattr(X, "dtypes")):
        return
    bad = []
    for name in X.columns:
        try:
            np.asarray(X[name][:1000], dtype=np.float64)
        except (TypeError, ValueError):
            bad.append(repr(name))
        else:
            if "datetime" in str(X[name].dtype).lower():
                bad.append(repr(name))
    if bad:
        raise UserError(f"X: no numbers in the columns {', '.join(bad[:8])}; leave them out or make them numbers")


def known_columns(given: Mapping[Any, float], names: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """The mask ``[D]`` of columns that are given by name or number, and their values in the table's order."""
    values: dict[int, float] = {}
    for key, value in given.items():
        number = names.index(str(key)) if str(key) in names else -1
        if number < 0:
            raise ValueError(f"given: no column {key!r}; the columns are {', '.join(names[:20])}")
        try:
            values[number] = float(value)
        except (TypeError, ValueError):
            values[number] = float("nan")
        if not np.isfinite(values[number]):
            raise ValueError(f"given: column {key!r} is {value!r}; give a finite number")
    known = torch.zeros(len(names), dtype=torch.bool)
    known[list(values)] = True
    return known, torch.tensor([values[i] for i in sorted(values)], dtype=torch.float64)
