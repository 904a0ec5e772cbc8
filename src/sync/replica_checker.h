#pragma once
// Detects parameters that the program has changed: their dtype, device or shape since prepare(), which LibTorch does
// not report, and their values, by a sampled hash. Parameters that are not in CPU memory have the hash 0.
#include <cstdint>
#include <string>
#include <vector>

#include "sync/parameter_set.h"
#include "tutti/comm/communicator.h"
#include "tutti/core/error.h"

namespace tutti::sync {

/// The error for a parameter whose gradients would not be synchronized any more, because of `change`.
UsageError changed_after_prepare(const NamedParameter& parameter, const std::string& change);

class ReplicaChecker {
 public:
  /// `parameters` must outlive the checker. `compares_values`: whether values are compared, between passes and ranks.
  ReplicaChecker(const ParameterSet& parameters, bool compares_values);

  /// Throws UsageError if the dtype, device, shape or requires_grad of trained parameter `index` has changed.
  void check_trained(int index) const;
  /// The same for all frozen parameters.
  void check_frozen() const;

  void set_compares_values(bool compares_values);
  /// A backward pass begins. Throws as check_unchanged() if gradients of earlier passes are pending.
  void begin_pass(bool window_is_pending);
  /// Throws UsageError if a trained parameter has changed since the last pass began.
  void check_unchanged() const;
  /// Must be called when a change of parameters is allowed.
  void forget_values() { hashes_.clear(); }

  /// A hash of all trained parameters, for a comparison of ranks; 0 if values are not compared.
  std::uint64_t combined_hash() const;
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
  static std::vector<ParameterTraits> traits_of(const std::vector<NamedParameter>& parameters);
  static void check(const NamedParameter& parameter, const ParameterTraits& traits);
  std::vector<std::uint64_t> hashes() const;
  void throw_if_changed(const std::vector<std::uint64_t>& now) const;

  const ParameterSet& parameters_;
  bool compares_values_;
  std::vector<ParameterTraits> trained_;
  std::vector<ParameterTraits> frozen_;
  std::vector<std::uint64_t> hashes_;  // of trained parameters when the last pass began; empty if there was none
};

}  // namespace tutti::sync
