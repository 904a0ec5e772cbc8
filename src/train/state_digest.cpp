#include "train/state_digest.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <sstream>
#include <type_traits>
#include <vector>

#include "tracking/printed.h"
#include "tutti/detail/core/crc32c.h"

namespace tutti {
namespace {

class Digest {
 public:
  void add(const std::string& text) { add_bytes(std::span(text)); }
  void add(const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.layout() != at::kStrided) return;  // a checkpoint refuses the latter
    std::ostringstream kind;
    kind << tensor.scalar_type() << tensor.sizes();
    add(kind.str());
    const at::Tensor values = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous();
    add_bytes(std::span(static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()));
  }
  template <typename T>
  void add(const std::vector<T>& values) {
    add_bytes(std::span(values));
  }
  template <typename T>
  requires std::is_arithmetic_v<T>
  void add(T value) { add_bytes(std::span(&value, 1)); }

  std::uint32_t sum() const { return sum_; }

 private:
  template <typename T>
  void add_bytes(std::span<T> values) {
    const std::size_t size = values.size_bytes();
    sum_ = crc32c(std::as_bytes(std::span(&size, 1)), sum_);
    sum_ = crc32c(std::as_bytes(values), sum_);
  }

  std::uint32_t sum_ = 0;
};

}  // namespace

std::string digest_of(const StateDict& state) {
  Digest digest;
  for (const auto& [name, value] : state.values()) {
    digest.add(name);
    digest.add(value.index());
    std::visit([&digest](const auto& one) { digest.add(one); }, value);
  }
  return printed("%08x", digest.sum());
}

}  // namespace tutti
