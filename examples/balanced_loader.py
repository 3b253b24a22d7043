"""Class-balanced and square-root sampling with an ordinary DataLoader."""

import torch
from torch.utils.data import DataLoader, TensorDataset

from evenhand.data import Shuffled, Weighted, sample_weights

counts = [900, 90, 10]
y = torch.repeat_interleave(torch.arange(3), torch.tensor(counts))
data = TensorDataset(torch.randn(len(y), 2), y)

samplers = {
    "as it is": Shuffled(len(y), batch=50, seed=0),
    "square-root": Weighted(sample_weights(y, 3, power=0.5), batch=50, seed=0),
    "class-balanced": Weighted(sample_weights(y, 3), batch=50, seed=0),
}
for name, sampler in samplers.items():
    loader = DataLoader(data, batch_sampler=sampler)
    seen = torch.zeros(3)
    for epoch in range(5):
        sampler.set_epoch(epoch)  # another epoch, other samples; the same epoch, the same ones
        for _, labels in loader:
            seen += torch.bincount(labels, minlength=3)
    print(f"{name:15} share of each class: {[round(s, 2) for s in (seen / seen.sum()).tolist()]}")
