// Ranks: 2 as threads, 4 on 2 nodes for "hierarchical". Training on the simulated device ends as on the CPU, with each
// pair of a backend, a loop, an extra and a timing.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "device/combinations.h"
#include "device/matrix_backends.h"
#include "device/training_loops.h"
#include "support/difference.h"
#include "support/simulated_device/ranks.h"
#include "support/temporary_folder.h"

namespace tutti::matrix_test {
namespace {

using test::backends;
using test::Combination;
using test::Dimensions;
using test::Extra;
using test::Loop;
namespace simulated = test::simulated;

enum class Timing { at_once, slow_kernels, slow_device, slow_host };
constexpr std::array timings{Timing::at_once, Timing::slow_kernels, Timing::slow_device, Timing::slow_host};

std::string name_of(Timing timing) {
  switch (timing) {
    case Timing::at_once:
      return "at_once";
    case Timing::slow_kernels:
      return "slow_kernels";
    case Timing::slow_device:
      return "slow_device";
    case Timing::slow_host:
      return "slow_host";
  }
  return "?";
}

enum Dimension : std::size_t { backend_dimension, loop_dimension, extra_dimension, timing_dimension };

Dimensions dimensions() {
  return {.sizes = {backends().size(), test::all_loops().size(), test::all_extras().size(), timings.size()},
          .are_compatible = [](std::size_t a, std::size_t i, std::size_t b, std::size_t j) {
            if (a == backend_dimension && b == extra_dimension) {
              return backends()[i].sums_in_fixed_order || test::all_extras()[j] != Extra::reproducible;
            }
            if (a == loop_dimension && b == extra_dimension) {
              return test::can_train(test::all_loops()[i], test::all_extras()[j]);
            }
            return true;
          }};
}

struct Case {
  explicit Case(const Combination& combination)
      : backend(backends()[combination[backend_dimension]]),
        loop(test::all_loops()[combination[loop_dimension]]),
        extra(test::all_extras()[combination[extra_dimension]]),
        timing(timings[combination[timing_dimension]]) {}

  std::string name() const {
    return backend.name + "_" + test::name_of(loop) + "_" + test::name_of(extra) + "_" + name_of(timing);
  }

  test::MatrixBackend backend;
  Loop loop;
  Extra extra;
  Timing timing;
};

std::ostream& operator<<(std::ostream& out, const Case& one) {
  return out << one.name();
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Combination& combination : test::all_pairs(dimensions())) all.emplace_back(combination);
  return all;
}

/// The result of each rank.
using Results = std::vector<std::vector<at::Tensor>>;

/// A rank's training. `wait` is how long its host waits before each step.
std::vector<at::Tensor> train_rank(const Communicator& communicator, at::Device device, const Case& one,
                                   const std::filesystem::path& folder, std::chrono::milliseconds wait = {}) {
  return test::train(communicator, device,
                     {.loop = one.loop,
                      .extra = one.extra,
                      .on_step = [wait](int) { std::this_thread::sleep_for(wait); },
                      .folder = folder});
}

/// On the CPU; computed once for each number of ranks, loop and extra.
const Results& on_the_cpu(const Case& one) {
  static std::map<std::tuple<int, Loop, Extra>, Results> known;
  Results& results = known[{one.backend.ranks.size, one.loop, one.extra}];
  if (!results.empty()) return results;
  results.resize(static_cast<std::size_t>(one.backend.ranks.size));
  const test::TemporaryFolder folder;
  run_thread_ranks(one.backend.ranks.size, [&](const Communicator& communicator) {
    results[static_cast<std::size_t>(communicator.rank())] =
        train_rank(communicator, at::kCPU, one, folder.path() / "checkpoint");
  });
  return results;
}

Results on_the_device(const Case& one) {
  Results results(static_cast<std::size_t>(one.backend.ranks.size));
  constexpr int microseconds = 30;
  std::optional<simulated::SlowKernels> slow;
  if (one.timing == Timing::slow_kernels) slow.emplace(microseconds);
  if (one.timing == Timing::slow_device) slow.emplace(microseconds, /*device=*/1);
  const test::TemporaryFolder folder;
  test::run_simulated_ranks(one.backend.ranks, [&](const Communicator& communicator, at::Device device) {
    const bool is_slow = one.timing == Timing::slow_host && communicator.rank() == 1;
    results[static_cast<std::size_t>(communicator.rank())] =
        train_rank(communicator, device, one, folder.path() / "checkpoint", std::chrono::milliseconds(is_slow ? 2 : 0));
  });
  return results;
}

double tolerance_of(Extra extra) {
  switch (extra) {
    case Extra::bf16:
    case Extra::fp16:
      return 2e-2;
    case Extra::diloco_int8:
      return 1e-3;  // a difference in rounding may change an encoded number
    default:
      return 1e-5;
  }
}

class Matrix : public testing::TestWithParam<Case> {};

TEST_P(Matrix, EndsAsOnTheCpu) {
  const Case& one = GetParam();
  const Results& expected = on_the_cpu(one);
  const Results actual = on_the_device(one);
  for (std::size_t rank = 0; rank < expected.size(); ++rank) {
    EXPECT_LE(test::largest_difference(actual[rank], expected[rank]), tolerance_of(one.extra)) << "rank " << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(Pairs, Matrix, testing::ValuesIn(cases()),
                         [](const testing::TestParamInfo<Case>& parameter) { return parameter.param.name(); });

TEST(Combinations, HoldEachPairAndNoForbiddenOne) {
  const Dimensions all = dimensions();
  const std::vector<Combination> combinations = test::all_pairs(all);
  std::size_t missing = 0;
  for (std::size_t a = 0; a < all.sizes.size(); ++a) {
    for (std::size_t b = a + 1; b < all.sizes.size(); ++b) {
      std::set<std::pair<std::size_t, std::size_t>> pairs;
      for (const Combination& combination : combinations) pairs.emplace(combination[a], combination[b]);
      for (std::size_t i = 0; i < all.sizes[a]; ++i) {
        for (std::size_t j = 0; j < all.sizes[b]; ++j) {
          EXPECT_LE(pairs.contains({i, j}), all.are_compatible(a, i, b, j));
          missing += !pairs.contains({i, j}) && all.are_compatible(a, i, b, j);
        }
      }
    }
  }
  EXPECT_EQ(missing, 0U);
  for (const Combination& combination : combinations) EXPECT_TRUE(is_allowed(all, combination));
}

}  // namespace
}  // namespace tutti::matrix_test
