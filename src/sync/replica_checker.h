#pragma once
// Detects parameters that the program has changed: their dtype, device or shape since prepare(), which LibTorch does
// not report, and their values, by a sampled hash. The values of parameters on a device are not compared between
// passes, and between ranks they are compared late, by the hashes of DeviceSamples.
//
// An optimizer step on some ranks changes all elements, so the next synchronization detects it. Forward may write a few
// elements of a parameter from a rank's own data. Each synchronization samples other elements: a difference that
// remains is detected within min(1000, ceil(n / 16)) synchronizations, for a parameter of n elements. On a device it is
// detected within ceil(n / 16) synchronizations and those that DeviceSamples needs.
#include <cstdint>
#include <string>
#include <vector>

#include "sync/device_samples.h"
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
  // Between passes, on several ranks: on one rank nothing can differ, and a step between passes is the program's own.
  /// A backward pass begins. If gradients of earlier passes are pending, throws UsageError if an optimizer seems to
  /// have stepped since the last pass began: a trained parameter has changed, and so has every one that has a gradient.
  /// If fewer have changed, forward may have written them, on all ranks alike; the synchronization compares the ranks.
  void begin_pass(bool window_is_pending);
  /// Must be called when a change of parameters is allowed.
  void forget_values() { hashes_.clear(); }

  /// A hash of all trained parameters, for a comparison of ranks; 0 if values are not compared. Each call samples other
  /// elements, so every rank must make the same calls.
  std::uint64_t combined_hash();
  /// Samples of parameters on devices, for combined_hash(). Null if values are not compared.
  DeviceSamples* samples() { return compares_values_ ? &samples_ : nullptr; }
  /// Returns a message that names the first parameter that differs between ranks, and a rank. Every rank must call it,
  /// after their last combined hashes differ.
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
  std::vector<std::uint64_t> hashes(std::int64_t round) const;
  /// The same, with the hashes of parameters on devices.
  std::vector<std::uint64_t> hashes_for_ranks() const;
  void throw_if_changed(const std::vector<std::uint64_t>& now) const;

  const ParameterSet& parameters_;
  bool compares_values_;
  std::vector<ParameterTraits> trained_;
  std::vector<ParameterTraits> frozen_;
  std::vector<std::uint64_t> hashes_;  // of trained parameters when the last pass began; empty if there was none
  std::int64_t window_round_ = 0;      // of hashes_
  std::int64_t rank_round_ = 0;        // of the last combined hash
  DeviceSamples samples_;
};

}  // namespace tutti::sync
