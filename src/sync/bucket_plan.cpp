#include "sync/bucket_plan.h"

#include <algorithm>

#include "tutti/core/error.h"

namespace tutti {

namespace {

std::int64_t aligned(std::int64_t bytes) {
  return (bytes + slot_alignment - 1) / slot_alignment * slot_alignment;
}

/// `order` without repeats, followed by the missing numbers in the reverse order of registration.
std::vector<int> completed(std::span<const int> order, std::size_t count) {
  std::vector<int> all;
  std::vector<bool> known(count);
  const auto add = [&](int parameter) {
    if (parameter < 0 || known[static_cast<std::size_t>(parameter)]) return;
    known[static_cast<std::size_t>(parameter)] = true;
    all.push_back(parameter);
  };
  std::ranges::for_each(order, add);
  for (std::size_t i = count; i > 0; --i) add(static_cast<int>(i) - 1);
  return all;
}

}  // namespace

BucketPlan plan_buckets(std::span<const GradientSize> gradients, const BucketOptions& options,
                        std::span<const int> order) {
  if (options.first_bucket_bytes < 1 || options.bucket_bytes < 1) {
    throw UsageError("bucket sizes must be at least 1 byte: set BucketOptions to positive numbers");
  }
  BucketPlan plan;
  plan.slots.resize(gradients.size());
  int groups = 0;
  for (const GradientSize& gradient : gradients) groups = std::max(groups, gradient.group + 1);
  plan.group_bytes.resize(groups, 0);
  std::vector<int> open_bucket(groups, -1);

  for (const int parameter : completed(order, gradients.size())) {
    const GradientSize& gradient = gradients[parameter];
    std::int64_t& group_end = plan.group_bytes[gradient.group];
    int& open = open_bucket[gradient.group];
    if (open >= 0) {
      const Bucket& bucket = plan.buckets[open];
      const std::int64_t cap = open == 0 ? options.first_bucket_bytes : options.bucket_bytes;
      if (bucket.end - bucket.begin + gradient.bytes > cap) open = -1;
    }
    if (open < 0) {
      open = static_cast<int>(plan.buckets.size());
      plan.buckets.push_back({.group = gradient.group, .begin = group_end, .end = group_end, .parameters = {}});
    }
    Bucket& bucket = plan.buckets[open];
    plan.slots[parameter] = {.bucket = open, .offset = group_end};
    group_end += aligned(gradient.bytes);
    bucket.end = group_end;
    bucket.parameters.push_back(parameter);
  }
  return plan;
}

}  // namespace tutti
