// Functions for one rank, and scopes that one rank runs first. Accelerate's test_script.py: process execution, trigger,
// splitting.
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <atomic>
#include <future>
#include <stdexcept>

#include "optim/refused.h"
#include "support/rank_case.h"
#include "support/training.h"
#include "tutti/core/error.h"
#include "tutti/train/accelerator.h"

namespace tutti::test::helpers_test {
namespace {

const RankCase triggers("helpers_trigger", [](const Communicator& communicator) {
  Accelerator accelerator({.communicator = communicator});
  EXPECT_FALSE(accelerator.check_trigger());
  if (accelerator.is_main_process()) accelerator.set_trigger();
  EXPECT_TRUE(accelerator.check_trigger());
  EXPECT_FALSE(accelerator.check_trigger());
  if (accelerator.is_last_process()) accelerator.set_trigger();
  accelerator.set_trigger();  // several ranks set it twice, and the check returns true once
  EXPECT_TRUE(accelerator.check_trigger());
  EXPECT_FALSE(accelerator.check_trigger());
});
TEST(Trigger, ReachesAllRanksAndIsResetOnAll) {
  triggers.everywhere();
}

const RankCase executes("helpers_execute", [](const Communicator& communicator) {
  Accelerator accelerator({.communicator = communicator});
  const int rank = accelerator.process_index();
  const bool last = rank + 1 == communicator.size();
  const auto own_rank = [&] { return rank; };
  EXPECT_EQ(accelerator.on_main_process(own_rank), rank == 0 ? std::optional(0) : std::nullopt);
  EXPECT_EQ(accelerator.on_local_main_process(own_rank), rank == 0 ? std::optional(0) : std::nullopt);
  EXPECT_EQ(accelerator.on_last_process(own_rank), last ? std::optional(rank) : std::nullopt);
  for (int one = 0; one < communicator.size(); ++one) {
    int calls = 0;
    accelerator.on_process(one, [&] { ++calls; });
    accelerator.on_local_process(one, [&] { ++calls; });
    EXPECT_EQ(calls, rank == one ? 2 : 0);
  }
  EXPECT_THROW(accelerator.on_process(communicator.size(), [] {}), UsageError);
  EXPECT_THROW(accelerator.on_local_process(-1, [] {}), UsageError);
  const std::vector<int> share = accelerator.split_between_processes(std::vector<int>(5, 1), true);
  EXPECT_EQ(std::ssize(share), (5 + communicator.size() - 1) / communicator.size());
});
TEST(Helpers, FunctionsRunOnTheirRankOnly) {
  executes.everywhere();
}

TEST(Helpers, LocalRanksAreThoseOfANode) {
  run_thread_ranks(
      4,
      [](const Communicator& communicator) {
        Accelerator accelerator({.communicator = communicator});
        EXPECT_EQ(accelerator.is_local_main_process(), accelerator.rank() % 2 == 0);
        int calls = 0;
        accelerator.on_local_process(1, [&] { ++calls; });
        accelerator.on_local_main_process([&] { ++calls; });
        accelerator.on_main_process([&] { ++calls; });
        EXPECT_EQ(calls, accelerator.rank() == 0 ? 2 : 1);
      },
      {.timeout = std::chrono::seconds(30)}, 2);
}

const RankCase seeds("helpers_seed", [](const Communicator& communicator) {
  Accelerator accelerator({.communicator = communicator});
  accelerator.set_seed(5);
  const at::Tensor same = at::rand({4});
  EXPECT_TRUE(accelerator.broadcast(same).equal(same));
  accelerator.set_seed(5);
  EXPECT_TRUE(at::rand({4}).equal(same));
  accelerator.set_seed(5, {.device_specific = true});
  const at::Tensor own = at::rand({4});
  const at::Tensor all = accelerator.gather(own.unsqueeze(0));
  EXPECT_TRUE(all[0].equal(same));
  for (int rank = 1; rank < communicator.size(); ++rank) EXPECT_FALSE(all[rank].equal(same));
});
TEST(Helpers, SeedsAreEqualOrEachRanksOwn) {
  seeds.on_processes({1, 2, 3});  // threads share the generator
}

// ---- main_process_first() and local_main_process_first()

TEST(MainProcessFirst, OthersComeAfterTheMainProcess) {
  for (const int size : {1, 2, 3}) {
    std::atomic<int> inside = 0;
    run_thread_ranks(size,
                     [&](const Communicator& communicator) {
                       Accelerator accelerator({.communicator = communicator});
                       for (int round = 0; round < 3; ++round) {
                         const int before = round * size;
                         {
                           const auto scope = accelerator.main_process_first();
                           const int came = inside++;
                           EXPECT_EQ(came == before, accelerator.is_main_process());
                         }
                         accelerator.wait_for_everyone();
                       }
                     },
                     {.timeout = std::chrono::seconds(30)});
  }
}

TEST(MainProcessFirst, OnEachNodeItsFirstRank) {
  std::atomic<int> firsts = 0;
  run_thread_ranks(
      4,
      [&](const Communicator& communicator) {
        Accelerator accelerator({.communicator = communicator});
        const auto scope = accelerator.local_main_process_first();
        if (accelerator.is_local_main_process()) {
          ++firsts;
        } else {
          EXPECT_EQ(firsts, 2);
        }
      },
      {.timeout = std::chrono::seconds(30)}, 2);
}

const RankCase main_fails("helpers_main_fails", [](const Communicator& communicator) {
  Accelerator accelerator({.communicator = communicator});
  const auto prepare = [&] {
    const auto scope = accelerator.main_process_first({.name = "tokens"});
    if (accelerator.is_main_process()) throw std::runtime_error("no disk");
    ADD_FAILURE() << "the main process has failed";
  };
  if (accelerator.is_main_process()) {
    EXPECT_THROW(prepare(), std::runtime_error);
  } else {
    try {
      prepare();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const PeerError& failure) {
      EXPECT_EQ(failure.ranks(), std::vector<int>{0});
    }
  }
  // All ranks can continue.
  EXPECT_EQ(accelerator.gather(at::ones({1})).size(0), communicator.size());
});
TEST(MainProcessFirst, ItsFailureIsNamedOnTheOthers) {
  main_fails.everywhere();
}

TEST(MainProcessFirst, AMainProcessThatDoesNotReturnIsNamedAtTheDeadline) {
  std::promise<void> others_have_left;
  EXPECT_THROW(run_thread_ranks(2,
                                [&](const Communicator& communicator) {
                                  Accelerator accelerator({.communicator = communicator});
                                  if (accelerator.is_main_process()) {
                                    const auto scope = accelerator.main_process_first();
                                    others_have_left.get_future().wait();
                                    return;  // throws where the scope ends
                                  }
                                  try {
                                    const auto scope =
                                        accelerator.main_process_first({.timeout = std::chrono::milliseconds(300)});
                                    ADD_FAILURE() << "no rank ran the scope first";
                                  } catch (const TimeoutError& timeout) {
                                    EXPECT_EQ(timeout.ranks(), std::vector<int>{0});
                                  }
                                  others_have_left.set_value();
                                }),
               PeerError);
}

TEST(MainProcessFirst, ARankThatDoesSomethingElseIsAMismatchError) {
  run_thread_ranks(2, [](const Communicator& communicator) {
    Accelerator accelerator({.communicator = communicator});
    const auto differ = [&] {
      if (!accelerator.is_main_process()) return accelerator.wait_for_everyone();
      const auto scope = accelerator.main_process_first();
    };
    EXPECT_THROW(differ(), MismatchError);
  });
}

// ---- free_memory()

const RankCase freed("helpers_free_memory", [](const Communicator& communicator) {
  Accelerator accelerator({.gradient_accumulation_steps = 2, .communicator = communicator});
  for (int round = 0; round < 2; ++round) {
    Mlp net;
    const std::weak_ptr<MlpImpl> watched = net.ptr();
    {
      auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
      EXPECT_EQ(&accelerator.unwrap_model(model), &net);
      for (int batch_number = 0; batch_number < 3; ++batch_number) {  // ends in the middle of a window
        const auto window = accelerator.accumulate(model);
        const Batch batch = batch_of(batch_number);
        accelerator.backward(loss_of(model->forward(batch.input), batch.target));
        optimizer.step();
        optimizer.zero_grad();
      }
      EXPECT_FALSE(accelerator.sync_gradients());
      accelerator.free_memory();
    }
    net = nullptr;
    EXPECT_TRUE(watched.expired());
    EXPECT_EQ(accelerator.stats().syncs, 0);
    EXPECT_TRUE(accelerator.sync_gradients());
  }
});
TEST(Helpers, FreeMemoryForgetsWhatWasPrepared) {
  freed.on_threads({1, 2, 3});
}

// The handles of the first stage are still there.
const RankCase stages("helpers_stages", [](const Communicator& communicator) {
  Accelerator accelerator({.communicator = communicator});
  Mlp net;
  Mlp reference;
  const auto train = [&](Optimizer& optimizer, double rate) {
    torch::optim::SGD sgd(reference->parameters(), rate);
    for (int step = 0; step < 2; ++step) {
      sgd.zero_grad();
      for (int rank = 0; rank < communicator.size(); ++rank) {
        const Batch batch = batch_of(step * communicator.size() + rank);
        (loss_of(reference->forward(batch.input), batch.target) / communicator.size()).backward();
      }
      sgd.step();
      const Batch batch = batch_of(step * communicator.size() + communicator.rank());
      accelerator.backward(loss_of(net->forward(batch.input), batch.target));
      optimizer.step();
      optimizer.zero_grad();
    }
    EXPECT_TRUE(close(net->parameters(), reference->parameters(), 1e-5));
  };
  auto [model, first] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  {
    torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < net->parameters().size(); ++i) reference->parameters()[i].copy_(net->parameters()[i]);
  }
  train(first, 0.1);
  accelerator.free_memory();
  expect_refused<UsageError>([&, &first = first] { first.step(); }, "released by free_memory()");
  expect_refused<UsageError>([&, &first = first] { first.zero_grad(); }, "released by free_memory()");
  auto [again, second] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.05));
  train(second, 0.05);
});
TEST(Helpers, AModelIsPreparedAgainWithAnotherOptimizerAfterFreeMemory) {
  stages.on_threads({1, 2, 3});
}

}  // namespace
}  // namespace tutti::test::helpers_test
