"""The estimator: scikit-learn's own suite, integrals and closed forms of known densities, honest outliers, bad input."""

from __future__ import annotations

import pickle

import numpy as np
import pandas
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from springwell.sklearn import EnergyDensity
from springwell.tables.columns import column_notes


def ring(num: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    angle, radius = rng.uniform(0, 2 * np.pi, num), 2 + 0.3 * rng.normal(size=num)
    return np.stack([radius * np.cos(angle), 5 + 10 * radius * np.sin(angle)], 1)


def rings(num: int, seed: int = 0) -> np.ndarray:
    """Four independent rings: eight Gaussians make one, so that four of them need thousands."""
    return np.concatenate([ring(num, 10 * seed + i) for i in range(4)], 1)


@pytest.fixture(scope="module")
def fitted() -> EnergyDensity:
    return EnergyDensity(iterations=300, num_energies=1, random_state=0).fit(ring(3000))


def test_scikit_learns_own_checks() -> None:
    check_estimator(EnergyDensity(iterations=5, num_energies=1, transformation="standard", random_state=0))


def test_the_density_integrates_to_one_in_the_units_of_x(fitted: EnergyDensity) -> None:
    x, y = np.linspace(-8, 8, 401), np.linspace(-75, 85, 401)
    grid = np.stack(np.meshgrid(x, y), -1).reshape(-1, 2)
    total = np.exp(fitted.score_samples(grid)).sum() * (x[1] - x[0]) * (y[1] - y[0])
    # The error is that of the rule at the spline's kinks and of the mass outside.
    assert abs(total - 1) < 5e-3


def test_energies_gain_on_rows_that_no_fit_has_seen() -> None:
    x, new = rings(3000), rings(4000, seed=1)
    both = EnergyDensity(iterations=300, num_energies=1, random_state=0).fit(x)
    start = EnergyDensity(iterations=0, random_state=0).fit(x)
    assert len(both.density_.energies) == 1
    gain = both.score_samples(new) - start.score_samples(new)
    assert gain.mean() > 3 * gain.std() / np.sqrt(len(gain))


def test_a_normal_law_is_found_within_its_statistical_error() -> None:
    rng = np.random.default_rng(0)
    root = np.array([[2.0, 0.0, 0.0], [1.0, 0.5, 0.0], [0.0, 3.0, 10.0]])
    x, new = rng.normal(size=(2000, 3)) @ root.T, rng.normal(size=(4000, 3)) @ root.T
    z = np.linalg.solve(root, new.T).T
    truth = -0.5 * (z**2).sum(1) - 1.5 * np.log(2 * np.pi) - np.log(abs(np.linalg.det(root)))
    loss = truth - EnergyDensity(random_state=0).fit(x).score_samples(new)
    # KL of a fitted normal law is (number of parameters) / 2N = 9 / 4000 nats on average; ten times as much is allowed.
    error = loss.std() / np.sqrt(len(loss))
    assert -3 * error < loss.mean() < 10 * 9 / 4000 + 3 * error


def test_samples_have_the_moments_and_the_log_density_of_the_data(fitted: EnergyDensity) -> None:
    x, drawn = ring(4000, seed=2), fitted.sample(4000, random_state=1)
    for column in range(2):
        error = np.sqrt(2 * x[:, column].var() / 4000)
        assert abs(x[:, column].mean() - drawn[:, column].mean()) < 5 * error
    # E log p of exact draws is minus the entropy; that of the data is less by KL, which is small here.
    a, b = fitted.score_samples(x), fitted.score_samples(drawn)
    assert abs(a.mean() - b.mean()) < 0.1 + 4 * np.sqrt((a.var() + b.var()) / 4000)


def test_given_columns_are_kept_and_the_others_follow_the_conditional() -> None:
    rng = np.random.default_rng(0)
    a = rng.normal(size=3000)
    frame = pandas.DataFrame({"a": a, "b": 3 * a + rng.normal(size=3000), "c": rng.normal(size=3000)})
    density = EnergyDensity(iterations=0, transformation="standard", random_state=0).fit(frame)
    drawn = density.sample(2000, given={"b": 2.0})
    assert (drawn[:, 1] == 2.0).all()
    # a given b is N(3 b / 10, 1 / 10); the fit's own error is about 1 / sqrt(3000) of the width.
    assert abs(drawn[:, 0].mean() - 0.6) < 4 * np.sqrt(0.1) * (2000**-0.5 + 3000**-0.5)
    assert abs(drawn[:, 0].std() - np.sqrt(0.1)) < 0.05


def test_predict_calls_the_share_of_contamination_outliers(fitted: EnergyDensity) -> None:
    x = ring(3000)
    assert abs((fitted.predict(x) == -1).mean() - 0.1) < 0.01
    assert (fitted.predict(np.array([[0.0, 5.0], [30.0, 5.0], [2.0, 5.0]])) == [-1, -1, 1]).all()


def test_percentiles_of_new_rows_are_uniform_where_those_of_training_rows_flatter() -> None:
    rng = np.random.default_rng(0)
    x, new = rng.normal(size=(250, 20)), rng.normal(size=(4000, 20))
    density = EnergyDensity(iterations=0, random_state=0).fit(x)
    assert len(density.unseen_) == 250
    for level in (10, 50):
        share = level / 100
        error = np.sqrt(share * (1 - share) * (1 / 250 + 1 / 4000))
        assert abs((density.percentile(new) < level).mean() - share) < 3 * error
    # Twenty columns from 250 rows are fitted so closely that new rows are strange to the fit.
    assert (density.predict(x) == -1).mean() == 0.1
    assert (density.predict(new) == -1).mean() > 0.1 + 3 * np.sqrt(0.09 / 250)


def test_pickle_pipeline_and_grid_search() -> None:
    x = ring(300)
    search = GridSearchCV(EnergyDensity(random_state=0, iterations=0), {"transformation": ["standard", "spline"]}, cv=2).fit(x)
    assert search.best_estimator_.transformation_ == search.best_params_["transformation"]
    pipeline = make_pipeline(StandardScaler(), EnergyDensity(iterations=0, random_state=0)).fit(x)
    again = pickle.loads(pickle.dumps(pipeline))
    assert np.array_equal(again.score_samples(x), pipeline.score_samples(x))


def test_heavy_tails_choose_a_transform_and_gain_by_it() -> None:
    rng = np.random.default_rng(0)
    x, new = rng.normal(size=(800, 2)) ** 3, rng.normal(size=(2000, 2)) ** 3
    auto = EnergyDensity(iterations=0, random_state=0).fit(x)
    plain = EnergyDensity(iterations=0, transformation="standard", random_state=0).fit(x)
    assert auto.transformation_ == "spline"
    gain = auto.score_samples(new) - plain.score_samples(new)
    assert gain.mean() > 2 * gain.std() / np.sqrt(len(gain))


def test_columns_of_text_and_dates_are_named() -> None:
    pandas = pytest.importorskip("pandas")
    days = pandas.date_range("2024-01-01", periods=4)
    frame = pandas.DataFrame({"age": [1, 2, 3, 4], "colour": ["red"] * 4, "day": days, "flag": [True, False] * 2})
    with pytest.raises(ValueError, match="X: no numbers in the columns 'colour', 'day'; leave them out"):
        EnergyDensity().fit(frame)
    assert EnergyDensity().fit(frame[["age", "flag"]]).n_features_in_ == 2


def test_bad_input_is_named() -> None:
    x = ring(50)
    with pytest.raises(ValueError, match="given: column 0 is 'x'; give a finite number"):
        EnergyDensity(iterations=0).fit(x).sample(given={0: "x"})
    bad = x.copy()
    bad[7, 1] = np.nan
    with pytest.raises(ValueError, match="row 7, column '1' is nan"):
        EnergyDensity().fit(bad)
    bad[7, 1] = 1e300
    with pytest.raises(ValueError, match=r"row 7, column '1' is 1e\+300; numbers beyond 1e\+50 are refused"):
        EnergyDensity().fit(bad)
    for method in ("score_samples", "score_given", "predict", "decision_function", "percentile", "drivers"):
        with pytest.raises(NotFittedError):
            getattr(EnergyDensity(), method)(x)
    with pytest.raises(NotFittedError):
        EnergyDensity().sample()
    with pytest.raises(ValueError, match="features"):
        EnergyDensity(iterations=0).fit(x).score_samples(x[:, :1])
    with pytest.raises(ValueError, match="minimum of 2"):
        EnergyDensity().fit(x[:1])
    with pytest.raises(ValueError, match="no column 'z'"):
        EnergyDensity(iterations=0).fit(pandas.DataFrame(x, columns=["a", "b"])).sample(1, given={"z": 1})


def test_missing_cells_are_refused_but_by_score_given(fitted: EnergyDensity) -> None:
    x = np.array([[np.nan, 5.0], [2.0, 5.0]])
    for method in (fitted.score_samples, fitted.predict, fitted.drivers, fitted.percentile):
        with pytest.raises(ValueError, match="row 0, column '0' is nan"):
            method(x)
    axis = np.linspace(-8, 8, 4001)
    exact = np.log(np.exp(fitted.score_samples(np.stack([axis, np.full_like(axis, 5.0)], 1))).sum() * (axis[1] - axis[0]))
    found = fitted.score_given(x)
    # The rule of the quadrature errs by less than 0.001 at the kinks of a spline.
    assert abs(found[0] - exact) < 4 * fitted.density_.log_prob_given(x)[1][0] + 1e-3
    assert found[1] == fitted.score_samples(x[1:])[0]
    with pytest.raises(ValueError, match="is inf"):
        fitted.score_given(np.array([[np.inf, np.nan]]))


def test_frames_keep_their_names_and_refuse_others() -> None:
    frame = pandas.DataFrame(ring(60), columns=["a", "b"])
    density = EnergyDensity(random_state=0).fit(frame)
    assert density.feature_names_in_.tolist() == ["a", "b"]
    with pytest.raises(ValueError, match="feature names"):
        density.score_samples(frame[["b", "a"]])
    with pytest.raises(ValueError, match="feature names"):
        density.score_samples(frame.rename(columns={"b": "c"}))
    with pytest.raises(ValueError, match=r"no numbers in the columns .b."):
        EnergyDensity().fit(pandas.DataFrame({"a": [1.0, 2.0, 3.0], "b": ["x", "y", "z"]}))
    # Numbers are no names.
    numbered = EnergyDensity(random_state=0).fit(pandas.DataFrame(ring(60)))
    assert (numbered.sample(3, given={0: 1.0})[:, 0] == 1).all()


@pytest.mark.parametrize("num", [2, 3, 5, 20])
def test_few_rows_and_equal_rows_have_a_density(num: int) -> None:
    for x in (ring(num), np.ones((num, 2)), np.repeat(ring(2), num, 0), ring(num)[:, :1]):
        density = EnergyDensity(random_state=0).fit(x)
        assert np.isfinite(density.score_samples(x)).all()
        assert np.isfinite(density.score_samples(x + 1e40)).all()
        assert np.isfinite(density.sample(10)).all()


def test_constant_equal_and_whole_columns_are_reported_and_fitted() -> None:
    rng = np.random.default_rng(0)
    a = rng.normal(size=100)
    frame = pandas.DataFrame({"a": a, "twin": a, "five": 5.0, "count": rng.poisson(4, 100)})
    density = EnergyDensity(iterations=0, random_state=0).fit(frame)
    assert [note.split(",")[0] for note in density.notes_] == ["constant columns", "equal columns", "columns of whole numbers"]
    assert np.isfinite(density.score_samples(frame)).all()
    changed = frame.copy()
    changed["five"] = 6.0
    assert (density.predict(changed) == -1).all()


@pytest.mark.parametrize("transformation", ["standard", "yeo-johnson", "spline"])
def test_a_constant_column_is_a_narrow_normal_law(transformation: str) -> None:
    rng = np.random.default_rng(0)
    x = np.stack([rng.normal(size=200), np.full(200, 5.0)], 1)
    density = EnergyDensity(transformation=transformation, random_state=0).fit(x)
    values = np.stack([np.full(4001, np.nan), np.linspace(4.98, 5.02, 4001)], 1)
    p, gap = np.exp(density.score_given(values)) * 1e-5, values[:, 1] - 5
    # Its variance is known from 200 rows to sqrt(2 / 200) = 10 %; floors and kernels add some.
    assert abs(p.sum() - 1) < 0.01
    assert 0.7e-6 < (p * gap**2).sum() < 2e-6


def test_equal_and_dependent_columns_differ_by_a_noise_of_a_thousandth() -> None:
    rng = np.random.default_rng(0)
    a, b = 10 * rng.normal(size=(2, 300))
    density = EnergyDensity(iterations=0, transformation="standard", random_state=0).fit(np.stack([a, b, a, a + b], 1))
    drawn = density.sample(4000, random_state=0)
    # Two columns of width 10 have a noise of 0.01 each; the sum has a width of 14.
    for gap, width in ((drawn[:, 0] - drawn[:, 2], 0.014), (drawn[:, 0] + drawn[:, 1] - drawn[:, 3], 0.02)):
        assert 0.8 * width < gap.std() < 2 * width


def test_a_sorted_column_is_not_called_constant() -> None:
    x = np.repeat([0.0, 1.5], 30_000)[:, None]
    assert column_notes(x, ["a"]) == []
    assert len(column_notes(x[:30_000], ["a"])) == 1


def test_many_draws_are_those_of_the_density(fitted: EnergyDensity) -> None:
    drawn = fitted.sample(20_000, random_state=0)
    # Draws come in pieces, none of them twice.
    assert len(np.unique(drawn[:, 0])) == 20_000


def test_more_columns_than_rows() -> None:
    x = np.random.default_rng(0).normal(size=(25, 40))
    density = EnergyDensity(random_state=0).fit(x)
    assert np.isfinite(density.score(np.random.default_rng(1).normal(size=(50, 40))))


def test_drivers_name_the_cell_that_lies_far_out() -> None:
    rng = np.random.default_rng(0)
    x = np.stack([rng.normal(170, 10, 300), rng.lognormal(0, 0.5, 300), rng.normal(size=300) ** 3], 1)
    density = EnergyDensity(iterations=0, random_state=0).fit(x)
    for column in range(3):
        for far in (8, 30):
            rows = x[:20].copy()
            rows[:, column] = x[:, column].mean() + far * x[:, column].std()
            drivers = density.drivers(rows)
            assert (np.abs(drivers).argmax(1) == column).mean() > 0.8
            assert (drivers[:, column] < 0).all()
