#pragma once
// The names that the C++ blocks in README and docs use without a declaration. The blocks are compiled and never run
// (tools/snippets.py).
#include <torch/torch.h>
#include <tutti/tutti.h>

#include <cstdint>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "guides/toy.h"

namespace {

using Net = torch::nn::Linear;
using Points = toy::Points;

extern tutti::Accelerator& accelerator;
extern tutti::Communicator& communicator;
extern tutti::LocalSGD& local_sgd;
extern Net net;
extern Net model;
extern torch::optim::AdamW adamw;
extern tutti::Optimizer optimizer;
extern tutti::Scheduler scheduler;
extern tutti::DataLoader<Points> loader;
extern tutti::DataLoader<Points> test_loader;
extern Points dataset;
extern torch::data::Example<> batch;
extern torch::Tensor x;
extern torch::Tensor y;
extern torch::Tensor loss;
extern std::int64_t i;
torch::Tensor loss_of(const torch::Tensor& output, const torch::Tensor& target);

}  // namespace
