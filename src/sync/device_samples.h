#pragma once
// Elements of tensors on accelerators, which the host reads without a wait for the device, to compare ranks.
//
// A sample is taken at the end of one synchronization and compared in a later one. The header of each synchronization
// says which samples a rank's device has delivered. The oldest of these over all ranks is compared in the next
// synchronization, so all ranks compare the same sample: two synchronizations after it was taken, or later if the
// program runs further ahead of the device. Every rank must make the same calls, except newest_arrived(). Not thread
// safe.
#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <vector>

#include "device/side_stream.h"
#include "tutti/detail/sync/named_parameter.h"

namespace tutti::sync {

class DeviceSamples {
 public:
  /// newest_arrived() without tensors on accelerators.
  static constexpr std::int64_t all_arrived = std::numeric_limits<std::int64_t>::max();

  /// `parameters` must outlive this object.
  explicit DeviceSamples(const std::vector<NamedParameter>& parameters);

  /// Queues the copy of a sample to the host: at most 16 elements of each tensor, other ones in each call. ceil(n / 16)
  /// calls in a row read every element of a tensor of n elements. Does nothing while several samples wait for agree().
  void take();
  /// The newest sample that has arrived, together with all before it. Does not wait.
  std::int64_t newest_arrived() const;
  /// Hashes the sample that has arrived on all ranks. `sample`: the minimum of newest_arrived() over the ranks.
  void agree(std::int64_t sample);
  /// By parameter, a hash of the last sample that was agreed on; 0 without one, and for tensors in CPU memory. Empty
  /// before the first.
  const std::vector<std::uint64_t>& hashes() const { return hashes_; }
  /// Forgets all samples, and numbers them from 1 again. Objects whose samples are taken together have equal numbers.
  void drop();

 private:
  struct Place {
    std::size_t parameter;
    std::size_t message;
    std::int64_t begin;  // in bytes
    std::int64_t bytes;
  };
  struct Sample {
    std::int64_t number = 0;
    std::vector<at::Tensor> on_host{};
    std::vector<Place> places{};
    std::vector<devices::StreamEvent> events{};
  };
  /// All elements of a parameter as a flat tensor of integers of their size.
  const at::Tensor& flat_bits(std::size_t parameter);

  const std::vector<NamedParameter>& parameters_;
  const bool any_;                // whether there are tensors to sample
  std::vector<at::Tensor> flat_;  // by parameter: the results of flat_bits()
  std::deque<Sample> waiting_;
  std::int64_t taken_ = 0;
  std::int64_t agreed_ = 0;
  std::vector<std::uint64_t> hashes_;
};

}  // namespace tutti::sync
