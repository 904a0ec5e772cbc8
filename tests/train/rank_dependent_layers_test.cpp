// Layers and models whose forward writes parameters. 1 to 3 ranks as threads.
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/script.h>

#include "support/rank_case.h"
#include "support/training.h"
#include "tutti/core/error.h"
#include "tutti/sync/distributed_data_parallel.h"
#include "tutti/train/accelerator.h"
#include "tutti/train/jit_module.h"

namespace tutti::test::rank_dependent_layers_test {
namespace {

using torch::nn::Embedding;
using torch::nn::EmbeddingBag;
using torch::nn::EmbeddingBagOptions;
using torch::nn::EmbeddingOptions;

template <typename Table>
struct Words : torch::nn::Module {
  explicit Words(Table made) : table(register_module("table", made)) {}
  Table table;
};

/// Expects a UsageError that names the layer on several ranks, and none on one.
template <typename Prepare>
void expect_refused(const Communicator& communicator, const std::string& layer, const Prepare& prepare) {
  std::string message = "nothing was thrown";
  try {
    prepare();
  } catch (const UsageError& error) {
    message = error.what();
  }
  if (communicator.size() == 1) {
    EXPECT_EQ(message, "nothing was thrown");
    return;
  }
  for (const std::string& part : {layer, std::string("max_norm"), std::string("embedding_renorm_")}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
  }
}

const RankCase tables("rank_dependent_tables", [](const Communicator& communicator) {
  Accelerator accelerator({.communicator = communicator});
  auto words = std::make_shared<Words<Embedding>>(Embedding(EmbeddingOptions(12, 4).max_norm(1)));
  auto bags = std::make_shared<Words<EmbeddingBag>>(EmbeddingBag(EmbeddingBagOptions(12, 4).max_norm(1)));
  expect_refused(communicator, "the Embedding 'table'", [&] { accelerator.prepare(words); });
  expect_refused(communicator, "the EmbeddingBag 'table'", [&] { accelerator.prepare(bags); });
  expect_refused(communicator, "the Embedding 'table'", [&] { DistributedDataParallel(*words, communicator); });

  // Right: without max_norm, with a frozen weight, and where ranks may differ.
  auto plain = std::make_shared<Words<Embedding>>(Embedding(12, 4));
  accelerator.prepare(plain);
  auto frozen = std::make_shared<Words<Embedding>>(Embedding(EmbeddingOptions(12, 4).max_norm(1)));
  frozen->table->weight.requires_grad_(false);
  accelerator.prepare(frozen);
  Accelerator unchecked({.check_replicas = false, .communicator = communicator});
  unchecked.prepare(words);
});
TEST(RankDependentLayers, EmbeddingsWithMaxNormAreRefusedOnSeveralRanks) {
  tables.on_threads({1, 2, 3});
}

torch::jit::Module table_of_script(bool in_graph) {
  torch::jit::Module layer("__torch__.Table");
  layer.register_attribute("training", c10::BoolType::get(), true);
  layer.register_parameter("weight", random_tensor({12, 4}, 1).requires_grad_(), /*is_buffer=*/false);
  if (!in_graph) {
    layer.register_attribute("max_norm", c10::FloatType::get(), 1.0);
    layer.define("def forward(self, x):\n    return torch.embedding(self.weight, x)\n");
    return layer;
  }
  layer.define(R"(
    def forward(self, x):
        torch.embedding_renorm_(self.weight.detach(), x, 1.0, 2.0)
        return torch.embedding(self.weight, x)
  )");
  return layer;
}

const RankCase scripts("rank_dependent_scripts", [](const Communicator& communicator) {
  Accelerator accelerator({.communicator = communicator});
  for (const bool in_graph : {false, true}) {
    auto module = std::make_shared<JitModule>(table_of_script(in_graph));
    expect_refused(communicator, "the scripted layer", [&] { accelerator.prepare(module); });
  }
});
TEST(RankDependentLayers, ScriptsWithMaxNormAreRefusedOnSeveralRanks) {
  scripts.on_threads({1, 2});
}

// On one rank forward may write parameters between the passes of a step.
TEST(RankDependentLayers, MaxNormTrainsOnOneRankWithAccumulation) {
  const auto trained = [](bool prepared) {
    Embedding table(EmbeddingOptions(12, 4).max_norm(0.5));
    fill(*table, 3);
    const auto loss = [&table](std::int64_t i) { return table(at::tensor({i % 12, (i + 5) % 12})).square().sum() / 2; };
    torch::optim::SGD sgd(table->parameters(), 0.1);
    if (!prepared) {
      for (std::int64_t i = 0; i < 8; ++i) {
        loss(i).backward();
        if (i % 2 == 0) continue;
        sgd.step();
        sgd.zero_grad();
      }
      return table->weight.detach().clone();
    }
    Accelerator accelerator({.gradient_accumulation_steps = 2, .communicator = Communicator()});
    auto [model, optimizer] = accelerator.prepare(table, sgd);
    for (std::int64_t i = 0; i < 8; ++i) {
      const auto window = accelerator.accumulate(model);
      accelerator.backward(loss(i) * 2);
      optimizer.step();
      optimizer.zero_grad();
    }
    return model->weight.detach().clone();
  };
  EXPECT_TRUE(at::allclose(trained(true), trained(false)));
}

/// Normalizes its weight in place before use, as weight standardization does.
struct NormalizedImpl : torch::nn::Module {
  at::Tensor loss(std::int64_t index) {
    {
      const at::NoGradGuard no_grad;
      weight.sub_(weight.mean()).div_(weight.std());
    }
    const Batch batch = batch_of(index);
    return loss_of(at::linear(batch.input, weight, bias), batch.target);
  }
  at::Tensor weight = register_parameter("weight", random_tensor({3, 6}, 8));
  at::Tensor bias = register_parameter("bias", at::zeros({3}));
};
TORCH_MODULE(Normalized);

// Forward writes the same values on all ranks, so no rank differs.
const RankCase normalized("rank_dependent_normalized", [](const Communicator& communicator) {
  Accelerator accelerator({.gradient_accumulation_steps = 2, .communicator = communicator});
  Normalized net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  for (std::int64_t i = 0; i < 8; ++i) {
    const auto window = accelerator.accumulate(model);
    accelerator.backward(model->loss(i * communicator.size() + communicator.rank()));
    optimizer.step();
    optimizer.zero_grad();
  }
});
TEST(RankDependentLayers, WeightsThatForwardNormalizesAlikeAreAllowed) {
  normalized.on_threads({1, 2, 3});
}

/// Clips its weight by the rank's own batch.
struct ClippedImpl : NormalizedImpl {
  at::Tensor loss(std::int64_t index) {
    {
      const at::NoGradGuard no_grad;
      weight.clamp_(-batch_of(index).input.max(), batch_of(index).input.max());
    }
    return NormalizedImpl::loss(index);
  }
};
TORCH_MODULE(Clipped);

const RankCase clipped("rank_dependent_clipped", [](const Communicator& communicator) {
  Accelerator accelerator({.communicator = communicator});
  Clipped net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  std::string message;
  try {
    for (std::int64_t i = 0; i < 8; ++i) {
      model->weight.data().select(0, 0).fill_(10);
      model->loss(i * communicator.size() + communicator.rank()).backward();
      optimizer.step();
      optimizer.zero_grad();
    }
  } catch (const MismatchError& error) {
    message = error.what();
  }
  EXPECT_NE(message.find("'weight' of rank 1 differs from that of rank 0. Either forward writes it"), std::string::npos)
      << message;
});
TEST(RankDependentLayers, WeightsThatForwardWritesFromOwnDataAreFoundWithTheCause) {
  clipped.on_threads({2, 3});
}

}  // namespace
}  // namespace tutti::test::rank_dependent_layers_test
