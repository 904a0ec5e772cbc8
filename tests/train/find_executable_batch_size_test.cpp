// find_executable_batch_size: Accelerate's test_memory_utils.py, and ranks that run out of memory one by one.
#include "tutti/train/find_executable_batch_size.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <new>
#include <stdexcept>

#include "data/streams.h"
#include "support/rank_case.h"
#include "support/training.h"
#include "tutti/train/accelerator.h"

namespace tutti::test::find_executable_batch_size_test {
namespace {

using Sizes = std::vector<std::int64_t>;
using detail::AttemptDecision;
using detail::AttemptOutcome;

TEST(OutOfMemoryError, IsDistinguishedFromOtherFailures) {
  EXPECT_TRUE(is_out_of_memory(std::bad_alloc()));
  EXPECT_TRUE(is_out_of_memory(std::runtime_error("CUDA out of memory. Tried to allocate 2.00 GiB")));
  EXPECT_FALSE(is_out_of_memory(std::runtime_error("Oops, we had an error!")));
  // The message of another rank does not report this rank's memory.
  EXPECT_FALSE(is_out_of_memory(PeerError("rank 1: out of memory", {1})));
  try {
    (void)at::empty({std::int64_t{1} << 58});
    ADD_FAILURE() << "so much memory there is not";
  } catch (const std::exception& error) {
    EXPECT_TRUE(is_out_of_memory(error)) << error.what();
  }
  try {
    TORCH_CHECK_WITH(OutOfMemoryError, false, "device");
  } catch (const std::exception& error) {
    EXPECT_TRUE(is_out_of_memory(error));
  }
}

TEST(BatchSizeSearch, DecidesTheNextAttempt) {
  const auto ok = AttemptOutcome::succeeded;
  const auto memory = AttemptOutcome::out_of_memory;
  const auto peer = AttemptOutcome::peer_failed;
  const auto failed = AttemptOutcome::failed;
  EXPECT_EQ(detail::decide_next_attempt({ok, ok}), AttemptDecision::succeeded);
  EXPECT_EQ(detail::decide_next_attempt({ok, memory}), AttemptDecision::try_smaller);
  EXPECT_EQ(detail::decide_next_attempt({peer, memory}), AttemptDecision::try_smaller);
  EXPECT_EQ(detail::decide_next_attempt({memory, failed}), AttemptDecision::failed);
  EXPECT_EQ(detail::decide_next_attempt({peer, ok}), AttemptDecision::failed);
}

TEST(BatchSizeSearch, HalvesByDefault) {
  EXPECT_EQ(detail::next_batch_size(7, {}), 3);
  EXPECT_EQ(detail::next_batch_size(1, {}), 0);
  EXPECT_EQ(detail::next_batch_size(10, {.reduce_batch_size_fn = [](std::int64_t size) { return size * 9 / 10; }}), 9);
  EXPECT_EQ(detail::next_batch_size(1, {.reduce_batch_size_fn = [](std::int64_t) { return -3; }}), 0);
  const auto stays = [](std::int64_t size) { return size; };
  EXPECT_THROW(detail::next_batch_size(8, {.reduce_batch_size_fn = stays}), UsageError);
}

const RankCase searches("search_sizes", [](const Communicator& communicator) {
  // Each rank has less memory than the previous rank.
  const std::int64_t fits = 100 / (communicator.rank() + 1);
  Sizes tried;
  const auto found = find_executable_batch_size(communicator, [&](std::int64_t batch_size) {
    tried.push_back(batch_size);
    if (batch_size > fits) throw std::bad_alloc();
  });
  const Sizes expected =
      communicator.size() < 3 ? (communicator.size() < 2 ? Sizes{128, 64} : Sizes{128, 64, 32}) : Sizes{128, 64, 32};
  EXPECT_EQ(tried, expected);
  EXPECT_EQ(found, expected.back());

  const std::string result = find_executable_batch_size(
      communicator, [&](std::int64_t batch_size) { return "batch of " + std::to_string(batch_size); },
      {.starting_batch_size = 3});
  EXPECT_EQ(result, "batch of 3");
});
TEST(BatchSizeSearch, FindsTheSizeThatFitsOnAllRanks) {
  searches.everywhere();
}

const RankCase reduces("search_reduce_fn", [](const Communicator& communicator) {
  // The numbers of test_memory_utils.py.
  Sizes tried;
  const auto found = find_executable_batch_size(
      communicator,
      [&](std::int64_t batch_size) {
        tried.push_back(batch_size);
        if (batch_size != 8 && communicator.rank() == 0) throw std::runtime_error("CUDA out of memory.");
        return batch_size;
      },
      {.starting_batch_size = 128, .reduce_batch_size_fn = [](std::int64_t size) { return size * 9 / 10; }});
  EXPECT_EQ(found, 8);
  EXPECT_EQ(tried,
            (Sizes{128, 115, 103, 92, 82, 73, 65, 58, 52, 46, 41, 36, 32, 28, 25, 22, 19, 17, 15, 13, 11, 9, 8}));
});
TEST(BatchSizeSearch, UsesTheGivenReduction) {
  reduces.on_threads({1, 2, 3});
}

const RankCase zero("search_zero", [](const Communicator& communicator) {
  EXPECT_THROW(find_executable_batch_size(communicator, [](std::int64_t) {}, {.starting_batch_size = 0}), UsageError);
  const bool last = communicator.rank() + 1 == communicator.size();
  try {
    find_executable_batch_size(communicator,
                               [&](std::int64_t) {
                                 if (last) throw std::bad_alloc();
                               },
                               {.starting_batch_size = 16});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const OutOfMemoryError& error) {
    EXPECT_NE(std::string(error.what())
                  .find("no executable batch size found, reached 0: rank " + std::to_string(communicator.size() - 1)),
              std::string::npos)
        << error.what();
  }
});
TEST(BatchSizeSearch, EndsWithAnErrorWhereNothingFits) {
  zero.on_threads({1, 2, 3});
}

const RankCase other_errors("search_other_errors", [](const Communicator& communicator) {
  const bool last = communicator.rank() + 1 == communicator.size();
  const auto search = [&] {
    find_executable_batch_size(communicator, [&](std::int64_t) {
      if (last) throw std::invalid_argument("Oops, we had an error!");
      throw std::bad_alloc();
    });
  };
  if (last) {
    EXPECT_THROW(search(), std::invalid_argument);
    return;
  }
  try {
    search();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const PeerError& failure) {
    EXPECT_EQ(failure.ranks(), std::vector<int>{communicator.size() - 1});
    EXPECT_NE(std::string(failure.what()).find("Oops"), std::string::npos) << failure.what();
  }
});
TEST(BatchSizeSearch, OtherErrorsPassThroughAndAreReportedToPeers) {
  other_errors.on_threads({1, 2, 3});
  other_errors.on_processes({2});
}

const RankCase differing("search_differing", [](const Communicator& communicator) {
  if (communicator.size() == 1) return;
  const std::int64_t start = communicator.rank() == 0 ? 4 : 8;
  EXPECT_THROW(find_executable_batch_size(communicator, [](std::int64_t) {}, {.starting_batch_size = start}),
               MismatchError);
});
TEST(BatchSizeSearch, OtherSizesAreAMismatchError) {
  differing.on_threads({1, 2, 3});
}

/// Trains on batches of a size; the last rank has no memory for more than 2 samples.
void train(Accelerator& accelerator, std::int64_t batch_size) {
  Mlp net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  auto loader = accelerator.data_loader(Counting(100), {.batch_size = batch_size});
  int number = 0;
  for (const auto& numbers : loader) {
    const Batch batch = batch_of(number, at::kFloat, std::ssize(numbers));
    if (accelerator.is_last_process() && number == 1 && batch_size > 2) throw std::bad_alloc();
    accelerator.backward(loss_of(model->forward(batch.input), batch.target));
    optimizer.step();
    optimizer.zero_grad();
    if (++number == 4) break;
  }
}

// Ranks wait in backward() for a rank that ran out of memory. They must not wait until the deadline of half an hour.
const RankCase trains_over_attempt("search_training_attempt", [](const Communicator& communicator) {
  Sizes tried;
  find_executable_batch_size(communicator,
                             [&](std::int64_t batch_size, const Communicator& attempt) {
                               tried.push_back(batch_size);
                               const bool last = attempt.rank() + 1 == attempt.size();
                               if (batch_size == 16 && last) throw std::bad_alloc();  // the other ranks connect, below
                               Accelerator accelerator({.communicator = attempt});
                               train(accelerator, batch_size);
                             },
                             {.starting_batch_size = 16});
  EXPECT_EQ(tried, (Sizes{16, 8, 4, 2}));
});
TEST(BatchSizeSearch, RanksThatWaitForOneWithoutMemoryGetTheError) {
  trains_over_attempt.everywhere();
}

const RankCase trains_with_accelerator("search_training_accelerator", [](const Communicator& communicator) {
  Accelerator accelerator({.communicator = communicator});
  Sizes tried;
  accelerator.find_executable_batch_size(
      [&](std::int64_t batch_size) {
        tried.push_back(batch_size);
        train(accelerator, batch_size);
      },
      {.starting_batch_size = 8});
  EXPECT_EQ(tried, (Sizes{8, 4, 2}));
});
TEST(BatchSizeSearch, TheAcceleratorReleasesWhatWasPrepared) {
  trains_with_accelerator.everywhere();
}

/// Its step needs more memory than there is, or steps as SGD does.
struct LargeSgd final : torch::optim::SGD {
  LargeSgd(std::vector<at::Tensor> parameters, bool too_large)
      : SGD(std::move(parameters), 0.1), is_too_large(too_large) {}
  at::Tensor step(LossClosure closure = nullptr) override {
    if (is_too_large) throw std::bad_alloc();
    return SGD::step(std::move(closure));
  }
  bool is_too_large;
};

// The other ranks have stepped and wait for the buffers of rank 0.
const RankCase steps_without_memory("search_step_without_memory", [](const Communicator& communicator) {
  Accelerator accelerator({.communicator = communicator});
  Sizes tried;
  accelerator.find_executable_batch_size(
      [&](std::int64_t batch_size) {
        tried.push_back(batch_size);
        torch::nn::Sequential net(torch::nn::Linear(6, 3), torch::nn::BatchNorm1d(3));
        auto [model, optimizer] =
            accelerator.prepare(net, LargeSgd(net->parameters(), batch_size == 8 && communicator.rank() == 0));
        const Batch batch = batch_of(communicator.rank(), at::kFloat, batch_size);
        for (int step = 0; step < 2; ++step) {
          accelerator.backward(loss_of(model->forward(batch.input), batch.target));
          optimizer.step();
          optimizer.zero_grad();
        }
      },
      {.starting_batch_size = 8});
  EXPECT_EQ(tried, (Sizes{8, 4}));
});
TEST(BatchSizeSearch, RanksThatWaitForBuffersOfOneWithoutMemoryGetTheError) {
  steps_without_memory.on_threads({1, 2});
  steps_without_memory.on_processes({2});
}

}  // namespace
}  // namespace tutti::test::find_executable_batch_size_test
