#!/usr/bin/env python3
"""gpt_peer.py [--steps N] [--small]: the GPT of test_gpu's Speed tests in PyTorch eager, with AdamW(fused=True).

One rank, bf16 autocast, 8 sequences of 1024 tokens. Prints milliseconds a step and tokens per second. --small: a model for
the CPU, to try the script.
"""
import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.attention_norm, self.feed_forward_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for part in self.query_key_value(self.attention_norm(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).flatten(2))
        return x + self.contract(F.gelu(self.expand(self.feed_forward_norm(x))))


class Gpt(nn.Module):
    def __init__(self, vocabulary, width, layers, heads, context):
        super().__init__()
        self.embedding, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, 0, 0.02)

    def forward(self, tokens):
        x = self.embedding(tokens) + self.positions.weight[:tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    device = "cpu" if options.small else "cuda"
    vocabulary, width, layers, heads, context = (256, 32, 1, 2, 16) if options.small else (50304, 768, 12, 12, 1024)
    batch = 8
    torch.manual_seed(1)
    model = Gpt(vocabulary, width, layers, heads, context).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4, fused=True)
    tokens = torch.randint(vocabulary, (batch, context + 1), device=device)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]

    def step():
        with torch.autocast(device, torch.bfloat16):
            loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def wait():
        if device == "cuda":
            torch.cuda.synchronize()

    for _ in range(5):
        step()
    wait()
    start = time.perf_counter()
    for _ in range(options.steps):
        step()
    wait()
    seconds = (time.perf_counter() - start) / options.steps
    print(f"speed: PyTorch eager, fused AdamW: {seconds * 1e3:.2f} ms a step, {batch * context / seconds:.0f} tokens/s")


main()
