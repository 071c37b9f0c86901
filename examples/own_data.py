"""Your own data: any array, tensor or Dataset [N, ...]. The network, the noise levels and the chains follow from its shape."""

import numpy as np

import springwell as sw

rng = np.random.default_rng(0)
x = np.concatenate([rng.normal([-3.0, 10.0], [0.5, 2.0], (1000, 2)), rng.normal([2.0, 20.0], [1.0, 1.0], (3000, 2))])

model = sw.train(data=x, iterations=100, seed=0)
print(model)
print(model.sample(5, seed=1))  # in the units of x
print(model.log_prob(x[:5]))  # nats; normalised, since two dimensions can be integrated
print(model.energy(x[:5], level=2))  # the energy of a noisier level

model.save("mine")
again = sw.load("mine")
assert np.allclose(again.log_prob(x[:5]), model.log_prob(x[:5]))
