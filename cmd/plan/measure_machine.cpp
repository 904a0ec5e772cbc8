#include "measure_machine.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
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
#include "tutti/detail/comm/gradient_communicator.h"

namespace tutti::plan {
namespace {

constexpr int small_calls = 200;
constexpr int large_calls = 8;
constexpr std::int64_t small_bytes = 128;
/// As many and as large as the buckets of a model, so that they fit no cache better than those.
constexpr int buckets = 7;
constexpr std::int64_t bucket_bytes = 4 << 20;
constexpr double bytes_of_all = static_cast<double>(buckets) * static_cast<double>(bucket_bytes);
constexpr double shortest = 1e-9;  // seconds
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
  std::vector<std::unique_ptr<comm::PendingAllReduce>> sums;
  for (const auto& tensor : tensors) sums.push_back(comm::GradientCommunicator(communicator).start_all_reduce(tensor));
  for (const auto& pending : sums) pending->finish_reduce_scatter(1);
  for (const auto& pending : sums) pending->wait();
}

/// Of `buckets` sums of `bytes`.
Cost cost_of_sums(const Communicator& communicator, std::int64_t bytes, int calls) {
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < buckets; ++i)
    tensors.push_back(comm::GradientCommunicator(communicator).allocate(bytes).view(at::kFloat).zero_());
  return cost_of(calls, communicator, [&] { sum(communicator, tensors); });
}

void measure_node(const Communicator& shared, Machine& machine) {
  // A rank waits twice in a sum: until all have begun it, and until all have made their slices.
  const std::vector<at::Tensor> small{
      comm::GradientCommunicator(shared).allocate(small_bytes).view(at::kFloat).zero_()};
  const double barrier = cost_of(small_calls, shared, [&] { sum(shared, small); }).seconds / 2;
  const double adding = cost_of_sums(shared, bucket_bytes, large_calls).seconds - 2 * barrier * buckets;
  machine.node_barrier_us = barrier * us_per_second;
  machine.sum_gb_per_s = bytes_of_all / std::max(adding, shortest) / bytes_per_gb;
}

/// Of adding up what came as messages: half of a bucket, of two versions.
double cpu_of_adding(const Communicator& communicator) {
  const std::int64_t slice = bucket_bytes / 2 / static_cast<std::int64_t>(sizeof(float));
  std::vector<at::Tensor> slices;
  for (int i = 0; i < 2 * buckets; ++i) slices.push_back(at::zeros({slice}));
  return cost_of(large_calls, communicator,
                 [&] {
                   for (std::size_t i = 0; i < slices.size(); i += 2) slices[i].add_(slices[i + 1]);
                 })
      .cpu;
}

void measure_messages(const Communicator& messages, Machine& machine) {
  const std::array<std::byte, small_bytes> word{};
  const Cost header = cost_of(small_calls, messages, [&] {
    comm::GradientCommunicator(messages).start_small_all_gather(std::span(word))->wait();
  });
  // Each of two ranks sends half of what it has and half of the sum, in two messages.
  const double small_cpu = cost_of_sums(messages, small_bytes, small_calls).cpu;
  const double large_cpu = cost_of_sums(messages, bucket_bytes, large_calls).cpu;
  const double moving = large_cpu - small_cpu - cpu_of_adding(messages);
  machine.message_us = header.seconds * us_per_second;
  machine.message_cpu_us = small_cpu / (2 * buckets) * us_per_second;
  machine.message_gb_per_s = bytes_of_all / std::max(moving, shortest) / bytes_per_gb;
}

}  // namespace

Machine measure_machine(const Environment& environment) {
  Machine machine{.cores = static_cast<double>(std::thread::hardware_concurrency())};
  if (environment.num_nodes == 1) measure_node(Communicator::connect(environment), machine);
  measure_messages(Communicator::connect(environment, {.backend = "tcp"}), machine);
  return machine;
}

}  // namespace tutti::plan
