#pragma once
// A flat vector becomes the weighted mean of all ranks' vectors, with the same bits on all of them.
//
// fp32: the communicator's own sum in slices. Lossy formats: the same algorithm on encoded numbers. Every rank owns a
// slice of each message; it gets all ranks' encoded versions of it (all_to_all), adds them in rank order in fp32,
// encodes the mean, and hands it to everyone, itself included (all_gather). Few messages of several megabytes, never
// one for each tensor.
#include <ATen/core/TensorBody.h>

#include <string>
#include <utility>
#include <vector>

#include "local_sgd/exchange_header.h"
#include "local_sgd/fragment_plan.h"
#include "tutti/comm/communicator.h"
#include "tutti/local_sgd/local_sgd_algorithm_options.h"

namespace tutti::local_sgd {

/// What exchanges cost this rank.
struct ExchangeCost {
  std::int64_t bytes = 0;
  std::int64_t bytes_between_nodes = 0;
  double seconds = 0;
};

/// One vector's exchange, with what quantisation lost so far. Runs on the communicator's thread, where its operations
/// keep the order that is equal on all ranks.
class MeanExchange {
 public:
  /// `elements` is the length of every vector. `communicator` must outlive it.
  MeanExchange(const Communicator& communicator, std::int64_t elements, WireFormat format, std::int64_t message_bytes);

  /// `flat`: contiguous, on the CPU, fp32 (any floating dtype under WireFormat::fp32). Blocks. Throws as validate(),
  /// and what the communicator throws.
  WeightShares run(const at::Tensor& flat, ExchangeHeader header, bool zero_is_equal, ExchangeCost& cost);

  /// By name; empty where nothing is lost. The tensors are its own.
  std::vector<std::pair<std::string, at::Tensor>> residuals() const;

 private:
  void exchange_exact(const at::Tensor& flat, const WeightShares& shares, ExchangeCost& cost);
  void exchange_encoded(const at::Tensor& flat, const WeightShares& shares, ExchangeCost& cost);
  // Parts that this rank sent to every other one.
  void count_bytes(std::int64_t bytes_to_each, ExchangeCost& cost) const;
  std::int64_t shard_length(std::int64_t message) const;

  const Communicator& communicator_;
  WireFormat format_;
  std::vector<ElementRange> messages_;
  std::int64_t first_shard_ = 0;  ///< length of a slice of the first message, which none exceeds
  at::Tensor residual_;           ///< of this rank's vector
  at::Tensor mean_residual_;      ///< of the mean, in the slices that this rank owns
};

/// Leaves the communicator so that no rank waits for this one: the others get a PeerError.
void abort_exchanges(const Communicator& communicator) noexcept;

}  // namespace tutti::local_sgd
