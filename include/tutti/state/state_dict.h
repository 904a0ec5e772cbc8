#pragma once
// The state of an object as named values, from which it can resume. The names are PyTorch's.
#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "tutti/core/error.h"

namespace tutti {

/// The types of values in a state.
using StateValue =
    std::variant<bool, std::int64_t, double, std::string, std::vector<std::int64_t>, std::vector<double>, at::Tensor>;

/// Values by name. Dots separate parts: "optimizer.lr" is "lr" of part "optimizer". A value type; copies share tensors.
/// Not thread safe.
class StateDict {
 public:
  /// Sets or replaces a value.
  void set(const std::string& name, StateValue value) { values_.insert_or_assign(name, std::move(value)); }
  /// Sets all values of `part` under the prefix "name.".
  void set(const std::string& name, const StateDict& part);

  /// The value of `name`. Throws CheckpointError, which names it, if it is missing or has another type.
  template <typename T>
  const T& get(const std::string& name) const {
    const auto* value = std::get_if<T>(&find(name));
    if (value == nullptr) throw CheckpointError("'" + name + "' in the saved state has another type");
    return *value;
  }
  /// Whether there is a value of exactly this name.
  bool contains(const std::string& name) const { return values_.contains(name); }
  /// The values with the prefix "name.", without the prefix; empty if there are none.
  StateDict part(const std::string& name) const;

  /// All values by name.
  const std::map<std::string, StateValue>& values() const& { return values_; }
  const std::map<std::string, StateValue>& values() const&& = delete;  // a loop over a temporary's values would dangle
  /// Whether there are no values.
  bool empty() const { return values_.empty(); }

 private:
  const StateValue& find(const std::string& name) const;

  std::map<std::string, StateValue> values_;
};

/// Returns `state` with every tensor copied to CPU memory. Waits for each accelerator device once.
StateDict copy_to_cpu(const StateDict& state);

}  // namespace tutti
