#pragma once
// Notices what LibTorch does not tell: parameters that changed their kind, or were written to, behind the reducer's
// back.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tutti/comm/communicator.h"
#include "tutti/sync/named_parameter.h"

namespace tutti::sync {

/// A sampled hash for each parameter: enough of its bytes to notice an optimizer step, few enough to cost nothing.
/// Parameters that are not in CPU memory hash to 0.
using ParameterHashes = std::vector<std::uint64_t>;

class ReplicaChecker {
 public:
  explicit ReplicaChecker(const std::vector<NamedParameter>& parameters);

  /// Why parameter `index` is no longer what it was (dtype, device, shape, requires_grad); nullopt if it is.
  std::optional<std::string> change_of(int index) const;

  ParameterHashes hashes() const;
  /// The first parameter in which two hashes differ.
  std::optional<int> first_difference(const ParameterHashes& a, const ParameterHashes& b) const;

  /// Finds, after ranks have seen that their hashes differ, the first parameter that does, and names it and the ranks.
  /// Every rank must call it.
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

/// A hash of some of the elements of a tensor in CPU memory, and of all of a small one; others with another `salt`. 0
/// for tensors elsewhere.
std::uint64_t sampled_hash(const at::Tensor& tensor, int salt = 0);

/// One number for all of them.
std::uint64_t combine(const ParameterHashes& hashes);

}  // namespace tutti::sync
