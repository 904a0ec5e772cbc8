#include "sync/bucket_tuner.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

namespace tutti::sync {

namespace {

// A cap is worth a change if it saves more than this part of a round: repeats differ by about as much.
constexpr double least_gain = 0.02;

bool same(const BucketPlan& a, const BucketPlan& b) {
  return std::ranges::equal(a.buckets, b.buckets, {}, &Bucket::parameters, &Bucket::parameters);
}

/// `order` without repeats, then those that it lacks, the last registered one first.
std::vector<int> completed(std::span<const int> order, std::size_t count) {
  std::vector<int> all;
  std::vector<bool> known(count);
  const auto add = [&](int parameter) {
    if (parameter < 0) return;
    if (!known[static_cast<std::size_t>(parameter)]) all.push_back(parameter);
    known[static_cast<std::size_t>(parameter)] = true;
  };
  std::ranges::for_each(order, add);
  for (std::size_t i = count; i > 0; --i) add(static_cast<int>(i) - 1);
  return all;
}

}  // namespace

BucketTuner::BucketTuner(std::vector<GradientSize> gradients, BucketOptions options)
    : gradients_(std::move(gradients)),
      options_(options),
      present_(plan_buckets(gradients_, options_)),
      done_(!options_.measured || present_.buckets.size() < 2) {}

std::optional<BucketPlan> BucketTuner::learn(std::optional<double> last_seconds, std::span<const int> order) {
  if (done_) return std::nullopt;
  const bool ordered = std::ranges::any_of(order, [](int parameter) { return parameter >= 0; });
  if (!last_seconds || (candidates_.empty() && !ordered)) {
    done_ = ++silent_ >= patience;
    return std::nullopt;
  }
  silent_ = 0;
  if (candidates_.empty()) {
    make_candidates(order);
    return use(0);
  }
  if (std::exchange(fresh_, false)) return std::nullopt;
  Candidate& candidate = candidates_[tried_];
  candidate.fastest = candidate.rounds == 0 ? *last_seconds : std::min(candidate.fastest, *last_seconds);
  if (++candidate.rounds < rounds_of_candidate) return std::nullopt;
  if (++tried_ < candidates_.size()) return use(tried_);
  done_ = true;
  const auto best = std::ranges::min_element(candidates_, {}, &Candidate::fastest);
  const bool better = best->fastest < (1 - least_gain) * candidates_.front().fastest;
  return use(better ? static_cast<std::size_t>(best - candidates_.begin()) : 0);
}

void BucketTuner::make_candidates(std::span<const int> order) {
  const std::vector<int> ready = completed(order, gradients_.size());
  const std::int64_t cap = options_.bucket_bytes;
  for (const std::int64_t bytes : std::array{cap, std::max<std::int64_t>(1, cap / 4), 4 * cap}) {
    BucketPlan plan = plan_buckets(
        gradients_,
        {.first_bucket_bytes = std::min(options_.first_bucket_bytes, bytes), .bucket_bytes = bytes, .measured = true},
        ready);
    const bool known = std::ranges::any_of(candidates_, [&](const Candidate& one) { return same(one.plan, plan); });
    if (!known) candidates_.push_back({.plan = std::move(plan)});
  }
  done_ = candidates_.size() == 1;
}

std::optional<BucketPlan> BucketTuner::use(std::size_t candidate) {
  fresh_ = true;
  const BucketPlan& plan = candidates_[candidate].plan;
  if (same(plan, present_)) return std::nullopt;
  present_ = plan;
  return plan;
}

}  // namespace tutti::sync
