#include "sync/device_samples.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "comm/tensor_checks.h"
#include "device/devices.h"
#include "device/host_copy.h"
#include "sync/sampled_hash.h"

namespace tutti::sync {

namespace {

constexpr std::int64_t elements_of_sample = 16;
/// A program that is further ahead of the device than this takes no samples.
constexpr std::size_t most_samples_waiting = 4;

bool is_sampled(const at::Tensor& tensor) {
  return devices::is_accelerator(tensor.device()) && tensor.layout() == at::kStrided && tensor.numel() > 0;
}

/// Elements of 16 bytes are two integers.
at::ScalarType integer_of_size(std::size_t bytes) {
  return bytes == 1 ? at::kByte : bytes == 2 ? at::kShort : bytes == 4 ? at::kInt : at::kLong;
}

/// The elements of `flat` that sample `number` reads: one of each of 16 equal parts.
at::Tensor sampled_elements(const at::Tensor& flat, std::int64_t number) {
  const std::int64_t count = flat.numel();
  const std::int64_t parts = std::min(elements_of_sample, count);
  const std::int64_t length = (count + parts - 1) / parts;
  // A step by the golden ratio spreads consecutive samples evenly.
  std::int64_t step = std::max<std::int64_t>(1, length * 618 / 1000);
  while (std::gcd(step, length) != 1) ++step;
  const std::int64_t begin = number % length * step % length;
  return flat.as_strided({(count - begin + length - 1) / length}, {length}, flat.storage_offset() + begin);
}

/// Samples of tensors of one device and one size of elements.
struct SampleMessage {
  at::Device device;
  at::ScalarType dtype;
  std::vector<at::Tensor> parts{};
  std::int64_t bytes = 0;
};

}  // namespace

DeviceSamples::DeviceSamples(const std::vector<NamedParameter>& parameters)
    : parameters_(parameters),
      any_(std::ranges::any_of(parameters, [](const NamedParameter& one) { return is_sampled(one.tensor); })) {}

const at::Tensor& DeviceSamples::flat_bits(std::size_t parameter) {
  flat_.resize(parameters_.size());
  at::Tensor& flat = flat_[parameter];
  const at::Tensor& tensor = parameters_[parameter].tensor;
  if (flat.defined() && flat.const_data_ptr() == tensor.const_data_ptr() && flat.device() == tensor.device() &&
      flat.nbytes() == tensor.nbytes()) {
    return flat;
  }
  at::Tensor elements = tensor.detach();
  const bool plain = elements.is_non_overlapping_and_dense() && !elements.is_conj() && !elements.is_neg();
  if (!plain) elements = comm::plain_memory(elements);  // rare: a copy
  elements = elements.as_strided({elements.numel()}, {1}, elements.storage_offset());
  flat = elements.view(integer_of_size(elements.element_size()));
  return flat;
}

void DeviceSamples::take() {
  if (!any_ || waiting_.size() >= most_samples_waiting) return;
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  Sample sample{.number = taken_ + 1};
  std::vector<SampleMessage> messages;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!is_sampled(parameters_[i].tensor)) continue;
    const at::Tensor part = sampled_elements(flat_bits(i), sample.number);
    const auto fits = [&](const SampleMessage& message) {
      return message.device == part.device() && message.dtype == part.scalar_type();
    };
    auto message = std::ranges::find_if(messages, fits);
    if (message == messages.end()) {
      message = messages.insert(messages.end(), {.device = part.device(), .dtype = part.scalar_type()});
    }
    const auto bytes = static_cast<std::int64_t>(part.nbytes());
    sample.places.push_back({.parameter = i,
                             .message = static_cast<std::size_t>(message - messages.begin()),
                             .begin = message->bytes,
                             .bytes = bytes});
    message->parts.push_back(part);
    message->bytes += bytes;
  }
  for (const SampleMessage& message : messages) {
    const at::Tensor together = at::cat(message.parts);
    sample.on_host.push_back(devices::pinned_like(together));
    sample.on_host.back().copy_(together, /*non_blocking=*/true);
    sample.events.push_back(devices::StreamEvent::on_current_stream(message.device));
  }
  ++taken_;
  waiting_.push_back(std::move(sample));
}

std::int64_t DeviceSamples::newest_arrived() const {
  if (!any_) return all_arrived;
  std::int64_t newest = agreed_;
  for (const Sample& sample : waiting_) {
    if (!std::ranges::all_of(sample.events, &devices::StreamEvent::is_reached)) break;
    newest = sample.number;
  }
  return newest;
}

void DeviceSamples::agree(std::int64_t sample) {
  while (!waiting_.empty() && waiting_.front().number <= sample) {
    const Sample oldest = std::move(waiting_.front());
    waiting_.pop_front();
    agreed_ = oldest.number;
    hashes_.assign(parameters_.size(), 0);
    for (const Place& place : oldest.places) {
      const auto* const bytes = static_cast<const std::byte*>(oldest.on_host[place.message].const_data_ptr());
      hashes_[place.parameter] = hash_of_bytes({bytes + place.begin, static_cast<std::size_t>(place.bytes)});
    }
  }
}

void DeviceSamples::drop() {
  waiting_.clear();
  flat_.clear();
  hashes_.clear();
  taken_ = 0;
  agreed_ = 0;
}

}  // namespace tutti::sync
