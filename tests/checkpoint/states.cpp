#include "checkpoint/states.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>

namespace tutti::test {
namespace {

bool same_value(const StateValue& a, const StateValue& b) {
  if (a.index() != b.index()) return false;
  if (const auto* x = std::get_if<at::Tensor>(&a)) return static_cast<bool>(same(*x, std::get<at::Tensor>(b)));
  if (const auto* x = std::get_if<double>(&a)) {
    return std::bit_cast<std::uint64_t>(*x) == std::bit_cast<std::uint64_t>(std::get<double>(b));
  }
  if (const auto* x = std::get_if<std::vector<double>>(&a)) {
    const auto& y = std::get<std::vector<double>>(b);
    return x->size() == y.size() && (x->empty() || std::memcmp(x->data(), y.data(), x->size() * sizeof(double)) == 0);
  }
  return std::visit(
      [&b](const auto& x) {
        using Value = std::decay_t<decltype(x)>;
        if constexpr (std::is_same_v<Value, at::Tensor>) {
          return false;
        } else {
          return x == std::get<Value>(b);
        }
      },
      a);
}

}  // namespace

testing::AssertionResult same(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type()) return testing::AssertionFailure() << "dtypes differ";
  if (a.sizes() != b.sizes()) return testing::AssertionFailure() << a.sizes() << " against " << b.sizes();
  const at::Tensor x = a.detach().contiguous();
  const at::Tensor y = b.detach().contiguous();
  if (x.numel() > 0 && std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) != 0) {
    return testing::AssertionFailure() << "values differ";
  }
  return testing::AssertionSuccess();
}

testing::AssertionResult same(const StateDict& a, const StateDict& b) {
  for (const auto& [name, value] : a.values()) {
    if (!b.contains(name)) return testing::AssertionFailure() << "'" << name << "' is missing";
    if (!same_value(value, b.values().at(name))) return testing::AssertionFailure() << "'" << name << "' differs";
  }
  if (a.values().size() != b.values().size()) return testing::AssertionFailure() << "there are more values";
  return testing::AssertionSuccess();
}

testing::AssertionResult same(const std::map<std::string, StateDict>& a, const std::map<std::string, StateDict>& b) {
  if (a.size() != b.size()) return testing::AssertionFailure() << a.size() << " parts against " << b.size();
  for (const auto& [name, part] : a) {
    if (!b.contains(name)) return testing::AssertionFailure() << "part '" << name << "' is missing";
    if (const auto result = same(part, b.at(name)); !result) {
      return testing::AssertionFailure() << "part '" << name << "': " << result.message();
    }
  }
  return testing::AssertionSuccess();
}

StateDict every_kind_of_value() {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const auto strange_nan = std::bit_cast<double>(0xfff8'0000'dead'beefULL);
  StateDict state;
  state.set("yes", true);
  state.set("no", false);
  state.set("two", std::int64_t{2});
  state.set("two.as_double", 2.0);
  state.set("least", std::numeric_limits<std::int64_t>::min());
  state.set("most", std::numeric_limits<std::int64_t>::max());
  state.set("tenth", 0.1);
  state.set("minus_zero", -0.0);
  state.set("smallest", std::numeric_limits<double>::denorm_min());
  state.set("largest", -std::numeric_limits<double>::max());
  state.set("large_and_whole", 1e300);
  state.set("nan", std::numeric_limits<double>::quiet_NaN());
  state.set("strange_nan", strange_nan);
  state.set("infinity", infinity);
  state.set("minus_infinity", -infinity);
  state.set("empty_text", std::string());
  state.set("text", std::string("naïve \"quoted\"\n\\ \x01 und 日本", 30));
  state.set("text_with_zero", std::string("a\0b", 3));
  state.set("no_integers", std::vector<std::int64_t>{});
  state.set("no_doubles", std::vector<double>{});
  state.set("integers", std::vector<std::int64_t>{1, -2, std::numeric_limits<std::int64_t>::max()});
  state.set("doubles", std::vector<double>{1, -0.0, 0.1, infinity, strange_nan});
  state.set("", std::int64_t{7});
  state.set("bits", 1.5);
  state.set("tensor", at::arange(6, at::kFloat).view({2, 3}));
  state.set("tensor.transposed", at::arange(6, at::kDouble).view({2, 3}).t());
  state.set("tensor.scalar", at::full({}, 3, at::kLong));
  state.set("tensor.empty", at::empty({0, 4}, at::kHalf));
  return state;
}

CheckpointContent small_content(std::int64_t step, int rank) {
  CheckpointContent content;
  content.step = step;
  StateDict model;
  model.set("weight", at::full({3, 4}, static_cast<double>(step), at::kFloat));
  model.set("bias", at::arange(4, at::kDouble));
  StateDict optimizer;
  optimizer.set("group.0.lr", 0.125 * static_cast<double>(step));
  optimizer.set("state.weight.exp_avg", at::full({3, 4}, 0.5, at::kFloat));
  content.shared = {{"model", model}, {"optimizer", optimizer}};
  content.per_rank.set("rank", std::int64_t{rank});
  content.per_rank.set("generator", at::arange(rank, rank + 8, at::kByte));
  return content;
}

}  // namespace tutti::test
