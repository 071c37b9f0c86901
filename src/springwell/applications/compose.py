r"""Energies made of energies.

    product      f = sum_i w_i f_i                     density  prod_i p_i^{w_i}, up to its normaliser
    mixture      f = log sum_i exp(c_i + f_i)          density  sum_i e^{c_i} Z_i p_i, up to its normaliser
    tempered     f = beta f_1                          density  p_1^beta: sharper for beta > 1, flatter for beta < 1

A weight may be negative, which divides a density out; it is then for the caller to see that what remains can be normalised.
A mixture takes the shares e^{c_i} Z_i, and a trained energy has an unknown Z_i: with c_i = log share_i - log Z_i the shares are
the caller's. In two dimensions ``model.normaliser().log_z`` is log Z_i at level 0.

A differentiable term of one's own, such as "like this sketch", is an energy too (:class:`Term`). :func:`product` and
:func:`mixture` make a Model of models and terms, which is sampled and measured as any other.

All of them act level by level. The sum of the energies of level t is not the energy of the noisy product (noise and product do
not commute), so that levels are no longer noisy versions of one another, and y_t drawn given x_{t+1} does not have the law
exp f(y, t). Sweeps (:mod:`springwell.generate`) make up for that at every level, and the density that they leave invariant at
level 0 is the product of the level-0 densities itself. Mixtures do commute with noise and need none, provided that each level
has the same shares; tempering needs them as products do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from springwell.energy.base import EnergyFunction, at_level
from springwell.errors import UserError, kind_of, whole_number
from springwell.model import Model
from springwell.shapes import expand


class _Weighted:
    """Energies, each of the same noise levels and coordinates, with a weight each."""

    def __init__(self, name: str, energies: Sequence[EnergyFunction], weights: Sequence[float] | None, default: float):
        weights = [default] * len(energies) if weights is None else list(weights)
        if not energies or len(weights) != len(energies):
            found = f"{len(energies)} energies and {len(weights)} weights"
            raise UserError(f"{name}: has {found}; give at least one, and a weight each")
        if not all(map(math.isfinite, weights)):
            raise UserError(f"{name}: has the weights {', '.join(map(str, weights))}; all must be finite")
        self.energies, self.weights = list(energies), weights

    def joined(self, values: Sequence[Tensor]) -> Tensor:
        """f from the values of the f_i."""
        raise NotImplementedError

    def __call__(self, y: Tensor, t: Tensor) -> Tensor:
        return self.at(t)(y)

    def at(self, t: Tensor) -> Callable[[Tensor], Tensor]:
        parts = [at_level(energy, t) for energy in self.energies]
        return lambda y: self.joined([part(y) for part in parts])


class Product(_Weighted):
    """f(y, t) = sum_i w_i f_i(y, t).

    Args:
        energies: The f_i, each of the same noise levels and coordinates.
        weights: w_i; 1 if not given.

    Examples:
        >>> from springwell.applications import Product
        >>> f = Product([lambda y, t: y[:, 0], lambda y, t: y[:, 1]], weights=[1.0, 2.0])
        >>> f(torch.tensor([[1.0, 3.0]]), torch.tensor([0]))
        tensor([7.])
    """

    def __init__(self, energies: Sequence[EnergyFunction], weights: Sequence[float] | None = None):
        super().__init__("product", energies, weights, 1.0)

    def joined(self, values: Sequence[Tensor]) -> Tensor:
        return torch.stack([w * f for w, f in zip(self.weights, values, strict=True)]).sum(0)


class Mixture(_Weighted):
    """f(y, t) = log sum_i exp(c_i + f_i(y, t)).

    Args:
        energies: The f_i, each of the same noise levels and coordinates.
        log_weights: c_i; 0 if not given.

    Examples:
        >>> from springwell.applications import Mixture
        >>> f = Mixture([lambda y, t: y[:, 0], lambda y, t: y[:, 1]], log_weights=[0.0, 0.0])
        >>> f(torch.tensor([[0.0, 0.0]]), torch.tensor([0]))  # log 2
        tensor([0.6931])
    """

    def __init__(self, energies: Sequence[EnergyFunction], log_weights: Sequence[float] | None = None):
        super().__init__("mixture", energies, log_weights, 0.0)

    def joined(self, values: Sequence[Tensor]) -> Tensor:
        return torch.stack([c + f for c, f in zip(self.weights, values, strict=True)]).logsumexp(0)


class Term:
    """f(y, t) = abar_t^2 term(x): a term of data x ``[N, ...]`` in their units, which noise lets go of.

    At level 0 it is the term itself. Elsewhere any function would do, since sweeps make up for it.

    Args:
        term: x -> ``[N]``, differentiable; a log-density up to a constant.
        model: Whose levels and units y has.

    Examples:
        >>> from springwell.applications import Product, Term
        >>> model = sw.load("checkerboard")
        >>> f = Product([model.energy_function, Term(lambda x: -x[:, 0] ** 2, model)])
        >>> f(torch.zeros(3, 2), torch.tensor([0, 1, 2])).shape
        torch.Size([3])
    """

    def __init__(self, term: Callable[[Tensor], Tensor], model: Model):
        self.term, self.schedule, self.shift, self.scale = term, model.schedule, model.shift, model.scale

    def __call__(self, y: Tensor, t: Tensor) -> Tensor:
        x = self.shift + self.scale * (y / expand(self.schedule.scale[t], y))
        share = torch.where(t == 0, 1.0, self.schedule.a_cum[t] ** 2)
        return share.to(y.dtype) * self.term(x)


Part = Model | Callable[[Tensor], Tensor]


def product(parts: Sequence[Part], weights: Sequence[float] | None = None, sweeps: int = 12) -> Model:
    """The model whose density at level 0 is prod_i p_i^{w_i}, up to its normaliser.

        product([model.given(3), model.given(8)])                              both at once
        product([model, model.given(3)], [1.5, -0.5])                          less of what is like a 3
        product([model], [2.0])                                                tempered: sharper
        product([model, lambda x: -10 * (x - sketch).square().sum((1, 2, 3))]) like this sketch

    Args:
        parts: Models of the same levels and units, the first of all; and terms of data x in their units, x -> ``[N]``.
        weights: w_i; 1 if not given. A negative one divides a density out; what remains has to have a finite integral.
        sweeps: Of every level in sampling, since noise and products do not commute. Their chains need ``num_steps`` > 0.

    Examples:
        >>> from springwell.applications import product
        >>> right = product([sw.load("checkerboard"), lambda x: 4 * x[:, 0]])  # more of what lies to the right
        >>> bool(right.sample(64, seed=0)[:, 0].mean() > 1)
        True
    """
    first, energies = _energies("product", parts)
    return _composed(first, Product(energies, weights), sweeps)


def mixture(models: Sequence[Model], shares: Sequence[float] | None = None) -> Model:
    """The model whose density at level 0 is sum_i share_i p_i. It needs no sweeps: noise and mixtures commute.

    Args:
        models: Of the same levels and units, each with a known log Z.
        shares: Positive; equal if not given.

    Examples:
        >>> from springwell.applications import mixture
        >>> model = sw.load("checkerboard")
        >>> mixture([model, model], shares=[0.3, 0.7]).sample(4, seed=0).shape
        torch.Size([4, 2])
    """
    first, energies = _energies("mixture", models)
    shares = [1.0] * len(models) if shares is None else list(shares)
    if len(shares) != len(models) or not all(0 < share < math.inf for share in shares):
        raise UserError(f"shares={shares}: give {len(models)} positive numbers, one per model")
    offset = math.prod(first.event_shape) * math.log(float(first.schedule.scale[0]))
    logs = [math.log(s / sum(shares)) - m.log_z().value - offset for s, m in zip(shares, models, strict=True)]
    return _composed(first, Mixture(energies, logs), 0)


def _energies(name: str, parts: Sequence[Part]) -> tuple[Model, list[EnergyFunction]]:
    """The first model, and the energies of all parts."""
    if not parts or not isinstance(parts[0], Model):
        raise UserError(f"{name}: needs a model first; give a list of models and terms")
    first = parts[0]
    for part in parts:
        if isinstance(part, Model):
            same = torch.equal(part.schedule.sigma, first.schedule.sigma) and part.event_shape == first.event_shape
            if not same or not torch.equal(part.shift, first.shift) or not torch.equal(part.scale, first.scale):
                raise UserError(f"{name}: its models have other levels or units; give models of the same data and levels")
        elif not callable(part):
            raise UserError(f"{name}: has {kind_of(part)}; give models, and functions x -> [N]")
    return first, [part.energy_function if isinstance(part, Model) else Term(part, first) for part in parts]


def _composed(like: Model, energy: EnergyFunction, sweeps: int) -> Model:
    model = Model(energy, like.schedule, like.sampler, like.shift, like.scale, denoise=False)
    model.sweeps = whole_number("sweeps", sweeps, 0)
    return model


def tempered(energy: EnergyFunction, beta: float) -> Product:
    """f(y, t) = beta f_1(y, t), beta > 0: the density to the power beta.

    Examples:
        >>> from springwell.applications import tempered
        >>> tempered(lambda y, t: -y.square().sum(-1), 2.0)(torch.ones(1, 2), torch.tensor([0]))
        tensor([-4.])
    """
    if not 0 < beta < math.inf:
        raise UserError(f"beta {beta:g}: must be positive and finite")
    return Product([energy], [beta])
