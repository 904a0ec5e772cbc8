// Scripted models through the Accelerator, on 1, 2 and 3 ranks.
#include "tutti/train/jit_module.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/optim/sgd.h>
#include <torch/script.h>

#include <future>

#include "optim/refused.h"
#include "support/rank_case.h"
#include "support/temporary_folder.h"
#include "support/training.h"
#include "tutti/core/error.h"
#include "tutti/train/accelerator.h"

namespace tutti::test::jit_module_test {
namespace {

torch::jit::Module make_layer(const std::shared_ptr<torch::jit::CompilationUnit>& unit, std::int64_t inputs,
                              std::int64_t outputs, std::uint64_t seed) {
  torch::jit::Module layer("__torch__.Layer", unit, /*shouldMangle=*/true);
  layer.register_attribute("training", c10::BoolType::get(), true);
  layer.register_parameter("weight", random_tensor({inputs, outputs}, seed).requires_grad_(), /*is_buffer=*/false);
  layer.register_parameter("bias", random_tensor({outputs}, seed + 1).requires_grad_(), /*is_buffer=*/false);
  layer.register_buffer("seen", at::zeros({}));
  layer.define(R"(
    def forward(self, x):
        if self.training:
            self.seen.add_(x.size(0))
        return torch.addmm(self.bias, x, self.weight)
  )");
  return layer;
}

/// Two layers and a factor that is not trained.
torch::jit::Module make_script(std::uint64_t seed = 1) {
  torch::jit::Module script("__torch__.Net");
  const auto unit = script._ivalue()->compilation_unit();
  script.register_attribute("training", c10::BoolType::get(), true);
  script.register_parameter("factor", at::full({}, 0.5), /*is_buffer=*/false);
  script.register_module("first", make_layer(unit, 6, 8, seed));
  script.register_module("second", make_layer(unit, 8, 3, seed + 2));
  script.define(R"(
    def forward(self, x):
        return self.second.forward(torch.tanh(self.first.forward(x))) * self.factor
  )");
  return script;
}

template <typename List>
std::vector<std::string> names_of(const List& list) {
  std::vector<std::string> names;
  for (const auto& item : list) names.push_back(item.name);
  return names;
}

std::vector<at::Tensor> copies(const torch::jit::Module& script) {
  std::vector<at::Tensor> tensors;
  for (const at::Tensor& parameter : script.parameters()) tensors.push_back(parameter.detach().clone());
  for (const at::Tensor& buffer : script.buffers()) tensors.push_back(buffer.clone());
  return tensors;
}

void expect_equal(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(at::equal(actual[i], expected[i])) << i;
}

TEST(JitModule, HasTheScriptsNamesAndTensors) {
  const auto script = make_script();
  const JitModule module(script);
  EXPECT_EQ(module.named_parameters().keys(),
            (std::vector<std::string>{"factor", "first.weight", "first.bias", "second.weight", "second.bias"}));
  EXPECT_EQ(module.named_parameters().keys(), names_of(script.named_parameters()));
  EXPECT_EQ(module.named_buffers().keys(), names_of(script.named_buffers()));
  for (const auto& parameter : script.named_parameters()) {
    EXPECT_TRUE(parameter.value.is_same(module.named_parameters()[parameter.name])) << parameter.name;
  }
  for (const auto& buffer : script.named_buffers()) {
    EXPECT_TRUE(buffer.value.is_same(module.named_buffers()[buffer.name])) << buffer.name;
  }
  EXPECT_FALSE(module.named_parameters()["factor"].requires_grad());
  EXPECT_TRUE(module.named_parameters()["first.bias"].requires_grad());
}

TEST(JitModule, ListsATiedParameterOnce) {
  auto script = make_script();
  auto second = script.attr("second").toModule();
  second.register_parameter("tied", script.attr("first").toModule().attr("weight").toTensor(), /*is_buffer=*/false);
  const JitModule module(script);
  EXPECT_TRUE(module.named_parameters()["second.tied"].is_same(module.named_parameters()["first.weight"]));
  EXPECT_EQ(module.parameters().size(), 5U);
  EXPECT_EQ(module.parameters(/*recurse=*/false).size(), 1U);
}

TEST(JitModule, HasTheScriptsMode) {
  auto script = make_script();
  script.eval();
  JitModule module(script);
  EXPECT_FALSE(module.is_training());
  module.train();
  EXPECT_TRUE(script.attr("first").toModule().is_training());
  module.named_children()["first"]->eval();
  EXPECT_TRUE(script.is_training());
  EXPECT_FALSE(script.attr("first").toModule().is_training());
  EXPECT_TRUE(script.attr("second").toModule().is_training());
  module.forward(at::ones({4, 6}));
  EXPECT_EQ(module.named_buffers()["first.seen"].item<float>(), 0);
  EXPECT_EQ(module.named_buffers()["second.seen"].item<float>(), 4);
}

TEST(JitModule, ForwardGivesATensorOrWhatTheScriptReturns) {
  auto script = make_script();
  JitModule module(script);
  const at::Tensor input = at::ones({4, 6});
  EXPECT_TRUE(at::equal(module.forward(input), module.forward({input}).toTensor()));
  EXPECT_TRUE(at::equal(module.forward(input), module.forward({}, {{"x", input}}).toTensor()));
  torch::jit::Module pair("__torch__.Pair");
  pair.define("def forward(self, x):\n    return x, x\n");
  JitModule no_tensor(pair);
  EXPECT_THROW(no_tensor.forward(input), UsageError);
  EXPECT_TRUE(no_tensor.forward({input}).isTuple());
}

/// A script that keeps a moving average of its inputs, and multiplies by that of the passes before.
torch::jit::Module make_average(const char* assignment) {
  torch::jit::Module script("__torch__.Average");
  script.register_attribute("training", c10::BoolType::get(), true);
  script.register_parameter("weight", at::full({3}, 2.0).requires_grad_(), /*is_buffer=*/false);
  script.register_buffer("mean", at::ones({3}));
  script.define("def forward(self, x):\n    y = x * self.weight * self.mean\n" + std::string(assignment) +
                "    return y\n");
  return script;
}

TEST(JitModule, KeepsWhatTheScriptAssignsToABuffer) {
  const auto script = make_average("    self.mean = 0.5 * self.mean + 0.5 * x.mean(0)\n");
  torch::jit::Module outer("__torch__.Outer");
  outer.register_module("average", script);
  outer.define("def forward(self, x):\n    return self.average.forward(x)\n");
  JitModule module(outer);
  const at::Tensor mean = module.named_buffers()["average.mean"];
  const at::Tensor first = module.forward(at::full({4, 3}, 5.0));
  EXPECT_TRUE(at::equal(mean, at::full({3}, 3.0)));
  const at::Tensor second = module.forward(at::full({4, 3}, 1.0));
  EXPECT_TRUE(at::equal(mean, at::full({3}, 2.0)));
  EXPECT_TRUE(script.attr("mean").toTensor().is_same(mean));
  (first.sum() + second.sum()).backward();  // each with the average before its pass
  EXPECT_TRUE(at::equal(module.named_parameters()["average.weight"].grad(), at::full({3}, 4 * 5.0 + 4 * 3.0)));
  mean.fill_(10);  // as load_state() does
  EXPECT_TRUE(at::equal(module.forward(at::ones({4, 3})), at::full({4, 3}, 20.0)));
}

TEST(JitModule, ThreadsMayCallAScriptThatAssignsABuffer) {
  JitModule module(make_average("    self.mean = 1.0 * self.mean\n"));
  const at::Tensor mean = module.named_buffers()["mean"];
  std::vector<std::future<void>> threads;
  for (int i = 0; i < 4; ++i) {
    threads.push_back(std::async(std::launch::async, [&module] {
      const at::NoGradGuard no_grad;
      for (int call = 0; call < 200; ++call)
        ASSERT_TRUE(at::equal(module.forward(at::ones({4, 3})), at::full({4, 3}, 2.0)));
    }));
  }
  for (auto& thread : threads) thread.get();
  EXPECT_TRUE(module.script().attr("mean").toTensor().is_same(mean));
}

TEST(JitModule, RefusesAnotherShapeInABuffer) {
  const auto script = make_average("    self.mean = x.mean()\n");
  JitModule module(script);
  try {
    module.forward(at::ones({4, 3}));
    ADD_FAILURE() << "nothing was thrown";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("buffer 'mean'"), std::string::npos) << error.what();
  }
  EXPECT_TRUE(at::equal(script.attr("mean").toTensor(), at::ones({3})));
}

// Conversion before prepare() converts the script's own tensors.
TEST(JitModule, StaysSharedThroughToDtype) {
  const auto script = make_script();
  auto module = std::make_shared<JitModule>(script);
  module->to(at::kDouble);
  for (const auto& parameter : script.named_parameters()) {
    EXPECT_EQ(parameter.value.scalar_type(), at::kDouble);
    EXPECT_TRUE(parameter.value.is_same(module->named_parameters()[parameter.name]));
  }
  Accelerator accelerator({.communicator = Communicator()});
  auto [model, optimizer] = accelerator.prepare(module, torch::optim::SGD(module->parameters(), 0.1));
  const auto before = copies(script);
  const Batch batch = batch_of(0, at::kDouble);
  accelerator.backward(loss_of(model->forward(batch.input), batch.target));
  optimizer.step();
  EXPECT_FALSE(at::equal(copies(script)[1], before[1]));
}

const RankCase trains("jit_module_trains", [](const Communicator& communicator) {
  Accelerator accelerator({.communicator = communicator});
  const TemporaryFolder folder;
  const auto file = (folder.path() / "before.pt").string();
  make_script(1 + static_cast<std::uint64_t>(communicator.rank())).save(file);
  auto script = std::make_shared<JitModule>(torch::jit::load(file));  // equal to rank 0's script after prepare()
  auto [model, optimizer] = accelerator.prepare(script, torch::optim::SGD(script->parameters(), 0.1));

  auto reference = make_script();
  std::vector<at::Tensor> trained;
  for (const at::Tensor& parameter : reference.parameters()) trained.push_back(parameter);
  torch::optim::SGD sgd(trained, 0.1);
  const std::int64_t ranks = communicator.size();
  for (std::int64_t step = 0; step < 4; ++step) {
    sgd.zero_grad();
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const Batch batch = batch_of(step * ranks + rank);
      (loss_of(reference.forward({batch.input}).toTensor(), batch.target) / ranks).backward();
    }
    sgd.step();
    const Batch batch = batch_of(step * ranks + communicator.rank());
    accelerator.backward(loss_of(model->forward(batch.input), batch.target));
    optimizer.step();
    optimizer.zero_grad();
  }
  script->script().save(file);
  const auto saved = torch::jit::load(file);
  EXPECT_TRUE(close({saved.attr("first").toModule().attr("weight").toTensor()}, {trained[1]}, 1e-5));
  EXPECT_TRUE(close(script->parameters(), trained, 1e-5));
  expect_equal(copies(saved), copies(script->script()));
  EXPECT_EQ(saved.attr("first").toModule().attr("seen").toTensor().item<float>(), 16);  // of this rank
});
TEST(JitModule, TrainsAsOnOneProcessAndSavesWhatItLearned) {
  trains.on_threads({1, 2, 3});
  trains.on_processes({2});
}

const RankCase resumes("jit_module_resumes", [](const Communicator& communicator) {
  // Otherwise LibTorch runs optimized code after a script's first passes, which may round differently.
  const torch::jit::GraphOptimizerEnabledGuard as_written(false);
  const std::int64_t ranks = communicator.size();
  std::optional<TemporaryFolder> own;
  if (communicator.rank() == 0) own.emplace();
  const std::string folder = communicator.broadcast_object(own ? (own->path() / "checkpoint").string() : std::string());
  const auto run = [&](std::uint64_t seed, bool resume) {
    Accelerator accelerator({.communicator = communicator});
    auto script = std::make_shared<JitModule>(make_script(seed));
    auto [model, optimizer] = accelerator.prepare(
        script, torch::optim::SGD(script->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)));
    if (resume) accelerator.load_state(folder);
    for (std::int64_t step = resume ? 2 : 0; step < 4; ++step) {
      if (step == 2 && !resume) accelerator.save_state({.folder = folder});
      const Batch batch = batch_of(step * ranks + communicator.rank());
      accelerator.backward(loss_of(model->forward(batch.input), batch.target));
      optimizer.step();
      optimizer.zero_grad();
    }
    auto tensors = copies(script->script());
    if (communicator.rank() > 0) tensors.resize(5);  // buffers are saved for rank 0
    communicator.barrier().wait();
    return tensors;
  };
  const auto uninterrupted = run(1, false);
  expect_equal(run(50, true), uninterrupted);
});
TEST(JitModule, ResumesFromACheckpoint) {
  resumes.on_threads({1, 2});
}

TEST(JitModule, IsRefusedByReproducibleWhileLibTorchOptimizesIt) {
  torch::jit::Module script("__torch__.Scale");
  script.register_parameter("factor", at::ones({}).requires_grad_(), /*is_buffer=*/false);
  script.define("def forward(self, x):\n    return x * self.factor\n");
  Accelerator accelerator({.reproducible = ReproducibleOptions{.micro_batches = 8}, .communicator = Communicator()});
  auto module = std::make_shared<JitModule>(script);
  expect_refused<UsageError>([&] { accelerator.prepare(module); }, "setGraphExecutorOptimize(false)");
  const torch::jit::GraphOptimizerEnabledGuard as_written(false);
  EXPECT_NO_THROW(accelerator.prepare(module));
}

const RankCase sparse_table("jit_module_sparse", [](const Communicator& communicator) {
  const auto make = [] {
    torch::jit::Module script("__torch__.Table");
    script.type()->addConstant("sparse", true);
    script.register_parameter("weight", random_tensor({7, 3}, 1).requires_grad_(), /*is_buffer=*/false);
    script.define("def forward(self, x):\n    return torch.embedding(self.weight, x, -1, False, True)\n");
    return script;
  };
  const auto words_of = [](std::int64_t rank) { return at::tensor({rank, rank + 2, std::int64_t{4}}); };
  Accelerator accelerator({.communicator = communicator});
  auto table = std::make_shared<JitModule>(make());
  auto [model, optimizer] = accelerator.prepare(table, torch::optim::SGD(table->parameters(), 0.1));
  accelerator.backward(model->forward(words_of(communicator.rank())).square().mean());
  EXPECT_EQ(table->parameters()[0].grad().layout(), at::kSparse);
  optimizer.step();

  auto reference = make();
  const std::vector<at::Tensor> trained{reference.attr("weight").toTensor()};
  torch::optim::SGD sgd(trained, 0.1);
  for (std::int64_t rank = 0; rank < communicator.size(); ++rank)
    (reference.forward({words_of(rank)}).toTensor().square().mean() / communicator.size()).backward();
  sgd.step();
  EXPECT_TRUE(close(table->parameters(), trained, 1e-5));
});
TEST(JitModule, TrainsASparseTable) {
  sparse_table.on_threads({1, 2, 3});
}

}  // namespace
}  // namespace tutti::test::jit_module_test
