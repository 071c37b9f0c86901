"""Your own network: any nn.Module that maps y [N, ...] and levels t [N] to one number per sample, f = +log density."""

import torch
from torch import nn

import springwell as sw


class MyEnergy(nn.Module):
    def __init__(self, num_levels=4, width=64):
        super().__init__()
        self.level = nn.Embedding(num_levels, width)
        self.first, self.second = nn.Linear(2, width), nn.Linear(width, 1)

    def forward(self, y, t):
        return self.second(torch.nn.functional.silu(self.first(y) + self.level(t))).squeeze(-1)


angle = 6.28 * torch.rand(2000)
x = torch.stack([angle.cos(), angle.sin()], 1) + 0.1 * torch.randn(2000, 2)
model = sw.train(data=x, network=MyEnergy(), iterations=100)  # nothing is written unless you give out="runs/mine"
print(model, model.sample(4, seed=0), model.log_prob(x[:4]), model.score(x[:4], level=0), sep="\n")
model.save("mine")
assert torch.equal(sw.load("mine", network=MyEnergy()).sample(4, seed=0), model.sample(4, seed=0))
