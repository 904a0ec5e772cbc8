#pragma once
// The parameters that the algorithm averages, as flat memory.
#include <ATen/core/TensorBody.h>

#include <string>
#include <vector>

#include "local_sgd/fragment_plan.h"
#include "tutti/detail/sync/named_parameter.h"

namespace tutti::local_sgd {

class TrainedParameters {
 public:
  /// Keeps the parameters that are not frozen, each tensor once. Throws UsageError for an unsupported parameter.
  explicit TrainedParameters(const std::vector<NamedParameter>& parameters);

  std::vector<std::int64_t> sizes() const;
  bool any_double() const;
  bool any_on_accelerator() const;
  std::size_t count() const { return parameters_.size(); }
  const NamedParameter& operator[](int index) const { return parameters_[static_cast<std::size_t>(index)].named; }
  /// Throws UsageError for a parameter whose dtype, shape or device has changed.
  void check() const;
  /// The elements of `piece` in the order of memory. Writing to the result changes the parameter.
  at::Tensor at(const Piece& piece) const;
  /// A checksum of all values.
  std::uint32_t checksum() const;

 private:
  struct Parameter {
    NamedParameter named;
    at::ScalarType dtype;
    at::Device device;
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> strides;
  };

  std::vector<Parameter> parameters_;
};

}  // namespace tutti::local_sgd
