#include "buckets.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <string_view>

#include "checkpoint/file.h"
#include "checkpoint/safetensors_file.h"
#include "sync/bucket_plan.h"
#include "tutti/core/error.h"

namespace tutti::plan {
namespace {

/// Each is there when as much of the backward pass has run as it and those behind it are of all bytes.
void spread_evenly(std::vector<Gradient>& gradients) {
  double all = 0;
  for (const Gradient& gradient : gradients) all += static_cast<double>(gradient.bytes);
  double done = 0;
  for (auto gradient = gradients.rbegin(); gradient != gradients.rend(); ++gradient) {
    done += static_cast<double>(gradient->bytes);
    gradient->ready = std::min(1.0, done / all);
  }
}

bool may_have_gradients(const checkpoint::TensorEntry& tensor) {
  const std::string_view type = checkpoint::element_types.at(tensor.type).name;
  return type == "F16" || type == "BF16" || type == "F32" || type == "F64";
}

}  // namespace

std::vector<Bucket> buckets_of(const std::vector<Gradient>& gradients) {
  std::vector<GradientSize> sizes;
  for (const Gradient& gradient : gradients) sizes.push_back({.bytes = gradient.bytes});
  // They are put in the order in which they come after the first step.
  std::vector<int> order(gradients.size());
  std::iota(order.rbegin(), order.rend(), 0);
  std::ranges::stable_sort(order, {}, [&](int i) { return gradients[static_cast<std::size_t>(i)].ready; });
  std::vector<Bucket> buckets;
  for (const auto& planned : plan_buckets(sizes, {}, order).buckets) {
    Bucket bucket{.bytes = static_cast<double>(planned.end - planned.begin), .ready = 0};
    for (const int i : planned.parameters) {
      bucket.ready = std::max(bucket.ready, gradients[static_cast<std::size_t>(i)].ready);
    }
    buckets.push_back(bucket);
  }
  return buckets;
}

std::vector<Bucket> buckets_of_bytes(double bytes) {
  constexpr double small = 256 << 10;
  std::vector<Gradient> gradients;
  for (double left = bytes; left > 0; left -= small) {
    gradients.push_back({.bytes = static_cast<std::int64_t>(std::ceil(std::min(left, small)))});
  }
  spread_evenly(gradients);
  return buckets_of(gradients);
}

std::vector<Bucket> buckets_of_file(const std::filesystem::path& path) {
  checkpoint::InputFile file(path);
  std::vector<Gradient> gradients;
  for (const auto& tensor : checkpoint::read_layout(file, path).tensors) {
    if (!may_have_gradients(tensor)) continue;
    gradients.push_back({.bytes = static_cast<std::int64_t>(tensor.end - tensor.begin)});
  }
  if (gradients.empty()) {
    throw UsageError("--model " + path.string() + " holds no tensor that could have gradients: give another file");
  }
  spread_evenly(gradients);
  return buckets_of(gradients);
}

}  // namespace tutti::plan
