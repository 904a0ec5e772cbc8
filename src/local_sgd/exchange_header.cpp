#include "local_sgd/exchange_header.h"

#include <algorithm>
#include <string>

#include "tutti/core/error.h"

namespace tutti::local_sgd {
namespace {

std::string describe(const ExchangeHeader& header) {
  const std::string at = " after step " + std::to_string(header.step);
  switch (header.kind) {
    case ExchangeKind::round:
      return "combines models (fragment " + std::to_string(header.fragment) + ")" + at;
    case ExchangeKind::inside_node:
      return "averages inside its node" + at;
    case ExchangeKind::finish:
      return "is in finish()" + at;
    case ExchangeKind::state:
      return "combines buffers and momentum" + at;
  }
  return "?";
}

bool same_place(const ExchangeHeader& a, const ExchangeHeader& b) {
  return a.kind == b.kind && a.fragment == b.fragment && a.step == b.step;
}

void require_agreement(std::span<const ExchangeHeader> headers) {
  const ExchangeHeader& first = headers.front();
  for (std::size_t rank = 1; rank < headers.size(); ++rank) {
    const ExchangeHeader& other = headers[rank];
    const std::string who = "rank " + std::to_string(rank) + " of this group ";
    if (!same_place(first, other)) {
      throw MismatchError("Local SGD: ranks are at different steps: rank 0 of this group " + describe(first) +
                          ", but " + who + describe(other) +
                          ". Call step() equally often on all ranks, each time after an optimizer step or, inside "
                          "accumulate(), after zero_grad() in its place; call finish() after the same step");
    }
    if (first.elements != other.elements || first.check != other.check) {
      const bool state = first.kind == ExchangeKind::state;
      throw MismatchError(
          "Local SGD: " + who +
          (state ? "has state for other parameters than rank 0: use each parameter on all"
                   " ranks before momentum is averaged; under fp16 set warmup_steps, because a rank may skip"
                   " its first steps"
                 : "exchanges a vector of another length than rank 0"));
    }
  }
}

}  // namespace

WeightShares validate(std::span<const ExchangeHeader> headers, bool zero_is_equal) {
  require_agreement(headers);
  WeightShares shares;
  double largest = 0;
  for (const ExchangeHeader& header : headers) {
    largest = std::max(largest, header.weight);
    shares.round_weight += header.round_weight;
  }
  if (largest == 0 && !zero_is_equal) {
    throw UsageError("Local SGD: the weights of all ranks' steps since the last average are 0 (step " +
                     std::to_string(headers.front().step) + "): pass a positive weight to step() on at least one rank");
  }
  double total = 0;
  for (const ExchangeHeader& header : headers) {
    const double factor = largest == 0 ? 1 : header.weight / largest;
    shares.factors.push_back(static_cast<float>(factor));
    total += static_cast<double>(shares.factors.back());
  }
  shares.scale = 1 / total;
  return shares;
}

}  // namespace tutti::local_sgd
