// Ranks whose loops are at different batches: an error if a rank has skipped one, and none where they may differ.
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <string>

#include "data/streams.h"
#include "support/rank_case.h"
#include "train/training_run.h"
#include "tutti/core/error.h"
#include "tutti/train/accelerator.h"
#include "tutti/train/dispatch_batches.h"
#include "tutti/train/local_sgd.h"

namespace tutti::test::batch_positions_test {
namespace {

struct Training {
  explicit Training(const Communicator& communicator, int accumulation = 1)
      : accelerator({.gradient_accumulation_steps = accumulation, .communicator = communicator}),
        optimizer(std::get<1>(accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.01)))) {}
  void step(const Batch& batch) {
    accelerator.backward(loss_of(net->forward(batch.input), batch.target));
    optimizer.step();
    optimizer.zero_grad();
  }
  void step(std::int64_t index) { step(batch_of(index)); }

  Mlp net;
  Accelerator accelerator;
  Optimizer optimizer;
};

/// Runs `loop` and returns its MismatchError.
template <typename Loop>
std::string mismatch_of(const Loop& loop) {
  try {
    loop();
  } catch (const MismatchError& error) {
    return error.what();
  }
  return "no error";
}

const RankCase skipped("batch_positions_skipped", [](const Communicator& communicator) {
  const int last = communicator.size() - 1;
  for (const bool shuffle : {false, true}) {
    Training training(communicator);
    auto other = training.accelerator.data_loader(Samples{6}, {.batch_size = 1});
    auto loader =
        training.accelerator.data_loader(Samples{12 * communicator.size()}, {.batch_size = 2, .shuffle = shuffle});
    int steps = 0;
    const std::string why = mismatch_of([&] {
      for (int epoch = 0; epoch < 2; ++epoch) {
        int batch = 0;
        for (auto& samples : loader) {
          if (epoch == 1 && batch++ == 3 && communicator.rank() == last) continue;
          training.step(samples);
          ++steps;
        }
      }
    });
    EXPECT_EQ(steps, 6 + 3);
    const std::string epoch = shuffle ? " of epoch 1" : "";
    EXPECT_NE(why.find("rank 0 is at batch 3" + epoch + " of data loader 1, rank " + std::to_string(last) +
                       " at batch 4" + epoch),
              std::string::npos)
        << why;
  }
});
TEST(BatchPositions, ASkippedBatchIsAnErrorOnAllRanks) {
  skipped.on_threads({2, 3});
}

const RankCase in_a_window("batch_positions_in_a_window", [](const Communicator& communicator) {
  Training training(communicator, 2);
  auto loader = training.accelerator.data_loader(Samples{16 * communicator.size()}, {.batch_size = 2});
  const std::string why = mismatch_of([&] {
    int batch = 0;
    for (auto& samples : loader) {
      if (batch++ == 2 && communicator.rank() == 0) continue;
      const auto window = training.accelerator.accumulate(training.net);
      training.step(samples);
    }
  });
  EXPECT_NE(why.find("rank 0 is at batch 4 of data loader 0, rank 1 at batch 3"), std::string::npos) << why;
});
TEST(BatchPositions, ASkippedMicroBatchIsAnErrorOnAllRanks) {
  in_a_window.on_threads({2});
}

const RankCase left_early("batch_positions_left_early", [](const Communicator& communicator) {
  Training training(communicator);
  auto loader = training.accelerator.data_loader(Samples{8 * communicator.size()}, {.batch_size = 2, .shuffle = true});
  const std::string why = mismatch_of([&] {
    for (int epoch = 0; epoch < 2; ++epoch) {
      for (auto& samples : loader) {
        training.step(samples);
        if (communicator.rank() == 1 && epoch == 0) break;
      }
    }
  });
  EXPECT_NE(why.find("rank 0 is at batch 1 of epoch 0 of data loader 0, rank 1 at batch 0 of epoch 1"),
            std::string::npos)
      << why;
});
TEST(BatchPositions, ALoopThatOneRankLeavesIsAnErrorOnAllRanks) {
  left_early.on_threads({2});
}

// ---- loops in which ranks may be at different batches, or in which nothing is wrong

const RankCase uneven("batch_positions_uneven", [](const Communicator& communicator) {
  Training training(communicator);
  auto loader = training.accelerator.data_loader(Samples{4 * communicator.size() + 1},
                                                 {.batch_size = 2, .shuffle = true, .even_batches = false});
  const auto join = training.accelerator.join_uneven_inputs();
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (auto& samples : loader) {
      const auto window = training.accelerator.accumulate(training.net);
      training.step(samples);
    }
  }
});

const RankCase weights("batch_positions_weights", [](const Communicator& communicator) {
  Training training(communicator);
  auto loader = training.accelerator.data_loader(Samples{16 * communicator.size()}, {.batch_size = 2});
  int batch = 0;
  for (auto& samples : loader) {
    // Each rank leaves out another batch.
    if (batch++ == communicator.rank()) continue;
    const auto window = training.accelerator.accumulate(training.net, {.weight = 3});
    training.step(samples);
    if (batch == 7) break;
  }
});

const RankCase by_choice("batch_positions_by_choice", [](const Communicator& communicator) {
  const bool other = communicator.rank() == 1;
  for (const bool iterators : {false, true}) {
    Training training(communicator);
    auto a = training.accelerator.data_loader(Samples{40}, {.batch_size = 1, .shuffle = true});
    auto b = training.accelerator.data_loader(Samples{40}, {.batch_size = 1, .shuffle = true});
    if (iterators) {
      auto from_a = a.begin(), from_b = b.begin();
      for (int step = 0; step < 6; ++step) {
        auto& from = other && step % 3 == 1 ? from_b : from_a;
        training.step(*from);
        ++from;
      }
      continue;
    }
    for (int step = 0; step < 6; ++step) {
      auto& from = other && step % 3 == 1 ? b : a;
      for (auto& samples : from) {
        training.step(samples);
        break;
      }
    }
  }
});

const RankCase evaluation("batch_positions_evaluation", [](const Communicator& communicator) {
  Training training(communicator);
  auto loader = training.accelerator.data_loader(Samples{8 * communicator.size()}, {.batch_size = 2, .shuffle = true});
  auto held_out = training.accelerator.data_loader(Samples{9}, {.batch_size = 2, .even_batches = false});
  DataLoader<Samples> own(Samples{5}, {.batch_size = 1});
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (auto& samples : loader) {
      training.step(samples);
      if (communicator.rank() == 0) {
        for (auto& batch : own) loss_of(training.net->forward(batch.input), batch.target);
      }
      for (auto& batch : held_out) {
        loss_of(training.net->forward(batch.input), batch.target);
        if (communicator.rank() == 0) break;
      }
    }
  }
  // A rank's own loader in the loop over its own data.
  for (auto& batch : own) training.step(batch);
});

const RankCase peeked("batch_positions_peeked", [](const Communicator& communicator) {
  Training training(communicator);
  auto loader = training.accelerator.data_loader(Samples{8 * communicator.size()}, {.batch_size = 2});
  // Every epoch of a loader that does not shuffle has the same batches.
  const std::int64_t first = communicator.rank() == 0 ? loader.begin()->input.size(0) : 2;
  EXPECT_EQ(first, 2);
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (auto& samples : loader) training.step(samples);
  }
});

const RankCase streams("batch_positions_streams", [](const Communicator& communicator) {
  Training training(communicator);
  auto stream = training.accelerator.data_loader(Counting(24 * communicator.size()), {.batch_size = 4});
  for (auto& numbers : stream) training.step(numbers.front());
  auto dispatched = training.accelerator.data_loader(DispatchedStream(Counting(24), communicator), {.batch_size = 4});
  for (auto& numbers : dispatched) training.step(numbers.front());
});

const RankCase local("batch_positions_local", [](const Communicator& communicator) {
  Training training(communicator);
  auto loader = training.accelerator.data_loader(Samples{32 * communicator.size()}, {.batch_size = 2});
  LocalSGD local_sgd(training.accelerator, training.net, {.local_sgd_steps = 2});
  int batch = 0;
  for (auto& samples : loader) {
    ++batch;
    if (batch == 2 && communicator.rank() == 0) continue;
    training.step(samples);
    local_sgd.step();
    if (batch == (communicator.rank() == 0 ? 5 : 4)) local_sgd.finish();
    if (batch == (communicator.rank() == 0 ? 9 : 8)) break;
  }
});

const RankCase resumed("batch_positions_resumed", [](const Communicator& communicator) {
  const TemporaryFolder scratch;
  const std::string folder = communicator.broadcast_object(scratch.path().string()) + "/saved";
  for (const bool resumes : {false, true}) {
    Training training(communicator);
    auto loader =
        training.accelerator.data_loader(Samples{8 * communicator.size()}, {.batch_size = 2, .shuffle = true});
    if (resumes) training.accelerator.load_state(folder);
    int steps = 0;
    for (auto& samples : loader) {
      training.step(samples);
      if (!resumes && ++steps == 2) training.accelerator.save_state({.folder = folder});
    }
    for (auto& samples : loader) training.step(samples);
  }
  communicator.barrier().wait();
});

TEST(BatchPositions, AreNoErrorWhereRanksMayDiffer) {
  for (const RankCase* one : {&uneven, &weights, &by_choice, &evaluation, &peeked, &streams, &local, &resumed}) {
    SCOPED_TRACE(one->program().name());
    one->on_threads({1, 2, 3});
  }
}

}  // namespace
}  // namespace tutti::test::batch_positions_test
