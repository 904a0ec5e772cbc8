#pragma once
// The weighted mean of all ranks' flat vectors, with the same bits on all ranks.
//
// fp32: an all-reduce of the communicator. Lossy formats: the same algorithm on encoded numbers. Every rank owns a
// slice of each message. It receives that slice from all ranks (all_to_all), adds the slices in rank order in fp32,
// encodes the mean, and sends it to all ranks, also to itself (all_gather). Vectors are sent in messages of several
// megabytes, not tensor by tensor.
#include <ATen/core/TensorBody.h>

#include <string>
#include <utility>
#include <vector>

#include "local_sgd/exchange_header.h"
#include "local_sgd/fragment_plan.h"
#include "tutti/comm/communicator.h"
#include "tutti/local_sgd/local_sgd_algorithm_options.h"

namespace tutti::local_sgd {

/// Bytes and seconds of this rank's exchanges.
struct ExchangeCost {
  std::int64_t bytes = 0;
  std::int64_t bytes_between_nodes = 0;
  double seconds = 0;
};

/// The exchange of one vector, with its error feedback. Runs on the communicator's thread, so that the order of
/// operations is equal on all ranks.
class MeanExchange {
 public:
  /// `elements` is the length of every vector. `communicator` must outlive the exchange.
  MeanExchange(const Communicator& communicator, std::int64_t elements, WireFormat format, std::int64_t message_bytes);

  /// `flat`: contiguous, on the CPU, fp32 (any floating dtype with WireFormat::fp32). Blocks. Throws what validate()
  /// and the communicator throw.
  WeightShares run(const at::Tensor& flat, ExchangeHeader header, bool zero_is_equal, ExchangeCost& cost);

  /// The rounding errors by name; empty for fp32. The tensors are shared with this object.
  std::vector<std::pair<std::string, at::Tensor>> residuals() const;

 private:
  void exchange_exact(const at::Tensor& flat, const WeightShares& shares, ExchangeCost& cost);
  void exchange_encoded(const at::Tensor& flat, const WeightShares& shares, ExchangeCost& cost);
  // Counts `bytes_to_each` for every other rank.
  void count_bytes(std::int64_t bytes_to_each, ExchangeCost& cost) const;
  std::int64_t shard_length(std::int64_t message) const;

  const Communicator& communicator_;
  WireFormat format_;
  std::vector<ElementRange> messages_;
  std::int64_t first_shard_ = 0;  ///< length of a slice of the first message, the longest slice
  at::Tensor residual_;           ///< rounding error of this rank's vector
  at::Tensor mean_residual_;      ///< rounding error of the mean in the slices that this rank owns
};

/// Aborts the communicator. The other ranks throw PeerError instead of waiting for this rank.
void abort_exchanges(const Communicator& communicator) noexcept;

}  // namespace tutti::local_sgd
