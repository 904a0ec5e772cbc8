#include "sync/round.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <utility>

#include "sync/sparse_rows.h"

namespace tutti::sync {

namespace {

/// The closing, the numbers behind it, and a bit for each parameter.
std::vector<std::byte> pack(const RoundClosing& closing, const std::vector<bool>& used, std::span<const int> numbers) {
  const std::size_t bits = sizeof(closing) + numbers.size_bytes();
  std::vector<std::byte> packed(bits + (used.size() + 7) / 8);
  std::memcpy(packed.data(), &closing, sizeof(closing));
  if (!numbers.empty()) std::memcpy(packed.data() + sizeof(closing), numbers.data(), numbers.size_bytes());
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

Round::Round(const Communicator& channel, const RoundOpening& opening, bool detect_overflow)
    : channel_(channel), detect_overflow_(detect_overflow) {
  auto exchange = std::shared_ptr(channel_.start_exchange(std::as_bytes(std::span(&opening, 1))));
  submit([state = state_, exchange] {
    const std::span<const std::byte> all = exchange->finish();
    state->openings.resize(all.size() / sizeof(RoundOpening));
    std::memcpy(state->openings.data(), all.data(), all.size());
    state->terms = judge(state->openings);
  });
}

void Round::start_bucket(at::Tensor bucket, const std::shared_ptr<const WireCodec>& codec) {
  auto sum = std::make_shared<Sum>();
  sum->bucket = bucket;
  sum->pending = channel_.start_sum(std::move(bucket), codec);
  sums_.push_back(sum);
  submit([state = state_, sum] { sum->pending->reduce(state->terms.scale); });
}

void Round::start_rows(const at::Tensor& gradient, const at::Tensor& parameter) {
  auto packed = pack_rows(gradient);
  state_->bytes_of_rows += static_cast<std::int64_t>(packed.size()) * (channel_.size() - 1);
  auto gather = std::shared_ptr(channel_.start_gather(std::move(packed)));
  submit([state = state_, gather, parameter = parameter.detach(), detect_overflow = detect_overflow_] {
    const at::Tensor mean = sum_rows(gather->finish(), parameter, state->terms.scale);
    if (detect_overflow && mean.defined() && !all_finite(mean.values())) state->overflowed = true;
    state->rows.push_back(mean);
  });
}

void Round::wait_for_bucket(std::size_t index) {
  // The first work is the opening's; the sum's own finish() runs on the channel's thread too, so that only one thread
  // ever touches it.
  submit([sum = sums_[index]] {
    if (!std::exchange(sum->finished, true)) sum->pending->finish();
  });
  works_.back().wait();
  sums_[index]->pending->join();
}

void Round::close(const RoundClosing& closing, const std::vector<bool>& used, std::span<const int> numbers) {
  closed_ = true;
  const std::vector<std::byte> packed = pack(closing, used, numbers);
  auto exchange = std::shared_ptr(channel_.start_exchange(packed));
  submit([state = state_, sums = sums_, exchange, parameters = used.size(), count = numbers.size(),
          block = packed.size(), detect_overflow = detect_overflow_] {
    for (const auto& sum : sums) {
      if (!std::exchange(sum->finished, true)) sum->pending->finish();
      // All ranks hold the same bits, so that they agree without asking.
      if (!detect_overflow || state->overflowed) continue;
      sum->pending->join();
      state->overflowed = !all_finite(sum->bucket);
    }
    const std::span<const std::byte> all = exchange->finish();
    state->used.assign(parameters, false);
    state->numbers.resize(count);
    if (count > 0) std::memcpy(state->numbers.data(), all.data() + sizeof(RoundClosing), count * sizeof(int));
    for (std::size_t begin = 0; begin < all.size(); begin += block) {
      std::memcpy(&state->closings.emplace_back(), all.data() + begin, sizeof(RoundClosing));
      const auto bits = all.subspan(begin + sizeof(RoundClosing) + count * sizeof(int));
      for (std::size_t i = 0; i < parameters; ++i) {
        if ((bits[i / 8] >> (i % 8) & std::byte{1}) != std::byte{0}) state->used[i] = true;
      }
    }
  });
}

std::int64_t Round::bytes_sent() const {
  std::int64_t bytes = state_->bytes_of_rows;
  for (const auto& sum : sums_) bytes += sum->pending->bytes_sent();
  return bytes;
}

void Round::wait() {
  for (const Work& work : works_) work.wait();
  for (const auto& sum : sums_) sum->pending->join();
}

}  // namespace tutti::sync
