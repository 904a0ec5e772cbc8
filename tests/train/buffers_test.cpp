// Buffers of models after steps: when they are synchronized, and what a step leaves alone. 1 to 3 ranks as threads.
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "support/rank_case.h"
#include "support/training.h"
#include "train/model_buffers.h"
#include "tutti/core/error.h"
#include "tutti/train/accelerator.h"

namespace tutti::test::buffers_test {
namespace {

using torch::nn::BatchNorm1d;
using torch::nn::BatchNormOptions;
using torch::nn::Linear;

/// A layer with BatchNorm. Without affine parameters its statistics belong to this layer.
struct HalfImpl : torch::nn::Module {
  HalfImpl()
      : linear(register_module("linear", Linear(6, 4))),
        norm(register_module("norm", BatchNorm1d(BatchNormOptions(4)))),
        plain(register_module("plain", BatchNorm1d(BatchNormOptions(4).affine(false)))) {}
  at::Tensor forward(const at::Tensor& x) { return plain(norm(linear(x)).tanh()); }
  Linear linear{nullptr};
  BatchNorm1d norm{nullptr};
  BatchNorm1d plain{nullptr};
};
TORCH_MODULE(Half);

/// Two halves whose losses come from one forward, and statistics of the whole.
struct HalvesImpl : torch::nn::Module {
  HalvesImpl()
      : a(register_module("a", Half())),
        b(register_module("b", Half())),
        both(register_module("both", BatchNorm1d(BatchNormOptions(6).affine(false)))) {
    fill(*this, 2);
  }
  std::pair<at::Tensor, at::Tensor> losses(std::int64_t index) {
    const at::Tensor x = both(batch_of(index).input) * scale;
    return {a(x).pow(3).mean(), b(x).pow(3).mean()};
  }
  Half a{nullptr};
  Half b{nullptr};
  BatchNorm1d both{nullptr};
  at::Tensor scale = register_buffer("scale", at::arange(1, 7, at::kFloat));
};
TORCH_MODULE(Halves);

AcceleratorOptions options_of(const Communicator& communicator, BufferSync how, SyncPolicy policy) {
  return {.sync_policy = policy, .buffer_sync = how, .communicator = communicator};
}

constexpr std::int64_t steps = 3;

/// The parameters of one process that sees the batches of `ranks` ranks. Statistics of batches are those of each rank's
/// batch, as in data-parallel training.
std::vector<at::Tensor> trained_alone(int ranks) {
  Halves net;
  torch::optim::SGD first(net->a->parameters(), 0.1);
  torch::optim::SGD second(net->b->parameters(), 0.1);
  for (std::int64_t step = 0; step < steps; ++step) {
    for (int rank = 0; rank < ranks; ++rank) {
      const auto [a, b] = net->losses(step * ranks + rank);
      ((a + b) / ranks).backward();
    }
    first.step();
    second.step();
    net->zero_grad();
  }
  return net->parameters();
}

void expect_equal_buffers(const Communicator& communicator, const torch::nn::Module& module) {
  for (const auto& item : module.named_buffers()) {
    const at::Tensor of_rank_0 = item.value().clone();
    communicator.broadcast(of_rank_0, 0).wait();
    EXPECT_TRUE(at::equal(of_rank_0, item.value())) << item.key();
  }
}

template <typename Check>
void for_each_mode(const Check& check) {
  for (const auto how : {BufferSync::broadcast, BufferSync::mean}) {
    for (const auto policy : {SyncPolicy::every_pass, SyncPolicy::manual, SyncPolicy::automatic}) check(how, policy);
  }
}

const RankCase two_optimizers("buffers_two_optimizers", [](const Communicator& communicator) {
  for_each_mode([&](BufferSync how, SyncPolicy policy) {
    Accelerator accelerator(options_of(communicator, how, policy));
    Halves net;
    auto [model, first, second] = accelerator.prepare(net, torch::optim::SGD(net->a->parameters(), 0.1),
                                                      torch::optim::SGD(net->b->parameters(), 0.1));
    for (std::int64_t step = 0; step < steps; ++step) {
      const auto [a, b] = model->losses(step * communicator.size() + communicator.rank());
      a.backward();
      first.step();
      b.backward();
      second.step();
      first.zero_grad();
      second.zero_grad();
    }
    EXPECT_TRUE(close(model->parameters(), trained_alone(communicator.size()), 1e-5));
    expect_equal_buffers(communicator, *model);
  });
});
TEST(Buffers, AStepBetweenTwoPassesOfOneForwardLeavesTheGraphAlone) {
  two_optimizers.on_threads({1, 2, 3});
}

const RankCase scopes("buffers_scopes", [](const Communicator& communicator) {
  for (const auto how : {BufferSync::broadcast, BufferSync::mean}) {
    Accelerator accelerator(options_of(communicator, how, SyncPolicy::automatic));
    Halves net;
    auto [model, first, second] = accelerator.prepare(net, torch::optim::SGD(net->a->parameters(), 0.1),
                                                      torch::optim::SGD(net->b->parameters(), 0.1));
    for (std::int64_t step = 0; step < steps; ++step) {
      const auto scope = accelerator.accumulate(model);
      const auto [a, b] = model->losses(step * communicator.size() + communicator.rank());
      accelerator.backward(a);
      first.step();
      accelerator.backward(b);
      second.step();
      first.zero_grad();
      second.zero_grad();
    }
    EXPECT_TRUE(close(model->parameters(), trained_alone(communicator.size()), 1e-5));
    expect_equal_buffers(communicator, *model);
  }
});
TEST(Buffers, AStepInAScopeLeavesTheGraphAlone) {
  scopes.on_threads({1, 2, 3});
}

// One optimizer: a step changes only parameters that have a gradient.
const RankCase one_optimizer("buffers_one_optimizer", [](const Communicator& communicator) {
  for_each_mode([&](BufferSync how, SyncPolicy policy) {
    Accelerator accelerator(options_of(communicator, how, policy));
    Halves net;
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    for (std::int64_t step = 0; step < steps; ++step) {
      const auto [a, b] = model->losses(step * communicator.size() + communicator.rank());
      for (const at::Tensor& loss : {a, b}) {
        loss.backward();
        optimizer.step();
        optimizer.zero_grad();
      }
    }
    EXPECT_TRUE(close(model->parameters(), trained_alone(communicator.size()), 1e-5));
    expect_equal_buffers(communicator, *model);
  });
});
TEST(Buffers, AStepWithHalfOfTheGradientsLeavesTheOtherHalfsGraphAlone) {
  one_optimizer.on_threads({1, 2, 3});
}

const RankCase ignored_layer("buffers_ignored_layer", [](const Communicator& communicator) {
  for_each_mode([&](BufferSync how, SyncPolicy policy) {
    AcceleratorOptions options = options_of(communicator, how, policy);
    options.ignored_parameters = {"b"};
    Accelerator accelerator(options);
    Halves net;
    auto [model, first, second] = accelerator.prepare(net, torch::optim::SGD(net->a->parameters(), 0.1),
                                                      torch::optim::SGD(net->b->parameters(), 0.1));
    for (std::int64_t step = 0; step < steps; ++step) {
      const auto [a, b] = model->losses(step * communicator.size() + communicator.rank());
      (a + b).backward();
      first.step();
      second.step();
      first.zero_grad();
      second.zero_grad();
      expect_equal_buffers(communicator, *model);
    }
  });
});
TEST(Buffers, ThoseOfIgnoredLayersAreSynchronizedToo) {
  ignored_layer.on_threads({2, 3});
}

const RankCase versions("buffers_versions", [](const Communicator& communicator) {
  Accelerator accelerator({.communicator = communicator});
  Halves net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  const auto [a, b] = model->losses(communicator.rank());
  (a + b).backward();
  const auto statistics = model->a->norm->running_mean._version();
  const auto constant = model->scale._version();
  optimizer.step();
  expect_equal_buffers(communicator, *model);
  EXPECT_EQ(model->a->norm->running_mean._version(), statistics);
  EXPECT_EQ(model->scale._version(), constant);
  // A buffer that differs between ranks is written, and a graph that needs it notices.
  if (communicator.rank() > 0) model->scale.mul_(2);
  const auto before = model->scale._version();
  optimizer.zero_grad();
  const auto [c, d] = model->losses(communicator.rank());
  (c + d).backward();
  optimizer.step();
  expect_equal_buffers(communicator, *model);
  EXPECT_EQ(model->scale._version(), before + (communicator.rank() > 0 ? 1 : 0));
});
TEST(Buffers, AreWrittenOnlyWhereTheyDiffer) {
  versions.on_threads({1, 2, 3});
}

std::set<std::string> names_of(const std::vector<ModelBuffer>& buffers) {
  std::set<std::string> names;
  for (const ModelBuffer& buffer : buffers) names.insert(buffer.named.name);
  return names;
}

/// A schedule in which optimizer 0 trains `a` and optimizer 1 trains `b`.
BufferSchedule schedule_of(const Halves& net) {
  BufferSchedule schedule;
  schedule.add(net.ptr(), nullptr, [&net](const std::vector<at::Tensor>& parameters) {
    std::set<BufferSchedule::OptimizerIndex> found;
    for (const at::Tensor& parameter : parameters) {
      for (const at::Tensor& of_a : net->a->parameters()) {
        if (of_a.is_same(parameter)) found.insert(0);
      }
      for (const at::Tensor& of_b : net->b->parameters()) {
        if (of_b.is_same(parameter)) found.insert(1);
      }
    }
    return found;
  });
  return schedule;
}

TEST(BufferSchedule, SynchronizesABufferWhenTheLastOptimizerOfItsLayerHasStepped) {
  const Halves net;
  const std::set<std::string> of_a{"a.norm.running_mean",  "a.norm.running_var",  "a.norm.num_batches_tracked",
                                   "a.plain.running_mean", "a.plain.running_var", "a.plain.num_batches_tracked"};
  const std::set<std::string> of_both{"scale", "both.running_mean", "both.running_var", "both.num_batches_tracked"};
  BufferSchedule schedule = schedule_of(net);
  EXPECT_TRUE(schedule.concerns(0));
  EXPECT_TRUE(schedule.concerns(1));
  EXPECT_FALSE(schedule.concerns(2));
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(names_of(schedule.after_step(0)), of_a);
    std::set<std::string> rest = names_of(schedule.after_step(1));
    EXPECT_EQ(rest.size(), of_a.size() + of_both.size());
    for (const std::string& name : of_both) EXPECT_TRUE(rest.contains(name)) << name;
  }
}

TEST(BufferSchedule, DoesNotWaitForAnOptimizerThatDoesNotStep) {
  const Halves net;
  BufferSchedule schedule = schedule_of(net);
  EXPECT_FALSE(names_of(schedule.after_step(0)).contains("scale"));
  EXPECT_TRUE(names_of(schedule.after_step(0)).contains("scale"));
  EXPECT_TRUE(names_of(schedule.after_step(0)).contains("scale"));
  EXPECT_TRUE(names_of(schedule.after_step(1)).contains("scale"));
}

struct CachedImpl : torch::nn::Module {
  explicit CachedImpl(at::IntArrayRef shape) : cache(register_buffer("cache", at::zeros(shape))) {}
  at::Tensor forward(const at::Tensor& x) { return linear(x); }
  at::Tensor cache;
  Linear linear = register_module("linear", Linear(6, 3));
};
TORCH_MODULE(Cached);

template <typename Call>
std::string mismatch_of(const Call& call) {
  try {
    call();
  } catch (const MismatchError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

void expect_names_the_buffer(const std::string& message, const std::string& first, const std::string& other) {
  for (const std::string& part : {std::string("'cache'"), first + " on rank 0", other + " on rank 1",
                                  std::string("buffer_sync"), std::string("BufferSync::none")}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
  }
}

const RankCase shapes("buffers_shapes", [](const Communicator& communicator) {
  const bool last = communicator.rank() == 1;
  // Equal numbers of elements, and different ones.
  for (const std::vector<std::int64_t>& other : {std::vector<std::int64_t>{3, 2}, std::vector<std::int64_t>{7}}) {
    Accelerator accelerator({.communicator = communicator});
    Cached net(last ? other : std::vector<std::int64_t>{2, 3});
    expect_names_the_buffer(mismatch_of([&] { accelerator.prepare(net); }), "Float[2, 3]",
                            other.size() == 1 ? "Float[7]" : "Float[3, 2]");

    // Ranks may keep their own.
    Accelerator separate({.buffer_sync = BufferSync::none, .communicator = communicator});
    Cached own(last ? other : std::vector<std::int64_t>{2, 3});
    own->cache.fill_(communicator.rank());
    auto [model, optimizer] = separate.prepare(own, torch::optim::SGD(own->parameters(), 0.1));
    model->forward(batch_of(0).input).sum().backward();
    optimizer.step();
    EXPECT_TRUE(at::equal(model->cache, at::full_like(model->cache, communicator.rank())));
  }
});
TEST(Buffers, OfOtherShapesAreNamedInPrepare) {
  shapes.on_threads({2});
}

const RankCase grown("buffers_grown", [](const Communicator& communicator) {
  for (const auto how : {BufferSync::broadcast, BufferSync::mean}) {
    Accelerator accelerator({.buffer_sync = how, .communicator = communicator});
    Cached net(std::vector<std::int64_t>{2, 3});
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    model->forward(batch_of(0).input).sum().backward();
    if (communicator.rank() == 1) model->cache.set_data(at::zeros({3, 2}));
    expect_names_the_buffer(mismatch_of([&] { optimizer.step(); }), "Float[2, 3]", "Float[3, 2]");
    EXPECT_FALSE(communicator.failed());
  }
});
TEST(Buffers, WhoseShapeChangesOnOneRankAreNamedInTheStep) {
  grown.on_threads({2});
}

// An expanded buffer is one value in memory.
const RankCase expanded("buffers_expanded", [](const Communicator& communicator) {
  Accelerator accelerator({.communicator = communicator});
  Cached net(std::vector<std::int64_t>{1});
  net->cache.set_data(at::full({1}, static_cast<double>(communicator.rank()), at::kFloat).expand({5}));
  accelerator.prepare(net);
  EXPECT_TRUE(at::equal(net->cache, at::zeros({5})));
});
TEST(Buffers, MayBeExpanded) {
  expanded.on_threads({1, 2, 3});
}

}  // namespace
}  // namespace tutti::test::buffers_test
