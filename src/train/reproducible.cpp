#include "train/reproducible.h"

#include <array>
#include <bit>
#include <random>
#include <string>

#include "tutti/core/error.h"

namespace tutti {

namespace {

constexpr int most_threads = 4096;

}  // namespace

int micro_batches_of_rank(const ReproducibleOptions& options, int world_size) {
  if (options.micro_batches < 1 || options.threads < 1) {
    throw UsageError("reproducible with " + std::to_string(options.micro_batches) + " micro-batches and " +
                     std::to_string(options.threads) + " threads: both must be at least 1");
  }
  if (options.threads > most_threads) {
    throw UsageError("reproducible with " + std::to_string(options.threads) + " threads: at most " +
                     std::to_string(most_threads) + " are allowed");
  }
  const int share = options.micro_batches / world_size;
  const bool fits = share * world_size == options.micro_batches;
  if (fits && (world_size == 1 || std::has_single_bit(static_cast<unsigned>(share)))) return share;
  throw UsageError("reproducible: " + std::to_string(options.micro_batches) + " micro-batches on " +
                   std::to_string(world_size) +
                   " ranks: each rank must get 1, 2, 4, 8, ... of them. Choose another number of ranks, or of "
                   "micro-batches");
}

std::uint64_t micro_batch_seed(const ReproducibleOptions& options, std::int64_t window, std::int64_t step,
                               std::int64_t micro_batch) {
  const auto low = [](auto value) { return static_cast<std::uint32_t>(value); };
  const auto high = [](auto value) { return static_cast<std::uint32_t>(static_cast<std::uint64_t>(value) >> 32); };
  // The C++ standard defines the output of this generator.
  std::seed_seq words{low(options.seed), high(options.seed), low(window), low(step), high(step), low(micro_batch)};
  std::array<std::uint32_t, 2> seed{};
  words.generate(seed.begin(), seed.end());
  return (std::uint64_t{seed[0]} << 32) | seed[1];
}

}  // namespace tutti
