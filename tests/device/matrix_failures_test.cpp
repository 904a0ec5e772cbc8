// Ranks: 2 as threads, 4 on 2 nodes for "hierarchical". Rank 1 fails in step 2 of a training on the simulated device.
// All other ranks throw an error, with each pair of a failure and a backend, a loop or an extra. No rank waits for
// ever: the timeout of operations is 2 s.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <future>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "device/combinations.h"
#include "device/matrix_backends.h"
#include "device/training_loops.h"
#include "support/temporary_folder.h"
#include "tutti/core/error.h"

namespace tutti::matrix_failures_test {
namespace {

using test::backends;
using test::Combination;
using test::Dimensions;
using test::Extra;
using test::Loop;
namespace simulated = test::simulated;

enum class Failure {
  exception,     ///< the program throws
  leaves,        ///< the program ends its training
  device_stops,  ///< a kernel does not end
};
constexpr std::array failures{Failure::exception, Failure::leaves, Failure::device_stops};

std::string name_of(Failure failure) {
  switch (failure) {
    case Failure::exception:
      return "exception";
    case Failure::leaves:
      return "leaves";
    case Failure::device_stops:
      return "device_stops";
  }
  return "?";
}

enum Dimension : std::size_t { failure_dimension, backend_dimension, loop_dimension, extra_dimension };

Dimensions dimensions() {
  return {.sizes = {failures.size(), backends().size(), test::all_loops().size(), test::all_extras().size()},
          .are_compatible =
              [](std::size_t a, std::size_t i, std::size_t b, std::size_t j) {
                if (a == failure_dimension && b == loop_dimension) {
                  // The ranks would disagree about the data.
                  return failures[i] != Failure::leaves || test::all_loops()[j] != Loop::join;
                }
                if (a == backend_dimension && b == extra_dimension) {
                  return backends()[i].sums_in_fixed_order || test::all_extras()[j] != Extra::reproducible;
                }
                if (a == loop_dimension && b == extra_dimension) {
                  return test::can_train(test::all_loops()[i], test::all_extras()[j]);
                }
                return true;
              },
          .must_meet = [](std::size_t a, std::size_t) { return a == failure_dimension; }};
}

struct Case {
  explicit Case(const Combination& combination)
      : failure(failures[combination[failure_dimension]]),
        backend(backends()[combination[backend_dimension]]),
        loop(test::all_loops()[combination[loop_dimension]]),
        extra(test::all_extras()[combination[extra_dimension]]) {}

  std::string name() const {
    return backend.name + "_" + name_of(failure) + "_" + test::name_of(loop) + "_" + test::name_of(extra);
  }

  Failure failure;
  test::MatrixBackend backend;
  Loop loop;
  Extra extra;
};

std::ostream& operator<<(std::ostream& out, const Case& one) {
  return out << one.name();
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Combination& combination : test::all_pairs(dimensions())) all.emplace_back(combination);
  return all;
}

constexpr int failing_rank = 1;
constexpr int failing_step = 2;

/// What all ranks share.
struct Job {
  explicit Job(int size) : others(size - 1) {}

  void other_rank_has_ended() {
    if (--others == 0) others_have_ended.set_value();
  }

  std::atomic<int> others;
  std::promise<void> others_have_ended;
  std::shared_future<void> end = others_have_ended.get_future().share();
};

void fail(Failure failure, at::Device device, const Job& job) {
  switch (failure) {
    case Failure::exception:
      throw std::runtime_error("of the program");
    case Failure::leaves:
      break;  // the rank has fewer steps
    case Failure::device_stops:
      simulated::launch(simulated::current_stream(device.index()), [end = job.end] { end.wait(); });
      break;
  }
}

class MatrixFailures : public testing::TestWithParam<Case> {};

TEST_P(MatrixFailures, EndWithAnErrorOnTheOtherRanks) {
  const Case& one = GetParam();
  const test::TemporaryFolder folder;
  test::SimulatedRanks ranks = one.backend.ranks;
  ranks.timeout = std::chrono::seconds(2);
  Job job(ranks.size);
  test::run_simulated_ranks(ranks, [&](const Communicator& communicator, at::Device device) {
    const bool fails = communicator.rank() == failing_rank;
    test::Training training{.loop = one.loop, .extra = one.extra, .folder = folder.path() / "checkpoint"};
    if (fails) {
      if (one.failure == Failure::leaves) training.steps = failing_step;
      training.on_step = [&](int step) {
        if (step == failing_step) fail(one.failure, device, job);
      };
      try {
        (void)test::train(communicator, device, training);
      } catch (const std::exception&) {
        // Its own error, or that of an operation that it aborted.
      }
      return;
    }
    const auto train_and_call = [&] {
      (void)test::train(communicator, device, training);
      // The host may have been ahead of its device to the end. Then the next call throws.
      communicator.barrier().wait();
    };
    EXPECT_THROW(train_and_call(), Error) << "rank " << communicator.rank();
    job.other_rank_has_ended();
  });
  for (int device = 0; device < ranks.size; ++device) {
    try {
      simulated::wait_for_device(device, "test");
    } catch (const std::exception&) {
      // A kernel that was aborted.
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Pairs, MatrixFailures, testing::ValuesIn(cases()),
                         [](const testing::TestParamInfo<Case>& parameter) { return parameter.param.name(); });

}  // namespace
}  // namespace tutti::matrix_failures_test
