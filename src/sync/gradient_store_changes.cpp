// Changes of gradients by the program between the calls of tutti.
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <limits>

#include "device/foreach.h"
#include "device/host_copy.h"
#include "sync/gradient_store.h"
#include "sync/sampled_hash.h"
#include "tutti/core/error.h"

namespace tutti::sync {

std::optional<std::string> GradientStore::changed(bool window_is_pending) const {
  for (int i = 0; i < slots(); ++i) {
    const GradientRecord& record = records_[i];
    if (!record.aliased) continue;
    const at::Tensor& slot = buffer_.slot(i);
    const bool replaced = !buffer_.aliased(i) || slot._version() != record.version;
    // Writes through .data(), as in LibTorch's clipping, do not change the version.
    if (replaced || (window_is_pending && record.hash != sampled_hash(slot, hash_salt_)))
      return quoted(parameters_.trained[i]);
  }
  return sparse_.modified();
}

bool GradientStore::all_zero() const {
  std::vector<std::vector<at::Tensor>> on_devices(waiting_.size());
  for (int i = 0; i < static_cast<int>(parameters_.trained.size()); ++i) {
    if (!grad(i).defined()) continue;
    const bool is_sparse = grad(i).layout() == at::kSparse;
    const at::Tensor gradient = is_sparse ? grad(i).detach().coalesce().values() : grad(i);
    if (gradient.layout() != at::kStrided) return false;
    if (i < slots() && is_on_device(i)) {
      on_devices[static_cast<std::size_t>(buffer_.sizes()[i].group)].push_back(gradient.detach());
    } else if (gradient.count_nonzero().item<std::int64_t>() != 0) {
      return false;
    }
  }
  // The largest magnitude of each group, which the host reads after one wait.
  std::vector<at::Tensor> largest;
  for (const std::vector<at::Tensor>& gradients : on_devices) {
    if (gradients.empty()) continue;
    largest.push_back(devices::norm_of(gradients, std::numeric_limits<double>::infinity()));
  }
  return std::ranges::all_of(devices::copies_on_host(largest),
                             [](const at::Tensor& magnitude) { return magnitude.item<double>() == 0; });
}

ExternalClear GradientStore::find_external_clear(const Window& window, bool refuses_changes) {
  std::optional<std::string> cleared;
  bool some_left = false;
  for (int i = 0; i < static_cast<int>(parameters_.trained.size()); ++i) {
    const bool ours = i < slots() ? records_[i].aliased : sparse_.is_tracked(i - slots());
    if (!ours) continue;
    if (grad(i).defined()) {
      some_left = true;
    } else if (!cleared) {
      cleared = quoted(parameters_.trained[i]);
    }
  }
  const bool weighted = window.weighting() == Weighting::weighted;
  const bool pending = window.pending() > 0;
  if (cleared && !some_left) {
    untrack();
    return ExternalClear::released;
  }
  if (cleared && weighted) {
    throw UsageError("the gradient of " + *cleared +
                     " was cleared in the middle of a window while others were not, so the window's weights do not "
                     "apply to all gradients: call the optimizer's zero_grad(), which clears all of them");
  }
  const std::optional<std::string> modified = cleared ? cleared : changed(pending);
  if (!modified || (!pending && !weighted)) return ExternalClear::none;
  if (!cleared && all_zero()) {
    std::ranges::fill(buckets_, BucketState::local_share);
    return ExternalClear::zeroed;
  }
  if (!pending || !refuses_changes) return ExternalClear::none;
  throw UsageError("the gradient of " + *modified +
                   " was modified before it was synchronized, so step would use the mean of modified gradients: call "
                   "synchronize() before modifying gradients, or clip with the accelerator's clip_grad_norm_() or "
                   "clip_grad_value_(), which synchronize first");
}

std::optional<std::string> GradientStore::foreign(bool or_replaced) const {
  for (int i = 0; i < static_cast<int>(parameters_.trained.size()); ++i) {
    if (!grad(i).defined()) continue;
    const bool ours = i < slots() ? buffer_.aliased(i) : sparse_.is_tracked_gradient(i - slots());
    const bool replaced = i < slots() ? records_[i].aliased : sparse_.is_tracked(i - slots());
    if (!ours && (or_replaced || !replaced)) return quoted(parameters_.trained[i]);
  }
  return std::nullopt;
}

void GradientStore::require_known(bool or_replaced) const {
  const auto unknown = foreign(or_replaced);
  // torch.distributed.checkpoint steps on zeros, at rate 0, so that the optimizer creates its state.
  const auto is_strided = [](const NamedParameter& parameter) {
    const at::Tensor& gradient = parameter.tensor.grad();
    return gradient.defined() && gradient.layout() == at::kStrided;
  };
  if (!unknown || (std::ranges::all_of(parameters_.trained, is_strided) && all_zero())) return;
  throw UsageError("the gradient of " + *unknown +
                   " was not produced by a synchronized backward pass: call synchronize() before step");
}

}  // namespace tutti::sync
