"""Long-tail losses in one plain loop, with deferred re-weighting (DRW), on ten overlapping Gaussian classes."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from evenhand.data import longtail_counts
from evenhand.measure.confusion import confusion_matrix, group_mean_recall
from evenhand.nets import CosineHead
from evenhand.pieces.losses import deferred_weights, ldam_loss, logit_adjusted_loss, vs_loss

torch.manual_seed(0)
counts = longtail_counts(1000, 10, imbalance=100)
centres = torch.randn(10, 16)
y = torch.repeat_interleave(torch.arange(10), torch.tensor(counts))
x = centres[y] + 1.5 * torch.randn(len(y), 16)
y_test = torch.arange(10).repeat_interleave(500)
x_test = centres[y_test] + 1.5 * torch.randn(len(y_test), 16)

losses = {
    "ce": cross_entropy,
    "ce+drw": cross_entropy,
    "ldam+drw": lambda logits, y, weight: ldam_loss(logits, y, counts, weight=weight),
    "vs": lambda logits, y, weight: vs_loss(logits, y, counts, weight=weight),
    "la": lambda logits, y, weight: logit_adjusted_loss(logits, y, counts, weight=weight),
}
for name, loss in losses.items():
    head = CosineHead(64, 10) if name == "ldam+drw" else nn.Linear(64, 10)  # LDAM's margins are cosines
    net = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), head)
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(20):
        weight = deferred_weights(counts, epoch, start=16 if "drw" in name else 20)  # ones, then more for rare classes
        for batch in torch.randperm(len(y)).split(128):
            loss(net(x[batch]), y[batch], weight).backward()
            opt.step()
            opt.zero_grad()
    C = confusion_matrix(net.eval()(x_test).argmax(1), y_test, 10)
    head, mid, tail = (f"{100 * r:.0f} %" for r in group_mean_recall(C, [range(3), range(3, 7), range(7, 10)]))
    print(f"{name:9} head {head}  mid {mid}  tail {tail}")
