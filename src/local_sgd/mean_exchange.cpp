#include "local_sgd/mean_exchange.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <span>

#include "local_sgd/wire_format.h"
#include "tutti/detail/comm/gradient_communicator.h"
#include "tutti/detail/comm/internal_call.h"

namespace tutti::local_sgd {
namespace {

constexpr const char* call_name = "Local SGD mean";

std::span<float> floats_of(const at::Tensor& tensor) {
  return {tensor.mutable_data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
}

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

std::vector<ExchangeHeader> exchange_headers(const Communicator& communicator, const ExchangeHeader& header) {
  const auto exchange =
      comm::GradientCommunicator(communicator).start_small_all_gather(std::as_bytes(std::span(&header, 1)));
  const std::span<const std::byte> all = exchange->wait();
  std::vector<ExchangeHeader> headers(all.size() / sizeof(ExchangeHeader));
  std::memcpy(headers.data(), all.data(), all.size());
  return headers;
}

/// The slice of `message` that rank `owner` reduces. The last slices may be short or empty.
ElementRange shard_of(const ElementRange& message, std::int64_t length, int owner) {
  const std::int64_t begin = std::min(message.length, length * owner);
  return {.begin = message.begin + begin, .length = std::min(length, message.length - begin)};
}

template <typename T>
std::span<T> sub(std::span<T> whole, const ElementRange& range) {
  return whole.subspan(static_cast<std::size_t>(range.begin), static_cast<std::size_t>(range.length));
}

}  // namespace

MeanExchange::MeanExchange(const Communicator& communicator, std::int64_t elements, WireFormat format,
                           std::int64_t message_bytes)
    : communicator_(communicator),
      format_(format),
      messages_(plan_messages(elements, message_bytes / static_cast<std::int64_t>(sizeof(float)))) {
  if (format == WireFormat::fp32 || communicator.size() == 1) return;
  if (!messages_.empty()) first_shard_ = shard_length(messages_.front().length);
  residual_ = at::zeros({elements}, at::kFloat);
  mean_residual_ = at::zeros({first_shard_ * static_cast<std::int64_t>(messages_.size())}, at::kFloat);
}

std::int64_t MeanExchange::shard_length(std::int64_t message) const {
  return (message + communicator_.size() - 1) / communicator_.size();
}

WeightShares MeanExchange::run(const at::Tensor& flat, ExchangeHeader header, bool zero_is_equal, ExchangeCost& cost) {
  header.elements = flat.numel();
  WeightShares shares = validate(exchange_headers(communicator_, header), zero_is_equal);
  if (communicator_.size() == 1) return shares;
  if (format_ == WireFormat::fp32) {
    exchange_exact(flat, shares, cost);
  } else {
    exchange_encoded(flat, shares, cost);
  }
  return shares;
}

void MeanExchange::exchange_exact(const at::Tensor& flat, const WeightShares& shares, ExchangeCost& cost) {
  const float factor = shares.factors[static_cast<std::size_t>(communicator_.rank())];
  if (factor == 0) {
    flat.zero_();  // 0 times NaN is NaN
  } else if (factor != 1) {
    flat.mul_(factor);
  }
  // Two sums are in flight: one is reduced while the contributions to the next are sent.
  const comm::GradientCommunicator gradients(communicator_);
  std::vector<std::unique_ptr<comm::PendingAllReduce>> sums;
  const auto reduce = [&](std::size_t index) { sums[index]->finish_reduce_scatter(shares.scale); };
  const auto finish = [&](std::size_t index) {
    sums[index]->wait();
    sums[index].reset();
  };
  for (const ElementRange& message : messages_) {
    const std::size_t index = sums.size();
    sums.push_back(gradients.start_all_reduce(flat.slice(0, message.begin, message.begin + message.length)));
    if (index >= 1) reduce(index - 1);
    if (index >= 2) finish(index - 2);
  }
  if (sums.empty()) return;
  reduce(sums.size() - 1);
  for (std::size_t index = sums.size() < 2 ? 0 : sums.size() - 2; index < sums.size(); ++index) finish(index);
  count_bytes(2 * static_cast<std::int64_t>(flat.nbytes()) / communicator_.size(), cost);
}

void MeanExchange::exchange_encoded(const at::Tensor& flat, const WeightShares& shares, ExchangeCost& cost) {
  const int ranks = communicator_.size();
  const int rank = communicator_.rank();
  const std::span<float> values = floats_of(flat);
  const std::span<float> lost = floats_of(residual_);
  std::vector<float> version(static_cast<std::size_t>(first_shard_));
  std::vector<float> mean(static_cast<std::size_t>(first_shard_));
  std::int64_t mean_begin = 0;  // of this message's slice in mean_residual_
  for (const ElementRange& message : messages_) {
    const std::int64_t length = shard_length(message.length);
    const std::int64_t part = encoded_bytes(format_, length);
    const auto slice = [&](int owner) { return shard_of(message, length, owner); };
    const auto encoded = [&](const at::Tensor& parts, int owner) {
      return sub(bytes_of(parts), {part * owner, encoded_bytes(format_, slice(owner).length)});
    };

    const at::Tensor sent = at::zeros({part * ranks}, at::kByte);
    const at::Tensor received = at::empty({part * ranks}, at::kByte);
    // A rank with weight 0 sends zeros and so has no rounding error.
    if (shares.factors[static_cast<std::size_t>(rank)] != 0) {
      for (int owner = 0; owner < ranks; ++owner) {
        const ElementRange range = slice(owner);
        encode_with_feedback(format_, sub(values, range), sub(lost, range), encoded(sent, owner));
      }
    }
    communicator_.all_to_all(received, sent, comm::internal_call(call_name)).wait();

    const std::int64_t length_here = slice(rank).length;
    const std::span<float> one = sub(std::span(version), {0, length_here});
    const std::span<float> all = sub(std::span(mean), {0, length_here});
    std::fill(all.begin(), all.end(), 0.0F);
    for (int peer = 0; peer < ranks; ++peer) {
      const float factor = shares.factors[static_cast<std::size_t>(peer)];
      if (factor == 0) continue;
      decode(format_, sub(bytes_of(received), {part * peer, encoded_bytes(format_, length_here)}), one);
      for (std::size_t i = 0; i < all.size(); ++i) all[i] += factor * one[i];
    }
    for (float& value : all) value *= static_cast<float>(shares.scale);

    const at::Tensor encoded_mean = at::zeros({part}, at::kByte);
    encode_with_feedback(format_, all, sub(floats_of(mean_residual_), {mean_begin, length_here}),
                         sub(bytes_of(encoded_mean), {0, encoded_bytes(format_, length_here)}));
    communicator_.all_gather(received, encoded_mean, comm::internal_call(call_name)).wait();
    for (int owner = 0; owner < ranks; ++owner) {
      decode(format_, encoded(received, owner), sub(values, slice(owner)));
    }
    count_bytes(2 * part, cost);
    mean_begin += first_shard_;
  }
}

void MeanExchange::count_bytes(std::int64_t bytes_to_each, ExchangeCost& cost) const {
  const Topology& topology = communicator_.topology();
  cost.bytes += bytes_to_each * (communicator_.size() - 1);
  cost.bytes_between_nodes += bytes_to_each * (communicator_.size() - topology.local_world_size);
}

std::vector<std::pair<std::string, at::Tensor>> MeanExchange::residuals() const {
  if (!residual_.defined()) return {};
  return {{"lost", residual_}, {"mean_lost", mean_residual_}};
}

void abort_exchanges(const Communicator& communicator) noexcept {
  try {
    // The rank starts a sum and does not finish it. So the communicator publishes a failure report and closes.
    comm::GradientCommunicator(communicator).start_all_reduce(at::empty({0}, at::kFloat));
  } catch (const std::exception&) {
    // The communicator has failed already, so no rank waits.
  }
}

}  // namespace tutti::local_sgd
