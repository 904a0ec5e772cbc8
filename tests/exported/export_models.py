"""Exports models and writes the results of eager PyTorch, for exported_models_test.cpp.

    export_models.py FOLDER NAME ...

For each name: NAME.pt2, and NAME.safetensors with the inputs ("in.0", ...; "in.KEY" by name), the outputs ("out.0", ...),
the loss, every gradient ("grad.NAME"), every buffer after the pass ("buffer.NAME"), the state before it ("state.NAME"),
and, under "more.", the same for inputs of other sizes; "eval.0", ... are the outputs in evaluation.
"""
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn
from torch.export import Dim

BATCH = Dim("batch", min=2, max=1024)


class Net(nn.Module):
    """Convolution, batch norm, layer norm and dropout, whose masks come from the generator."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.a, self.norm, self.drop, self.b = nn.Linear(64, 32), nn.LayerNorm(32), nn.Dropout(0.25), nn.Linear(32, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn(self.conv(x))), 2).flatten(1)
        return self.b(self.drop(F.gelu(self.norm(self.a(x)))))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, 2, width // 2).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    """Two blocks. The embedding and the head share their weight."""

    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(50, 16), nn.Embedding(24, 16)
        self.blocks = nn.ModuleList([Block(16), Block(16)])
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 50, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Encoder(nn.Module):
    """A TransformerEncoder with an attention mask and a padding mask."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x, mask, *, padding):
        return self.layers(x, mask=mask, src_key_padding_mask=padding, is_causal=False)


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(6, 8, num_layers=2, dropout=0.5, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        out, (hidden, _) = self.lstm(x)
        return self.head(out[:, -1]) + hidden.mean()


class Mixed(nn.Module):
    """Nested inputs and outputs, a frozen parameter, a branch, autocast, no_grad, mutations, symbolic sizes."""

    def __init__(self):
        super().__init__()
        self.linear, self.scale = nn.Linear(4, 4), torch.arange(4.0)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)
        self.register_buffer("calls", torch.zeros(3), persistent=False)
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, batch, factor, pair, *, flag):
        self.calls.add_(1)
        self.seen += 2
        x, (a, (b, c)) = batch["x"], pair
        with torch.autocast("cpu", dtype=torch.bfloat16):
            low = self.linear(x)
        with torch.no_grad():
            fixed = self.linear(x) * 2
        branch = torch.cond(x.sum() > 0, lambda q: q.sin() + self.first(self.linear(q)),
                            lambda q: self.second(q).cos() * 2, (x,))
        batch["m"].add_(1)
        rows = x.shape[0]
        every_second = x[torch.arange(rows, device=x.device) % 2 == 0].sum()
        return {"y": branch * factor + low.float() + fixed + self.scale * self.frozen,
                "nested": [a + b, c * rows],
                "zeros": x.new_zeros(rows * 2 + 1),
                "tuple": (every_second, None, 3),
                "rows": rows}


class Functional(nn.Module):
    """Exported in decomposed form: the new values of its buffers are outputs of the graph."""

    def __init__(self):
        super().__init__()
        self.linear, self.bn = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x, state):
        state.mul_(2)
        return self.bn(self.linear(x))


class Custom(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return torch.ops.tutti_test.twice(self.linear(x))


def leaves(value):
    return [leaf for leaf in torch.utils._pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def loss_of(outputs):
    return sum((leaf.float() ** 2).mean() for leaf in leaves(outputs) if leaf.requires_grad)


def clone(value):
    return torch.utils._pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, value)


def record(into, prefix, model, args, kwargs):
    """Records one pass in training, with cleared gradients and the seed 1."""
    model.train()
    model.zero_grad(set_to_none=True)
    args, kwargs = clone(args), clone(kwargs)
    for number, leaf in enumerate(leaves((args, kwargs))):
        into[f"{prefix}in.{number}"] = leaf.clone()
    torch.manual_seed(1)
    outputs = model(*args, **kwargs)
    loss = loss_of(outputs)
    loss.backward()
    into[f"{prefix}loss"] = loss.detach()
    for number, leaf in enumerate(leaves(outputs)):
        into[f"{prefix}out.{number}"] = leaf.detach().clone().contiguous()
    for number, leaf in enumerate(leaves((args, kwargs))):
        into[f"{prefix}after.{number}"] = leaf.clone()
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.grad is not None:
            into[f"{prefix}grad.{name}"] = parameter.grad.clone()
    for name, buffer in model.named_buffers():
        into[f"{prefix}buffer.{name}"] = buffer.clone()


def write(folder, name, model, args, kwargs=None, shapes=None, more=None, decompose=False, evaluation=True):
    kwargs = kwargs or {}
    model.train()
    program = torch.export.export(model, clone(args), clone(kwargs), dynamic_shapes=shapes)
    if decompose:
        program = program.run_decompositions()
    torch.export.save(program, folder / f"{name}.pt2")
    content = {f"state.{key}": value.clone() for key, value in model.state_dict().items()}
    record(content, "", model, args, kwargs)
    if more:
        record(content, "more.", model, *more)
    if evaluation:
        model.eval()
        with torch.no_grad():
            for number, leaf in enumerate(leaves(model(*clone(args), **clone(kwargs)))):
                content[f"eval.{number}"] = leaf.clone().contiguous()
    save_file({key: value.contiguous() for key, value in content.items()}, folder / f"{name}.safetensors")


def net(folder):
    write(folder, "net", Net(), (torch.randn(4, 1, 8, 8),), shapes=({0: BATCH},), more=((torch.randn(7, 1, 8, 8),), {}))


def gpt(folder):
    length = Dim("length", min=2, max=24)
    write(folder, "gpt", Gpt(), (torch.randint(50, (3, 12)),), shapes=({0: BATCH, 1: length},),
          more=((torch.randint(50, (5, 24)),), {}))


def encoder(folder):
    mask = torch.triu(torch.ones(6, 6, dtype=torch.bool), 1)
    padding = torch.zeros(3, 6, dtype=torch.bool)
    padding[1, 4:] = True
    write(folder, "encoder", Encoder(), (torch.randn(3, 6, 16), mask), {"padding": padding},
          shapes={"x": {0: BATCH}, "mask": None, "padding": {0: BATCH}},
          more=((torch.randn(5, 6, 16), mask), {"padding": torch.zeros(5, 6, dtype=torch.bool)}))


def lstm(folder):
    write(folder, "lstm", Lstm(), (torch.randn(3, 5, 6),), shapes=({0: BATCH},), more=((torch.randn(4, 5, 6),), {}))


def mixed(folder):
    def inputs(rows, sign):
        batch = {"x": torch.rand(rows, 4) * sign, "m": torch.ones(rows)}
        return ((batch, 2.0, [torch.ones(4), (torch.full((4,), 2.0), torch.rand(4))]), {"flag": torch.ones(1)})
    shapes = {"batch": {"x": {0: Dim.DYNAMIC}, "m": {0: Dim.DYNAMIC}}, "factor": None, "pair": [None, (None, None)],
              "flag": None}
    args, kwargs = inputs(4, 1)
    write(folder, "mixed", Mixed(), args, kwargs, shapes=shapes, more=inputs(6, -1), evaluation=False)


def functional(folder):
    write(folder, "functional", Functional(), (torch.randn(6, 4), torch.ones(2)), decompose=True)


def spectral(folder):
    write(folder, "spectral", nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)), (torch.randn(3, 4),),
          evaluation=False)  # the graph writes _u and _v in evaluation too


def custom(folder):
    twice = torch.library.custom_op("tutti_test::twice", lambda x: x * 2, mutates_args=(), schema="(Tensor x) -> Tensor")
    twice.register_fake(torch.empty_like)
    twice.register_autograd(lambda context, gradient: gradient * 2)
    write(folder, "custom", Custom(), (torch.randn(3, 4),))


def main():
    torch.set_num_threads(1)
    # In evaluation PyTorch would replace encoder layers by a fused operator, which rounds differently.
    torch.backends.mha.set_fastpath_enabled(False)
    folder = Path(sys.argv[1])
    for name in sys.argv[2:]:
        torch.manual_seed(0)
        globals()[name](folder)
        print(name)


if __name__ == "__main__":
    main()
