#include "sync/pairwise_accumulator.h"

#include <ATen/core/grad_mode.h>

#include <ranges>
#include <utility>

namespace tutti::sync {

void PairwiseAccumulator::push(const std::vector<at::Tensor>& flat, const std::vector<bool>& used) {
  const at::NoGradGuard no_grad;
  Sum sum;
  for (const at::Tensor& part : flat) sum.flat.push_back(part.clone());
  while (!sums_.empty() && sums_.back().level == sum.level) {
    for (std::size_t i = 0; i < sum.flat.size(); ++i) sums_.back().flat[i].add_(sum.flat[i]);
    sum = std::move(sums_.back());
    ++sum.level;
    sums_.pop_back();
  }
  sums_.push_back(std::move(sum));
  ++micro_batches_;
  used_.resize(used.size());
  for (std::size_t i = 0; i < used.size(); ++i) used_[i] = used_[i] || used[i];
}

void PairwiseAccumulator::add_to(at::Tensor last, int index) const {
  const at::NoGradGuard no_grad;
  for (const Sum& sum : sums_ | std::views::reverse) last.add_(sum.flat[index]);
}

void PairwiseAccumulator::scale(double factor) {
  const at::NoGradGuard no_grad;
  for (Sum& sum : sums_) {
    for (at::Tensor& part : sum.flat) part.mul_(factor);
  }
}

void PairwiseAccumulator::clear() {
  sums_.clear();
  micro_batches_ = 0;
  used_.clear();
}

}  // namespace tutti::sync
