#include "measure_machine.h"

#include <ATen/core/Tensor.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "tutti/comm/communicator.h"
#include "tutti/detail/comm/pending.h"

namespace tutti::plan {
namespace {

constexpr int small_calls = 200;
constexpr int large_calls = 8;
constexpr std::int64_t small_bytes = 128;
/// As many and as large as the buckets of a model, so that they fit no cache better than those.
constexpr int buckets = 7;
constexpr std::int64_t bucket_bytes = 4 << 20;
constexpr double us_per_second = 1e6;
constexpr double bytes_per_gb = 1e9;

/// Of this process, all threads together.
double cpu_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  constexpr double microsecond = 1e-6;
  return static_cast<double>(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
         microsecond * static_cast<double>(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

struct Cost {
  double seconds = 0;
  double cpu = 0;
};

/// Of one of `calls` calls.
template <typename Call>
Cost cost_of(int calls, const Communicator& communicator, const Call& call) {
  communicator.barrier().wait();
  call();  // ranks leave a barrier at different times, and the first time is slower
  const double cpu_before = cpu_seconds();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) call();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  return {.seconds = elapsed.count() / calls, .cpu = (cpu_seconds() - cpu_before) / calls};
}

/// All are begun, and then completed in order, as the buckets of a round.
void sum(const Communicator& communicator, const std::vector<at::Tensor>& tensors) {
  std::vector<std::unique_ptr<comm::PendingSum>> sums;
  for (const auto& tensor : tensors) sums.push_back(communicator.start_sum(tensor));
  for (const auto& pending : sums) pending->reduce(1);
  for (const auto& pending : sums) pending->finish();
}

/// Of `buckets` sums of `bytes`.
Cost cost_of_sums(const Communicator& communicator, std::int64_t bytes, int calls) {
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < buckets; ++i) tensors.push_back(communicator.allocate(bytes).view(at::kFloat).zero_());
  return cost_of(calls, communicator, [&] { sum(communicator, tensors); });
}

}  // namespace

Machine measure_machine(const Environment& environment) {
  const auto shared = Communicator::connect(environment);
  const auto messages = Communicator::connect(environment, {.engine = "gloo"});
  constexpr double bytes = static_cast<double>(buckets) * static_cast<double>(bucket_bytes);

  // A rank waits twice in a sum: until all have begun it, and until all have made their slices.
  const std::vector<at::Tensor> small{shared.allocate(small_bytes).view(at::kFloat).zero_()};
  const double meeting = cost_of(small_calls, shared, [&] { sum(shared, small); }).seconds / 2;
  const double in_node = cost_of_sums(shared, bucket_bytes, large_calls).seconds - 2 * meeting * buckets;
  const double sum_bytes_per_second = bytes / std::max(in_node, 1e-9);

  const std::array<std::byte, small_bytes> word{};
  const Cost header = cost_of(small_calls, messages, [&] { messages.start_exchange(std::span(word))->finish(); });
  // Each of two ranks sends half of what it has and half of the sum, in two messages, and adds up half of the sum.
  const double small_cpu = cost_of_sums(messages, small_bytes, small_calls).cpu;
  const double large_cpu = cost_of_sums(messages, bucket_bytes, large_calls).cpu;
  const double moving = large_cpu - small_cpu - bytes / 2 / sum_bytes_per_second;
  return {.cores = static_cast<double>(std::thread::hardware_concurrency()),
          .meeting_us = meeting * us_per_second,
          .sum_gb_per_s = sum_bytes_per_second / bytes_per_gb,
          .message_us = header.seconds * us_per_second,
          .message_cpu_us = small_cpu / (2 * buckets) * us_per_second,
          .message_gb_per_s = bytes / std::max(moving, 1e-9) / bytes_per_gb};
}

}  // namespace tutti::plan
