// Values that differ between ranks with equal models: buffers and registered objects in checkpoints. 1 to 3 ranks.
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "optim/refused.h"
#include "support/rank_case.h"
#include "support/temporary_folder.h"
#include "support/training.h"
#include "train/state_digest.h"
#include "train/training_run.h"
#include "tutti/train/accelerator.h"

namespace tutti::test::saved_by_rank_test {
namespace {

/// Its output depends on a buffer that each pass changes, so that a wrong buffer gives other parameters.
struct NormalizedImpl : torch::nn::Module {
  NormalizedImpl() {
    linear = register_module("linear", torch::nn::Linear(3, 2));
    mean = register_buffer("mean", at::zeros({3}));
    fill(*this, 1);
  }
  at::Tensor forward(const at::Tensor& input) {
    if (is_training()) mean.mul_(0.9).add_(input.detach().mean(0), 0.1);
    return linear(input - mean);
  }
  torch::nn::Linear linear{nullptr};
  at::Tensor mean;
};
TORCH_MODULE(Normalized);

void train(Accelerator& accelerator, Normalized& model, Optimizer& optimizer, std::int64_t from, std::int64_t to) {
  for (std::int64_t pass = from; pass < to; ++pass) {
    const auto seed = static_cast<std::uint64_t>(10 * pass + accelerator.rank());
    const auto scope = accelerator.accumulate(model);
    accelerator.backward(model->forward(random_tensor({4, 3}, seed) + accelerator.rank()).square().mean());
    optimizer.step();
    optimizer.zero_grad();
  }
}

/// Trains to pass `at`, saves, and trains to pass 6: in one run, and in a second one from the checkpoint.
void check_resume(const Communicator& communicator, BufferSync sync, std::int64_t at, const std::string& folder) {
  std::string expected;
  for (const bool resumed : {false, true}) {
    Accelerator accelerator({.gradient_accumulation_steps = 2, .buffer_sync = sync, .communicator = communicator});
    Normalized net;
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    if (resumed) {
      accelerator.load_state(folder);
    } else {
      train(accelerator, model, optimizer, 0, at);
      accelerator.save_state({.folder = folder});
    }
    train(accelerator, model, optimizer, at, 6);
    if (resumed) {
      EXPECT_EQ(bytes_of(*net), expected) << "pass " << at;
    } else {
      expected = bytes_of(*net);
    }
  }
}
const RankCase resumes("buffers_by_rank_resume", [](const Communicator& communicator) {
  const TemporaryFolder scratch;
  const std::string folder = communicator.broadcast_object(scratch.path().string());
  int number = 0;
  for (const BufferSync sync : {BufferSync::broadcast, BufferSync::mean, BufferSync::none}) {
    for (const std::int64_t at : {3, 4}) {  // within a window, and between windows
      check_resume(communicator, sync, at, folder + "/" + std::to_string(number++));
    }
  }
  communicator.barrier().wait();
});
TEST(SavedByRank, TrainingGoesOnToTheSameBitsWithTheBuffersOfEachRank) {
  resumes.everywhere();
}

const RankCase shapes("buffers_by_rank_shapes", [](const Communicator& communicator) {
  const TemporaryFolder scratch;
  const std::filesystem::path folder = communicator.broadcast_object(scratch.path().string());
  Accelerator accelerator({.buffer_sync = BufferSync::none, .communicator = communicator});
  Mlp net;
  const at::Tensor own = net->register_buffer("own", at::full({2 + communicator.rank()}, communicator.rank()));
  accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  accelerator.save_state({.folder = folder / "saved"});
  own.fill_(-1);
  accelerator.load_state(folder / "saved");
  EXPECT_TRUE(own.eq(communicator.rank()).all().item<bool>());
  communicator.barrier().wait();
});
TEST(SavedByRank, BuffersMayHaveTheShapeOfTheirRank) {
  shapes.on_threads({1, 2, 3});
}

TEST(SavedByRank, WhatIsEqualIsSavedOnceAndAnotherNumberOfRanksLoadsRank0s) {
  const TemporaryFolder scratch;
  const auto folder = [&](bool differs) { return scratch.path() / (differs ? "differing" : "equal"); };
  run_thread_ranks(2, [&](const Communicator& communicator) {
    for (const bool differs : {false, true}) {
      Accelerator accelerator({.buffer_sync = BufferSync::none, .communicator = communicator});
      Normalized net;
      accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
      if (differs) net->mean.fill_(communicator.rank() + 1);
      accelerator.save_state({.folder = folder(differs)});
    }
  });
  EXPECT_TRUE(read_checkpoint(folder(false)).per_rank.at(1).part("model").empty());
  const StateDict own = read_checkpoint(folder(true)).per_rank.at(1).part("model");
  EXPECT_EQ(own.values().size(), 1U);
  EXPECT_EQ(own.get<at::Tensor>("mean").mean().item<float>(), 2);

  Accelerator accelerator({.communicator = Communicator()});
  Normalized net;
  accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  testing::internal::CaptureStderr();
  accelerator.load_state(folder(true));
  const std::string output = testing::internal::GetCapturedStderr();
  EXPECT_EQ(net->mean.mean().item<float>(), 1);
  EXPECT_NE(output.find("holds values of 'model' that differed between the 2 ranks that saved it"), std::string::npos)
      << output;
  testing::internal::CaptureStderr();
  accelerator.load_state(folder(false));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

/// A hidden state, for example.
struct Hidden final : Stateful {
  at::Tensor value;
  StateDict state_dict() const override {
    StateDict state;
    state.set("value", value);
    return state;
  }
  void load_state_dict(const StateDict& state) override { value = state.get<at::Tensor>("value"); }
};
TEST(SavedByRank, AnObjectWithoutATensorLoadsTheSavedOne) {
  const TemporaryFolder scratch;
  for (const bool resumed : {false, true}) {
    Accelerator accelerator({.communicator = Communicator()});
    Mlp net;
    accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
    Hidden hidden;
    if (!resumed) hidden.value = at::full({2}, 7);
    accelerator.register_for_checkpointing("hidden", hidden);
    if (resumed) {
      accelerator.load_state(scratch.path() / "saved");
      EXPECT_TRUE(hidden.value.equal(at::full({2}, 7)));
    } else {
      accelerator.save_state({.folder = scratch.path() / "saved"});
    }
  }
}

const RankCase undefined_on_last("saved_by_rank_undefined_on_last", [](const Communicator& communicator) {
  const TemporaryFolder scratch;
  const std::filesystem::path folder = communicator.broadcast_object(scratch.path().string());
  Accelerator accelerator({.communicator = communicator});
  Mlp net;
  accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  Hidden hidden;
  if (communicator.rank() == 0) hidden.value = at::ones({2});
  accelerator.register_for_checkpointing("hidden", hidden);
  expect_refused<UsageError>([&] { accelerator.save_state({.folder = folder / "saved"}); },
                             "'object_hidden.value' to a safetensors file: it is undefined");
  communicator.barrier().wait();
});
TEST(SavedByRank, ATensorThatOneRankLacksIsRefusedOnAllRanks) {
  undefined_on_last.on_threads({2, 3});
}

/// Has a value or none.
struct Optional final : Stateful {
  std::optional<std::int64_t> value{};
  StateDict state_dict() const override {
    StateDict state;
    if (value) state.set("value", *value);
    return state;
  }
  void load_state_dict(const StateDict& state) override {
    value.reset();
    if (state.contains("value")) value = state.get<std::int64_t>("value");
  }
};
const RankCase without_values("saved_by_rank_without_values", [](const Communicator& communicator) {
  const TemporaryFolder scratch;
  const std::filesystem::path folder = communicator.broadcast_object(scratch.path().string());
  Accelerator accelerator({.communicator = communicator});
  Mlp net;
  accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  Optional one;
  accelerator.register_for_checkpointing("one", one);
  for (const int rank : {0, 1}) {
    one.value = communicator.rank() == rank ? std::optional<std::int64_t>(rank) : std::nullopt;
    const auto saved = one.value;
    accelerator.save_state({.folder = folder / std::to_string(rank)});
    one.value = 7;
    accelerator.load_state(folder / std::to_string(rank));
    EXPECT_EQ(one.value, saved);
  }
  communicator.barrier().wait();
});
TEST(SavedByRank, AnObjectWithoutValuesOnARankKeepsNoneThere) {
  without_values.on_threads({1, 2, 3});
}

const RankCase on_one_rank("saved_by_rank_on_one_rank", [](const Communicator& communicator) {
  const TemporaryFolder scratch;
  const std::filesystem::path folder = communicator.broadcast_object(scratch.path().string());
  Accelerator accelerator({.communicator = communicator});
  Mlp net;
  accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  Hidden everywhere, on_last;
  everywhere.value = on_last.value = at::full({2}, communicator.rank());
  accelerator.register_for_checkpointing("everywhere", everywhere);
  if (communicator.rank() == communicator.size() - 1) accelerator.register_for_checkpointing("on_last", on_last);
  accelerator.save_state({.folder = folder / "saved"});
  const StateDict own = read_checkpoint(folder / "saved").per_rank.at(communicator.rank()).part("object_everywhere");
  if (communicator.size() == 1) {
    EXPECT_TRUE(own.empty());
  } else {
    EXPECT_TRUE(own.get<at::Tensor>("value").eq(communicator.rank()).all().item<bool>());
    expect_refused([&] { accelerator.load_state(folder / "saved"); }, "has no 'object_on_last'");
  }
  communicator.barrier().wait();
});
TEST(SavedByRank, AnObjectThatOneRankAloneHasRegisteredIsNamedWhenItIsLoaded) {
  on_one_rank.on_threads({1, 2, 3});
}

TEST(StateDigest, DependsOnEveryNameTypeAndBit) {
  std::vector<StateDict> states(9);
  states[1].set("a", true);
  states[2].set("a", std::int64_t{1});
  states[3].set("b", std::int64_t{1});
  states[4].set("a", at::zeros({2}));
  states[5].set("a", at::zeros({2, 1}));
  states[6].set("a", at::zeros({2}, at::kInt));
  states[7].set("a", at::zeros({2}).neg());
  states[8].set("a", std::vector<double>{0, 0});
  std::set<std::string> digests;
  for (const StateDict& state : states) digests.insert(digest_of(state));
  EXPECT_EQ(digests.size(), states.size());
  EXPECT_EQ(digest_of(states[4]), digest_of(StateDict(states[4])));
}

}  // namespace
}  // namespace tutti::test::saved_by_rank_test
