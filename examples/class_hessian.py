"""Curvature of each class's loss of a small network: is a rare class at a minimum or on a saddle?"""

import torch
from torch import nn

from evenhand.measure.hessian import class_spectra
from evenhand.pieces.losses import class_balanced_weights

torch.manual_seed(0)
counts = [500, 50, 5]
centres = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
y = torch.repeat_interleave(torch.arange(3), torch.tensor(counts))
x = centres[y] + 0.5 * torch.randn(len(y), 2)

net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 3))
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
for _ in range(300):
    nn.functional.cross_entropy(net(x), y, class_balanced_weights(counts)).backward()
    opt.step()
    opt.zero_grad()

print("class  images   loss  |gradient|  smallest  largest")
for k, found in class_spectra(net, x, y, classes=[0, 1, 2], steps=40).items():
    s = found.spectrum
    print(f"{k:5} {found.samples:7} {found.loss:6.3f} {found.gradient_norm:11.3f} {s.minimum:9.3f} {s.maximum:8.3f}")
