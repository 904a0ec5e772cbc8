#!/usr/bin/env python3
"""Prints reference_curves.h: points of PyTorch's and Hugging Face's learning rate schedules.

Run it with torch and transformers installed: reference_curves.py > reference_curves.h
"""
import textwrap
import warnings

import torch
import transformers
from torch.optim import lr_scheduler
from transformers import optimization, trainer_utils

warnings.filterwarnings("ignore")


def points(make, positions, rate=1.0, momentum=False):
    """(position, rate / first rate, momentum) at `positions` of the schedule that `make` constructs on an optimizer."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate, momentum=0.9)
    schedule = make(optimizer)
    result = []
    for position in range(max(positions) + 1):
        if position in positions:
            group = optimizer.param_groups[0]
            result.append((position, float(group["lr"] / rate), float(group["momentum"]) if momentum else 0.0))
        optimizer.step()
        if position < max(positions):
            schedule.step()
    return result


def hugging_face(name, warmup, total, **arguments):
    return lambda optimizer: optimization.get_scheduler(
        name, optimizer, num_warmup_steps=warmup, num_training_steps=total, scheduler_specific_kwargs=arguments
    )


def one_cycle(total, **arguments):
    return lambda optimizer: lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=total, **arguments)


EVEN = [0, 1, 5, 9, 10, 11, 33, 55, 77, 99, 100]
BEYOND = EVEN + [101, 150]
CYCLE = [0, 1, 5, 13, 14, 15, 24, 28, 29, 30, 31, 37, 48, 49]

CURVES = {
    "linear": points(hugging_face("linear", 10, 100), BEYOND),
    "linear_without_warmup": points(hugging_face("linear", 0, 7), range(8)),
    "cosine": points(hugging_face("cosine", 10, 100), EVEN),
    "cosine_two_waves": points(hugging_face("cosine", 10, 100, num_cycles=2), EVEN),
    "cosine_with_restarts": points(hugging_face("cosine_with_restarts", 10, 100, num_cycles=3), BEYOND),
    "cosine_with_one_restart": points(hugging_face("cosine_with_restarts", 10, 100), BEYOND),
    "cosine_with_min_lr": points(hugging_face("cosine_with_min_lr", 10, 100, min_lr_rate=0.1), EVEN),
    "cosine_warmup_with_min_lr": points(
        hugging_face("cosine_warmup_with_min_lr", 10, 100, min_lr_rate=0.1), EVEN[:-1]
    ),
    "cosine_warmup_with_min_lr_from": points(
        hugging_face("cosine_warmup_with_min_lr", 10, 100, min_lr_rate=0.1, warmup_lr_rate=0.05), EVEN[:-1]
    ),
    "polynomial": points(hugging_face("polynomial", 10, 100), BEYOND),
    "polynomial_cubic": points(hugging_face("polynomial", 10, 100, lr_end=1e-5, power=3.0), BEYOND, rate=1e-3),
    "constant": points(hugging_face("constant", 10, 100), EVEN),
    "constant_with_warmup": points(hugging_face("constant_with_warmup", 10, 100), EVEN),
    "inverse_sqrt": points(hugging_face("inverse_sqrt", 10, None), BEYOND),
    "inverse_sqrt_without_warmup": points(hugging_face("inverse_sqrt", 0, None), BEYOND),
    "inverse_sqrt_timescale": points(hugging_face("inverse_sqrt", 10, None, timescale=50), BEYOND),
    "warmup_stable_decay": points(hugging_face("warmup_stable_decay", 10, 100, num_decay_steps=40), BEYOND),
    "warmup_stable_decay_linear": points(
        hugging_face(
            "warmup_stable_decay",
            10,
            None,
            num_decay_steps=40,
            num_stable_steps=20,
            warmup_type="cosine",
            decay_type="linear",
            min_lr_ratio=0.1,
        ),
        EVEN,
    ),
    "warmup_stable_decay_sqrt": points(
        hugging_face(
            "warmup_stable_decay",
            10,
            100,
            num_decay_steps=60,
            warmup_type="1-sqrt",
            decay_type="1-sqrt",
            min_lr_ratio=0.2,
        ),
        EVEN,
    ),
    "warmup_stable_decay_waves": points(
        hugging_face("warmup_stable_decay", 10, 100, num_decay_steps=60, num_cycles=1.5, min_lr_ratio=0.2), EVEN
    ),
    "step": points(lambda optimizer: lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.5), BEYOND),
    "step_by_default": points(lambda optimizer: lr_scheduler.StepLR(optimizer, 4), range(14)),
    "multi_step": points(lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [11, 55, 55, 99], gamma=0.5), BEYOND),
    "exponential": points(lambda optimizer: lr_scheduler.ExponentialLR(optimizer, gamma=0.97), BEYOND),
    "one_cycle": points(one_cycle(50), CYCLE, momentum=True),
    "one_cycle_linear": points(
        one_cycle(
            50,
            pct_start=0.25,
            anneal_strategy="linear",
            base_momentum=0.8,
            max_momentum=0.9,
            div_factor=10.0,
            final_div_factor=100.0,
        ),
        CYCLE,
        momentum=True,
    ),
    "one_cycle_three_phase": points(one_cycle(50, three_phase=True), CYCLE, momentum=True),
    "one_cycle_falling_only": points(one_cycle(50, pct_start=0.0, cycle_momentum=False), CYCLE),
}


NAN = float("nan")
LOSSES = [3, 2, 2, 2, 2, 1.9999, 1.5, 1.6, NAN, 1.7, 1.5, 1.4, 1.4, 1.4, 1.4, 1.4, 1.4, 1.4, 1.4, 1.4]
SCORES = [-2, -1, -1.05, -1, 0, 0.1, 0.1, 0.11, 0.3, NAN, 0.2, 0.2, 0.3, 0.3, 0.3, 0.3, 0.3, 0.31, 0.3, 0.3]


def plateau(metrics, **arguments):
    """(metric, rate after it) under ReduceLROnPlateau, from rate 1."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = lr_scheduler.ReduceLROnPlateau(optimizer, **arguments)
    result = []
    for metric in metrics:
        schedule.step(metric)
        result.append((float(metric), float(optimizer.param_groups[0]["lr"])))
    return result


PLATEAUS = {
    "by_default": plateau([1.0] * 25),
    "min_rel": plateau(LOSSES, patience=1, factor=0.5),
    "min_abs": plateau(LOSSES, patience=2, factor=0.5, threshold=0.2, threshold_mode="abs"),
    "min_cooldown": plateau(LOSSES, patience=0, factor=0.5, cooldown=2),
    "min_floor": plateau(LOSSES, patience=0, factor=0.1, min_lr=0.05),
    "min_eps": plateau(LOSSES, patience=0, factor=0.5, eps=0.1),
    "max_rel": plateau(SCORES, mode="max", patience=1, factor=0.5, threshold=0.01),
    "max_abs": plateau(SCORES, mode="max", patience=1, factor=0.5, threshold=0.01, threshold_mode="abs"),
}


def print_table(kind, name, curves):
    print(f"inline const std::map<std::string, std::vector<{kind}>> {name} = {{")
    for curve, rows in curves.items():
        text = ", ".join("{" + ", ".join(repr(value) for value in row) + "}" for row in rows)
        print(f'    {{"{curve}",')
        print(textwrap.fill(f"{{{text}}}}},", 120, initial_indent=" " * 5, subsequent_indent=" " * 6))
    print("};\n")


def main():
    names = ", ".join(f'"{name}"' for name in sorted(kind.value for kind in trainer_utils.SchedulerType))
    versions = f"PyTorch {torch.__version__.split('+')[0]} and transformers {transformers.__version__}"
    print(f"""#pragma once
// Printed by reference_curves.py with {versions}.
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

// clang-format off
namespace tutti::test {{

struct ReferencePoint {{
  std::int64_t position = 0;
  double factor = 0;
  double momentum = 0;  ///< 0 where the schedule moves none
}};

struct PlateauPoint {{
  double metric = 0;
  double rate = 0;  ///< after it
}};

inline constexpr double nan = std::numeric_limits<double>::quiet_NaN();

/// The values of transformers' SchedulerType.
inline const std::vector<std::string> scheduler_types = {{
{textwrap.fill(names, 120, initial_indent="    ", subsequent_indent="    ")}}};
""")
    print_table("ReferencePoint", "reference_curves", CURVES)
    print_table("PlateauPoint", "reference_plateaus", PLATEAUS)
    print("}  // namespace tutti::test")


if __name__ == "__main__":
    main()
