"""SAM and deferred re-weighting in a plain PyTorch loop, on three long-tailed Gaussian classes."""

import torch
from torch import nn

from evenhand.measure.confusion import confusion_matrix, recalls
from evenhand.pieces.losses import deferred_weights
from evenhand.pieces.sam import SAM

torch.manual_seed(0)
counts = [1000, 100, 10]
centres = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
y = torch.repeat_interleave(torch.arange(3), torch.tensor(counts))
x = centres[y] + torch.randn(len(y), 2)
y_test = torch.arange(3).repeat_interleave(1000)
x_test = centres[y_test] + torch.randn(len(y_test), 2)

net = nn.Sequential(nn.Linear(2, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))
opt = SAM(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), rho=0.05)
for epoch in range(20):
    loss_fn = nn.CrossEntropyLoss(weight=deferred_weights(counts, epoch, start=15))
    for batch in torch.randperm(len(y)).split(64):
        loss_fn(net(x[batch]), y[batch]).backward()
        with opt.ascent(net):  # weights at w + e, BatchNorm statistics frozen
            loss_fn(net(x[batch]), y[batch]).backward()
        opt.step()  # back at w exactly, then SGD's step
        opt.zero_grad()
    if epoch in (14, 19):
        predicted = net.eval()(x_test).argmax(1)
        net.train()
        shown = [f"{r:.2f}" for r in recalls(confusion_matrix(predicted, y_test, 3)).tolist()]
        print(f"epoch {epoch + 1}: recall per class {shown}")
