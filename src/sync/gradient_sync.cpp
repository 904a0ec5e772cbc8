#include "sync/gradient_sync.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <utility>

#include "device/devices.h"
#include "device/foreach.h"
#include "sync/sparse_rows.h"

namespace tutti::sync {

namespace {

/// The trailer, the numbers, and one bit per parameter.
std::vector<std::byte> pack(const SyncTrailer& trailer, const std::vector<bool>& used, std::span<const int> numbers) {
  const std::size_t bits = sizeof(trailer) + numbers.size_bytes();
  std::vector<std::byte> packed(bits + (used.size() + 7) / 8);
  std::memcpy(packed.data(), &trailer, sizeof(trailer));
  if (!numbers.empty()) std::memcpy(packed.data() + sizeof(trailer), numbers.data(), numbers.size_bytes());
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (used[i]) packed[bits + i / 8] |= std::byte{1} << (i % 8);
  }
  return packed;
}

bool all_finite(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  if (tensor.numel() == 0) return true;
  return std::isfinite(at::linalg_vector_norm(tensor, std::numeric_limits<double>::infinity()).item<double>());
}

}  // namespace

std::vector<WindowLengths> SyncResult::window_lengths() const {
  std::vector<WindowLengths> lengths;
  for (const SyncHeader& header : headers) lengths.push_back(header.lengths);
  return lengths;
}

std::vector<int> SyncResult::aborted_ranks() const {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < trailers.size(); ++rank) {
    if (trailers[rank].aborted) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

GradientSync::GradientSync(const Communicator& communicator, const SyncHeader& header, bool detect_overflow)
    : communicator_(communicator), detect_overflow_(detect_overflow) {
  auto exchange = std::shared_ptr(communicator_.start_small_all_gather(std::as_bytes(std::span(&header, 1))));
  submit([state = state_, exchange] {
    const std::span<const std::byte> all = exchange->wait();
    state->result.headers.resize(all.size() / sizeof(SyncHeader));
    std::memcpy(state->result.headers.data(), all.data(), all.size());
    state->result.plan = make_sync_plan(state->result.headers);
  });
}

void GradientSync::start_bucket_all_reduce(at::Tensor bucket, const std::shared_ptr<const WireCodec>& codec) {
  comm::AllReduceCallbacks callbacks{.scale = [state = state_] { return state->result.plan.scale; }};
  if (detect_overflow_ && devices::is_accelerator(bucket.device())) {
    device_buckets_.push_back(bucket);
  } else if (detect_overflow_) {
    // All ranks have the same bits, so they agree without communication.
    callbacks.on_completed = [state = state_, bucket] { state->overflowed = state->overflowed || !all_finite(bucket); };
  }
  sums_.push_back(communicator_.queue_all_reduce(std::move(bucket), codec, std::move(callbacks)));
  works_.push_back(sums_.back()->reduction());
}

void GradientSync::start_rows(const at::Tensor& gradient, const at::Tensor& parameter) {
  auto packed = pack_rows(gradient);
  state_->result.bytes_sent += static_cast<std::int64_t>(packed.size()) * (communicator_.size() - 1);
  auto gather = std::shared_ptr(communicator_.start_all_gather_v(std::move(packed)));
  submit([state = state_, gather, parameter = parameter.detach(), detect_overflow = detect_overflow_] {
    const at::Tensor mean = sum_rows(gather->wait(), parameter, state->result.plan.scale);
    if (detect_overflow && mean.defined() && !all_finite(mean.values())) state->overflowed = true;
    state->result.rows.push_back(mean);
  });
}

void GradientSync::wait_for_bucket(std::size_t index) {
  for (std::size_t earlier = 0; earlier <= index; ++earlier) works_.push_back(sums_[earlier]->complete());
  works_.back().wait();
  sums_[index]->block_current_stream();
}

void GradientSync::close(const SyncTrailer& trailer, const std::vector<bool>& used, std::span<const int> numbers) {
  const std::vector<std::byte> packed = pack(trailer, used, numbers);
  auto exchange = std::shared_ptr(communicator_.start_small_all_gather(packed));
  for (const auto& sum : sums_) works_.push_back(sum->complete());
  submit([state = state_, exchange, parameters = used.size(), count = numbers.size(), block = packed.size()] {
    const std::span<const std::byte> all = exchange->wait();
    state->result.used.assign(parameters, false);
    state->result.numbers.resize(count);
    if (count > 0) std::memcpy(state->result.numbers.data(), all.data() + sizeof(SyncTrailer), count * sizeof(int));
    for (std::size_t begin = 0; begin < all.size(); begin += block) {
      std::memcpy(&state->result.trailers.emplace_back(), all.data() + begin, sizeof(SyncTrailer));
      const auto bits = all.subspan(begin + sizeof(SyncTrailer) + count * sizeof(int));
      for (std::size_t i = 0; i < parameters; ++i) {
        if ((bits[i / 8] >> (i % 8) & std::byte{1}) != std::byte{0}) state->result.used[i] = true;
      }
    }
  });
}

SyncResult GradientSync::wait() {
  for (const Work& work : works_) work.wait();
  for (const auto& sum : sums_) sum->block_current_stream();
  SyncResult result = std::move(state_->result);
  result.summed = sums_.size();
  for (const auto& sum : sums_) result.bytes_sent += sum->bytes_sent();
  result.overflowed = state_->overflowed ? 1 : 0;
  if (device_buckets_.empty() || state_->overflowed) return result;
  const at::NoGradGuard no_grad;
  // The device looks for an overflow in all buckets together.
  const LateValue largest(devices::norm_of(device_buckets_, std::numeric_limits<double>::infinity()));
  result.overflowed = largest.then([](double value) { return std::isfinite(value) ? 0.0 : 1.0; });
  return result;
}

}  // namespace tutti::sync
