#pragma once
// Detects parameters whose dtype, device or shape changed, or that were written to. LibTorch does not report this.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tutti/comm/communicator.h"
#include "tutti/detail/sync/named_parameter.h"

namespace tutti::sync {

/// A sampled hash of each parameter: enough of its bytes to detect an optimizer step, few enough for a negligible cost.
/// Parameters that are not in CPU memory hash to 0.
using ParameterHashes = std::vector<std::uint64_t>;

class ReplicaChecker {
 public:
  explicit ReplicaChecker(const std::vector<NamedParameter>& parameters);

  /// The change of parameter `index` since the construction (dtype, device, shape, requires_grad); nullopt if none.
  std::optional<std::string> change_of(int index) const;

  ParameterHashes hashes() const;
  /// The first parameter in which two hashes differ.
  std::optional<int> first_difference(const ParameterHashes& a, const ParameterHashes& b) const;

  /// Returns a message that names the first parameter that differs between ranks, and a rank. Every rank must call it,
  /// after their combined hashes differ.
  std::string describe_drift(const Communicator& communicator) const;

 private:
  struct ParameterTraits {
    at::ScalarType dtype;
    at::Device device;
    std::vector<std::int64_t> shape;
    bool requires_grad;
  };

  const std::vector<NamedParameter>& parameters_;
  std::vector<ParameterTraits> traits_;
};

/// A hash of some elements of a tensor in CPU memory, and of all elements of a small one. Another `salt` samples other
/// elements. 0 for tensors on a device.
std::uint64_t sampled_hash(const at::Tensor& tensor, int salt = 0);

/// One hash of all `hashes`.
std::uint64_t combine(const ParameterHashes& hashes);

}  // namespace tutti::sync
