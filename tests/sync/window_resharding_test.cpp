// An unfinished window is saved, and another reducer continues it. 1 to 3 ranks as threads, 3 as processes.
#include "sync/window_resharding.h"

#include <gtest/gtest.h>

#include <mutex>

#include "support/process_case.h"
#include "support/training.h"
#include "tutti/comm/thread_ranks.h"
#include "tutti/core/error.h"
#include "tutti/detail/sync/sync_scopes.h"
#include "tutti/sync/distributed_data_parallel.h"

namespace tutti::test::window_resharding_test {
namespace {

/// A way to run one pass of a window of `length` passes.
struct WindowKind {
  const char* name;
  ReducerOptions options;
  bool accumulate = false;
  bool sync_each_batch = false;
  bool no_sync = false;
  bool of_split_batch = false;
};

const std::vector<WindowKind>& kinds() {
  static const std::vector<WindowKind> all{
      {.name = "every pass", .options = {}},
      {.name = "no_sync", .options = {}, .no_sync = true},
      {.name = "automatic", .options = {.policy = SyncPolicy::automatic}},
      {.name = "accumulate", .options = {}, .accumulate = true},
      {.name = "sync_each_batch", .options = {}, .accumulate = true, .sync_each_batch = true},
  };
  return all;
}

constexpr int length = 4;

struct Replica {
  Replica(const WindowKind& of, const Communicator& communicator)
      : kind(of),
        reducer(std::make_shared<Reducer>(named_parameters_of(*net), communicator.duplicate("window"), of.options)) {}

  /// Pass number `pass` of a window, on micro-batch `index`.
  void run(int pass, std::int64_t index, double weight) {
    const bool last = pass + 1 == length;
    std::optional<AccumulateScope> window;
    std::optional<NoSyncScope> quiet;
    if (kind.accumulate) {
      window.emplace(std::vector<AccumulateScope::Member>{{.reducer = reducer,
                                                           .step = {.weight = weight,
                                                                    .syncs = last,
                                                                    .sync_each_batch = kind.sync_each_batch,
                                                                    .of_split_batch = kind.of_split_batch}}});
    }
    if (kind.no_sync && !last) quiet.emplace(std::vector{reducer});
    const Batch batch = batch_of(index);
    (loss_of(net->forward(batch.input), batch.target) * (kind.accumulate ? weight : 1.0)).backward();
  }

  void step() {
    reducer->prepare_step();
    const at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : net->parameters()) at::Tensor(parameter).sub_(parameter.grad(), 0.1);
    reducer->on_optimizer_step();
    reducer->clear(true);
  }

  const WindowKind& kind;
  Mlp net;
  std::shared_ptr<Reducer> reducer;
};

std::int64_t index_of(const Communicator& communicator, int window, int pass) {
  return (window * length + pass) * communicator.size() + communicator.rank();
}

bool same_bits(const torch::nn::Module& a, const torch::nn::Module& b) {
  const auto left = a.parameters(), right = b.parameters();
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (!left[i].equal(right[i])) return false;
  }
  return true;
}

void copy_parameters(const torch::nn::Module& from, const torch::nn::Module& to) {
  const at::NoGradGuard no_grad;
  const auto values = from.parameters();
  auto targets = to.parameters();
  for (std::size_t i = 0; i < values.size(); ++i) targets[i].copy_(values[i]);
}

// Runs three windows, so that the automatic policy learns. Resumes before pass `interrupted` of the last window.
void check_resume(const Communicator& communicator, const WindowKind& kind, int interrupted) {
  const auto weight = [](int pass) { return 1.0 + pass; };
  Replica whole(kind, communicator), first(kind, communicator);
  for (int window = 0; window < 3; ++window) {
    for (int pass = 0; pass < length; ++pass) whole.run(pass, index_of(communicator, window, pass), weight(pass));
    whole.step();
    const int until = window == 2 ? interrupted : length;
    for (int pass = 0; pass < until; ++pass) first.run(pass, index_of(communicator, window, pass), weight(pass));
    if (window < 2) first.step();
  }
  const StateDict saved = copy_to_cpu(first.reducer->state_dict());
  Replica second(kind, communicator);
  copy_parameters(*first.net, *second.net);
  second.reducer->load_state_dict(saved);
  for (int pass = interrupted; pass < length; ++pass) {
    second.run(pass, index_of(communicator, 2, pass), weight(pass));
  }
  second.step();
  EXPECT_TRUE(same_bits(*second.net, *whole.net)) << kind.name << " interrupted before pass " << interrupted;
}

TEST(WindowState, AHalfDoneWindowGoesOnToTheSameBits) {
  for (const int size : {1, 2, 3}) {
    run_thread_ranks(size, [](const Communicator& communicator) {
      for (const WindowKind& kind : kinds()) {
        for (int interrupted = 0; interrupted <= length; ++interrupted) check_resume(communicator, kind, interrupted);
      }
    });
  }
}
const ProcessCase half_done("window state: a half-done window", [](const Communicator& communicator) {
  for (const WindowKind& kind : kinds()) check_resume(communicator, kind, 2);
});

// Windows of `before` ranks continue with `after` ranks. The gradient is that of all micro-batches that all ranks read.
void check_redistribution(const WindowKind& kind, int before, int after) {
  const auto weight_of_old = [](int rank) { return 1.0 + rank; };
  std::vector<StateDict> saved(before);
  run_thread_ranks(before, [&](const Communicator& communicator) {
    Replica replica(kind, communicator);
    for (int pass = 0; pass < length - 1; ++pass) {
      replica.run(pass, index_of(communicator, 0, pass), weight_of_old(communicator.rank()));
    }
    saved[communicator.rank()] = copy_to_cpu(replica.reducer->state_dict());
  });

  // One process: without weights an earlier micro-batch has the factor 1 / before, a later one 1 / after.
  Mlp reference;
  double total = 0;
  const auto add = [&](std::int64_t index, double weight, int ranks) {
    const double factor = kind.accumulate ? weight : 1.0 / ranks;
    total += factor;
    const Batch batch = batch_of(index);
    (loss_of(reference->forward(batch.input), batch.target) * factor).backward();
  };
  for (int pass = 0; pass < length - 1; ++pass) {
    for (int rank = 0; rank < before; ++rank) add(pass * before + rank, weight_of_old(rank), before);
  }
  for (int rank = 0; rank < after; ++rank) add(1000 + rank, 2.0, after);
  auto expected = gradients_of(*reference);
  if (kind.accumulate) {
    for (at::Tensor& gradient : expected) gradient.div_(total);
  }

  run_thread_ranks(after, [&](const Communicator& communicator) {
    Replica replica(kind, communicator);
    replica.reducer->load_state_dict(reshard_windows(saved, communicator.rank(), communicator.size()));
    replica.run(length - 1, 1000 + communicator.rank(), 2.0);
    replica.reducer->prepare_step();
    EXPECT_TRUE(close(gradients_of(*replica.net), expected, 1e-5)) << kind.name << ": " << before << " to " << after;
  });
}

TEST(WindowState, MovesToAnotherNumberOfRanks) {
  for (const WindowKind& kind : kinds()) {
    for (const auto& [before, after] : {std::pair{1, 2}, {2, 1}, {2, 3}, {3, 2}, {3, 1}}) {
      check_redistribution(kind, before, after);
    }
  }
}

// Each pass reads a batch that is split over the ranks: a batch weighs 1 on any number of ranks.
TEST(WindowState, PartsOfSplitBatchesKeepTheWeightOfTheirBatch) {
  const WindowKind kind{.name = "accumulate", .options = {}, .accumulate = true, .of_split_batch = true};
  for (const auto& [before, after] : {std::pair{2, 3}, {2, 1}, {3, 2}, {1, 3}}) {
    std::vector<StateDict> saved(before);
    run_thread_ranks(before, [&](const Communicator& communicator) {
      Replica replica(kind, communicator);
      for (int pass = 0; pass < length - 1; ++pass) replica.run(pass, index_of(communicator, 0, pass), 1);
      saved[communicator.rank()] = copy_to_cpu(replica.reducer->state_dict());
    });
    Mlp reference;
    const auto add = [&](std::int64_t index, int ranks) {
      const Batch batch = batch_of(index);
      (loss_of(reference->forward(batch.input), batch.target) / (ranks * length)).backward();
    };
    for (int i = 0; i < (length - 1) * before; ++i) add(i, before);
    for (int rank = 0; rank < after; ++rank) add(1000 + rank, after);
    run_thread_ranks(after, [&](const Communicator& communicator) {
      Replica replica(kind, communicator);
      replica.reducer->load_state_dict(reshard_windows(saved, communicator.rank(), communicator.size()));
      replica.run(length - 1, 1000 + communicator.rank(), 1);
      replica.reducer->prepare_step();
      EXPECT_TRUE(close(gradients_of(*replica.net), gradients_of(*reference), 1e-5)) << before << " to " << after;
    });
  }
}

TEST(WindowState, WeightsOfDifferentUnitsAreRefusedOnAnotherNumberOfRanks) {
  const WindowKind parts{.name = "parts", .options = {}, .accumulate = true, .of_split_batch = true};
  const WindowKind whole{.name = "whole", .options = {}, .accumulate = true};
  run_thread_ranks(1, [&](const Communicator& communicator) {
    Replica first(parts, communicator), second(whole, communicator);
    first.run(0, 0, 1);
    second.run(0, 0, 1);
    std::vector<StateDict> saved{copy_to_cpu(first.reducer->state_dict()), copy_to_cpu(second.reducer->state_dict())};
    EXPECT_THROW(reshard_windows(saved, 0, 1), CheckpointError);
    EXPECT_NO_THROW(reshard_windows(std::vector{saved[0], saved[0]}, 0, 1));
  });
}

// A rank that left out its micro-batches so far has no pass in the window.
TEST(WindowState, AWindowThatSomeRanksHaveNotBegunMovesToo) {
  const WindowKind& kind = kinds()[3];
  std::vector<StateDict> saved(2);
  run_thread_ranks(2, [&](const Communicator& communicator) {
    Replica replica(kind, communicator);
    if (communicator.rank() == 1) replica.run(0, 0, 2);
    saved[communicator.rank()] = copy_to_cpu(replica.reducer->state_dict());
  });
  Mlp reference;
  const Batch batch = batch_of(0);
  loss_of(reference->forward(batch.input), batch.target).backward();
  for (const int after : {1, 3}) {
    run_thread_ranks(after, [&](const Communicator& communicator) {
      Replica replica(kind, communicator);
      replica.reducer->load_state_dict(reshard_windows(saved, communicator.rank(), communicator.size()));
      replica.reducer->prepare_step();
      EXPECT_TRUE(close(gradients_of(*replica.net), gradients_of(*reference), 1e-6)) << after;
    });
  }
}

// Averaged gradients must be averaged again, even if no pass follows.
TEST(WindowState, AWindowThatIsAllButSteppedMovesToo) {
  const WindowKind& kind = kinds()[4];
  std::vector<StateDict> saved(2);
  std::vector<std::vector<at::Tensor>> gradients(2);
  run_thread_ranks(2, [&](const Communicator& communicator) {
    Replica replica(kind, communicator);
    replica.run(0, communicator.rank(), 1);
    saved[communicator.rank()] = copy_to_cpu(replica.reducer->state_dict());
    gradients[communicator.rank()] = gradients_of(*replica.net);
  });
  run_thread_ranks(3, [&](const Communicator& communicator) {
    Replica replica(kind, communicator);
    replica.reducer->load_state_dict(reshard_windows(saved, communicator.rank(), communicator.size()));
    replica.reducer->prepare_step();
    EXPECT_TRUE(close(gradients_of(*replica.net), gradients[0], 1e-6));
  });
}

TEST(WindowState, IsRefusedWhereThereIsNone) {
  run_thread_ranks(1, [](const Communicator& communicator) {
    Replica replica(kinds()[3], communicator);
    const AccumulateScope scope({{.reducer = replica.reducer, .step = {.weight = 1, .syncs = true}}});
    EXPECT_THROW((void)replica.reducer->state_dict(), UsageError);
    EXPECT_THROW(replica.reducer->load_state_dict({}), UsageError);
  });
}

TEST(WindowState, RefusesWhatDoesNotFitAndStaysAsItWas) {
  run_thread_ranks(1, [](const Communicator& communicator) {
    Replica replica(kinds()[1], communicator);
    replica.run(0, 0, 1);
    const StateDict good = copy_to_cpu(replica.reducer->state_dict());
    const auto before = gradients_of(*replica.net);
    const auto refuses = [&](const std::string& name, const StateValue& value) {
      StateDict bad = good;
      bad.set(name, value);
      EXPECT_THROW(replica.reducer->load_state_dict(bad), CheckpointError) << name;
      EXPECT_TRUE(close(gradients_of(*replica.net), before, 0));
    };
    refuses("gradient.no.such.parameter", at::ones({1}));
    refuses("gradient.first.weight", at::ones({1}));
    refuses("gradient.first.weight", std::string("text"));
    refuses("averaged.first.weight", 1.0);
    refuses("window.passes", std::int64_t{-1});
    refuses("window.weighting", std::int64_t{9});
    EXPECT_THROW(replica.reducer->load_state_dict({}), CheckpointError);
    std::vector<StateDict> torn{good, good};
    torn[1].set("window.steps", std::int64_t{7});
    EXPECT_THROW(reshard_windows(torn, 0, 1), CheckpointError);
  });
}

}  // namespace
}  // namespace tutti::test::window_resharding_test
