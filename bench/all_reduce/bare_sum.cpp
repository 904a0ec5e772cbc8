#include "all_reduce/bare_sum.h"

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

namespace tutti::bench {
namespace {

/// Fits into the L1 cache.
constexpr std::size_t block_length = 1024;

using Buffer = std::vector<float>;

void sum_slice(std::vector<Buffer>& buffers, std::size_t begin, std::size_t end) {
  std::array<float, block_length> sum{};
  for (std::size_t at = begin; at < end; at += block_length) {
    const std::size_t length = std::min(block_length, end - at);
    std::memcpy(sum.data(), buffers.front().data() + at, length * sizeof(float));
    for (std::size_t other = 1; other < buffers.size(); ++other) {
      const float* version = buffers[other].data() + at;
      for (std::size_t i = 0; i < length; ++i) sum[i] += version[i];
    }
    for (Buffer& buffer : buffers) std::memcpy(buffer.data() + at, sum.data(), length * sizeof(float));
  }
}

}  // namespace

double time_of_bare_sum(std::int64_t bytes, int ranks, int calls) {
  using Clock = std::chrono::steady_clock;
  const auto count = static_cast<std::size_t>(ranks);
  const auto length = static_cast<std::size_t>(bytes) / sizeof(float);
  std::vector<Buffer> buffers(count, Buffer(length));
  std::vector<double> elapsed(count);
  std::barrier start(ranks);
  {
    std::vector<std::jthread> threads;
    for (std::size_t thread = 0; thread < count; ++thread) {
      threads.emplace_back([&, thread] {
        const std::size_t begin = length * thread / count;
        const std::size_t end = length * (thread + 1) / count;
        sum_slice(buffers, begin, end);
        start.arrive_and_wait();
        const auto began = Clock::now();
        for (int call = 0; call < calls; ++call) sum_slice(buffers, begin, end);
        elapsed[thread] = std::chrono::duration<double, std::micro>(Clock::now() - began).count();
      });
    }
  }
  return *std::ranges::max_element(elapsed) / calls;
}

}  // namespace tutti::bench
