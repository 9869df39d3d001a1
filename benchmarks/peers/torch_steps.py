"""Trains the workloads with PyTorch when it is asked to: one device, or DistributedDataParallel."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed
from torch import nn
from torch.nn import functional as F  # noqa: N812 - its usual name

sys.path.append(str(Path(__file__).parents[1]))
from serving import Advance, answers, options, serve


class Mlp(nn.Module):
    """784-512-512-10."""

    def __init__(self, weights: dict[str, torch.Tensor]) -> None:
        """Take the initial weights."""
        super().__init__()
        self.layers = nn.ModuleList(
            linear(weights[f"w{number}"], weights[f"b{number}"]) for number in range(3)
        )

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The mean loss."""
        for number, layer in enumerate(self.layers):
            x = layer(x) if number == 2 else F.relu(layer(x))
        return F.cross_entropy(x, labels)


class ConvNet(nn.Module):
    """Four convolutions with BatchNorm."""

    def __init__(self, weights: dict[str, torch.Tensor]) -> None:
        """Take the initial weights; kernels come as height, width, in, out."""
        super().__init__()
        self.convs, self.norms = nn.ModuleList(), nn.ModuleList()
        for number in range(4):
            kernel = weights[f"conv{number}/kernel"].permute(3, 2, 0, 1).contiguous()
            conv = nn.Conv2d(kernel.shape[1], kernel.shape[0], 3, padding=1, bias=False)
            conv.weight = nn.Parameter(kernel)
            self.convs.append(conv)
            self.norms.append(nn.BatchNorm2d(kernel.shape[0], eps=1e-3))
        self.head = linear(weights["head/w"], weights["head/b"])

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The mean loss."""
        for number, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            x = F.relu(norm(conv(x)))
            if number % 2:
                x = F.max_pool2d(x, 2)
        return F.cross_entropy(self.head(x.mean((2, 3))), labels)


class Block(nn.Module):
    """Attention, and two dense layers."""

    def __init__(self, weights: dict[str, torch.Tensor], name: str) -> None:
        """Take the initial weights."""
        super().__init__()
        own = {key: weights[f"{name}/{key}"] for key in BLOCK}
        self.norm1, self.norm2 = nn.Parameter(own["norm1"]), nn.Parameter(own["norm2"])
        self.qkv, self.out = linear(own["qkv"]), linear(own["out"])
        self.up = linear(own["up"], own["up_bias"])
        self.down = linear(own["down"], own["down_bias"])

    def forward(self, x: torch.Tensor, heads: int) -> torch.Tensor:
        """f32[B, T, D] to the same."""
        parts = self.qkv(normed(x, self.norm1)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        hidden = F.gelu(self.up(normed(x, self.norm2)), approximate="tanh")
        return x + self.down(hidden)


BLOCK = ("norm1", "qkv", "out", "norm2", "up", "up_bias", "down", "down_bias")


class Transformer(nn.Module):
    """A decoder with tied embeddings."""

    def __init__(self, weights: dict[str, torch.Tensor]) -> None:
        """Take the initial weights."""
        super().__init__()
        self.words, self.places = nn.Parameter(weights["words"]), nn.Parameter(weights["places"])
        self.norm = nn.Parameter(weights["norm"])
        depth = sum(name.endswith("/qkv") for name in weights)
        self.blocks = nn.ModuleList(Block(weights, f"block{i}") for i in range(depth))
        self.heads = depth  # both sizes of this workload have as many heads as layers

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The mean loss."""
        x = F.embedding(tokens[:, :-1], self.words) + self.places
        for block in self.blocks:
            x = block(x, self.heads)
        logits = normed(x, self.norm) @ self.words.T
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


class Layers(nn.Module):
    """Many small dense layers."""

    def __init__(self, weights: dict[str, torch.Tensor]) -> None:
        """Take the initial weights."""
        super().__init__()
        depth = len(weights) // 2
        self.layers = nn.ModuleList(
            linear(weights[f"{i}/w"], weights[f"{i}/b"]) for i in range(depth)
        )

    def forward(self, x: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
        """The mean loss."""
        for layer in self.layers:
            x = x + 0.1 * torch.tanh(layer(x))
        return F.mse_loss(x, goal)


class Embedding(nn.Module):
    """A large table."""

    def __init__(self, weights: dict[str, torch.Tensor], *, sparse: bool = False) -> None:
        """Take the initial weights."""
        super().__init__()
        self.table = nn.Embedding.from_pretrained(weights["table"], freeze=False, sparse=sparse)
        self.head = linear(weights["w"], weights["b"])

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The mean loss."""
        return F.cross_entropy(self.head(self.table(ids).mean(1)), labels)


def linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> nn.Linear:
    """A dense layer; its weight comes as inputs, outputs."""
    layer = nn.Linear(*weight.shape, bias=bias is not None)
    layer.weight = nn.Parameter(weight.T.contiguous())
    if bias is not None:
        layer.bias = nn.Parameter(bias)
    return layer


def normed(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Divided by the root of the mean square."""
    return F.rms_norm(x, x.shape[-1:], eps=1e-6) * scale


MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": Mlp,
    "convnet": ConvNet,
    "transformer": Transformer,
    "layers": Layers,
    "embedding": Embedding,
}


def trained(
    data: dict[str, np.ndarray], make: Callable[..., nn.Module], *, rank: int, processes: int
) -> Advance:
    """A model on this process's rows, wrapped where there are several processes."""
    # Copies, since contenders share the file's arrays.
    tensors = {name: torch.from_numpy(array.copy()) for name, array in data.items()}
    model: nn.Module = make(
        {k.removeprefix("weights/"): t for k, t in tensors.items() if k.startswith("weights/")}
    )
    batch = [mine(tensors[name], rank, processes) for name in sorted(tensors) if "batch" in name]
    if processes > 1:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=float(data["rate"]))

    def advance(steps: int) -> float:
        for _ in range(steps):
            optimizer.zero_grad()
            loss = model(*batch)
            loss.backward()
            optimizer.step()
        loss = loss.detach()
        if processes > 1:
            torch.distributed.all_reduce(loss)
        return float(loss) / processes

    return advance


def mine(rows: torch.Tensor, rank: int, processes: int) -> torch.Tensor:
    """The rows of one process; labels are of 64 bits and images have their channels first."""
    count = len(rows) // processes
    rows = rows[rank * count : (rank + 1) * count]
    rows = rows.permute(0, 3, 1, 2) if rows.ndim == 4 else rows
    return (rows if rows.is_floating_point() else rows.long()).contiguous()


def main() -> None:
    """Serve."""
    out = answers()
    chosen = options(__doc__ or "").parse_args()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // chosen.processes))
    torch.set_num_interop_threads(1)
    rank, kind = 0, "one device"
    if chosen.processes > 1:
        cluster = json.loads(os.environ["TF_CONFIG"])
        rank, kind = cluster["task"]["index"], "DDP"
        torch.distributed.init_process_group(
            "gloo",
            init_method=f"tcp://{cluster['cluster']['worker'][0]}",
            rank=rank,
            world_size=chosen.processes,
        )
    with np.load(chosen.data) as file:
        data = dict(file)
    makers: dict[str, Any] = {f"PyTorch, {kind}": MODELS[chosen.workload]}
    if chosen.workload == "convnet" and chosen.processes == 1:
        makers = {}  # One device normalises over the global batch, which is other arithmetic.
    if chosen.workload == "embedding":
        makers[f"PyTorch, {kind}, sparse rows"] = lambda weights: Embedding(weights, sparse=True)
    serve(
        {
            name: lambda make=make: trained(data, make, rank=rank, processes=chosen.processes)
            for name, make in makers.items()
        },
        f"torch {torch.__version__.split('+')[0]}",
        out,
    )


if __name__ == "__main__":
    main()
