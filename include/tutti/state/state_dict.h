#pragma once
// What an object needs to go on later as if it had not been interrupted: named values. The names are PyTorch's.
#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "tutti/core/error.h"

namespace tutti {

/// What a state may be made of.
using StateValue =
    std::variant<bool, std::int64_t, double, std::string, std::vector<std::int64_t>, std::vector<double>, at::Tensor>;

/// Values by name. Parts are named with dots: "optimizer.lr" is "lr" of part "optimizer". A value type; tensors are
/// shared, not copied. Not thread safe.
class StateDict {
 public:
  /// Sets or replaces a value.
  void set(const std::string& name, StateValue value) { values_.insert_or_assign(name, std::move(value)); }
  /// Enters all of `part`'s values under "name.".
  void set(const std::string& name, const StateDict& part);

  /// The value of `name`. Throws CheckpointError naming it when it is missing or of another type.
  template <typename T>
  const T& get(const std::string& name) const {
    const auto* value = std::get_if<T>(&find(name));
    if (value == nullptr) throw CheckpointError("'" + name + "' in the saved state is of another type");
    return *value;
  }
  /// Whether there is a value of exactly this name.
  bool contains(const std::string& name) const { return values_.contains(name); }
  /// The values under "name.", without that; empty when there are none.
  StateDict part(const std::string& name) const;

  /// All of them, by name.
  const std::map<std::string, StateValue>& values() const& { return values_; }
  const std::map<std::string, StateValue>& values() const&& = delete;  // they would not outlive the loop over them
  /// Whether there is none.
  bool empty() const { return values_.empty(); }

 private:
  const StateValue& find(const std::string& name) const;

  std::map<std::string, StateValue> values_;
};

/// `state` with every tensor copied to memory of its own on the CPU.
StateDict copy_to_cpu(const StateDict& state);

}  // namespace tutti
